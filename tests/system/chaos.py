"""Chaos: workers of a run are killed or stopped at random while it learns, and it is watched."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from harness import Training, read_summary

from srl.arena.shm import sweep

_WORKERS = (
    "--set", "actor.count=4", "--set", "inference.count=2",
    "--set", "trainer.count=2", "--set", "max_restarts=1000", "--set", "restart_window_seconds=2",
    "--set", "checkpoint.every_seconds=2", "--set", "logging.interval_seconds=0.5",
)  # fmt: skip
"""4 actors, 2 policy workers and 2 trainers."""
SETTINGS = ("--layout", "shared", *_WORKERS)
REMOTE = ("--layout", "remote", *_WORKERS)
"""The trainers at home, the others on a host each, with a bridge on all three."""
HOSTS_SHARE = 0.3
"""How often, on several hosts, a bridge or an agent is struck rather than a worker."""
GONE_SECONDS = 60.0
"""How long the workers of an agent that was killed may take to end by themselves."""


class Versions:
    """The version that readers of the weights see, looked at all the time."""

    def __init__(self, shm: Path) -> None:
        self.shm = shm
        self.seen: list[int] = []
        """Each change of it."""
        self.standstill = 0.0
        """The longest time, in seconds, in which it did not change."""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        numbers = None
        changed = time.monotonic()
        while not self._over.wait(0.001):
            self.standstill = max(self.standstill, time.monotonic() - changed)
            if numbers is None:
                for path in self.shm.glob("srl-*/parameters+default.region"):
                    with suppress(OSError, ValueError):
                        numbers = np.memmap(path, np.int64, "r", shape=(8,))
                continue
            done = int(numbers[1])
            version = int(numbers[2 + done % 2]) - 1
            if numbers[0] <= done + 1 and (not self.seen or version != self.seen[-1]):
                self.seen.append(version)
                changed = time.monotonic()

    def stop(self) -> list[int]:
        """Everything that was seen, in order."""
        self._over.set()
        self._thread.join()
        return self.seen


class Chaos:
    """Does something to a random worker now and then, for as long as the run lasts; with `hosts` to
    bridges and agents too, which are killed."""

    def __init__(
        self,
        training: Training,
        seed: int,
        seconds: tuple[float, float],
        most: int = 1_000_000,
        *,
        hosts: bool = False,
    ) -> None:
        self.done: list[str] = []
        """What was done to whom."""
        self._training = training
        self._random = random.Random(seed)
        self._seconds = seconds
        self._most = most
        """It ends after so many."""
        self.hosts = hosts

    def run(self, limit: float) -> bool:
        """Returns when the run has ended (True), or after the limit."""
        end = time.monotonic() + limit
        while time.monotonic() < end:
            pause = self._random.uniform(*self._seconds)
            try:
                self._training.process.wait(min(pause, max(0.0, end - time.monotonic())))
                return True
            except subprocess.TimeoutExpired:
                if len(self.done) < self._most:
                    self._strike()
        return False

    def _strike(self) -> None:
        workers = self._training.workers()
        numbers = (signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP)
        if self.hosts and self._random.random() < HOSTS_SHARE:
            workers, numbers = bridges_and_agents(self._training), (signal.SIGKILL,) * 3
        if not workers:
            return
        name = self._random.choice(sorted(workers))
        number = self._random.choice(numbers)
        with suppress(psutil.Error, ProcessLookupError):
            os.kill(workers[name].pid, number)
            self.done.append(f"{number.name} {name}")


def bridges_and_agents(training: Training) -> dict[str, psutil.Process]:
    """What joins the hosts of a run on this machine: `bridge-HOST` and `agent-HOST`."""
    agents, bridges, found = {}, [], {}
    for child in training.seen.values():
        with suppress(psutil.Error):
            line = child.cmdline()
            if "--join" in line:
                agents[child.pid] = line[line.index("--name") + 1]
                found[f"agent-{agents[child.pid]}"] = child
            elif "srl.launch.process.bridge" in line:
                bridges.append(child)
    for bridge in bridges:
        with suppress(psutil.Error):
            found[f"bridge-{agents.get(psutil.Process(bridge.ppid()).ppid(), 'home')}"] = bridge
    return found


def problems(training: Training, chaos: Chaos, versions: list[int], shm: Path) -> list[str]:
    """What is wrong with a run that has ended; nothing, if it went as it must."""
    found = []
    if training.process.returncode != 0:
        return [f"it ended with {training.process.returncode}: {training.printed}"]
    summary = read_summary(training.run_dir)
    if summary["reason"] != "reached return>=475":
        found.append(f"it was not solved: {summary['reason']}")
    kept = accounts(summary)
    if kept["lost"] or not kept["consumed"]:
        found.append(f"the accounts do not add up: {kept}")
    if versions != sorted(versions):
        found.append(f"a version went backwards: {versions}")
    if chaos.hosts:
        # Workers of an agent that was killed end by themselves; its folder the next run removes.
        end = time.monotonic() + GONE_SECONDS
        while training.survivors() and time.monotonic() < end:
            time.sleep(0.1)
        sweep(shm)
    if training.survivors():
        found.append(f"processes are left: {training.survivors()}")
    if list(shm.iterdir()):
        found.append(f"shared memory is left: {list(shm.iterdir())}")
    return found


def accounts(summary: dict[str, Any], stream: str = "default") -> dict[str, float]:
    """Where the fragments of a stream went, from a summary; `lost` are those nobody knows of."""
    at = f"samples.{stream}."
    found = {k.removeprefix(at): n for k, n in summary["metrics"].items() if k.startswith(at)}
    found["lost"] = (
        found["produced"]
        - found["consumed"]
        - found["in_flight"]
        - sum(n for k, n in found.items() if k.startswith("dropped.") and "writer" not in k)
    )
    return found
