"""Real runs in real processes: started, signalled, killed, and watched from outside."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from srl.services.metrics import read_metrics

FAULTY = Path(__file__).with_name("faulty.py")
"""Environments, policies and algorithms that go wrong."""
SMALL = (
    "--set", "actor.envs=8", "--set", "algorithm.rollout_length=32",
    "--set", "logging.interval_seconds=0.1", "--set", "checkpoint.every_seconds=1",
)  # fmt: skip
"""Settings of runs that learn in small steps and write often."""


HOLDING = ("--set", "algorithm.max_policy_age=1", "--set", "algorithm.epochs=60")
"""Settings with which trainers learn for nearly all of their time, and the next batch is ready when
they have done: one that dies holds fragments."""
COMMAND = "import sys; from srl.cli import main; sys.exit(main())"
"""The `srl` command as a program of Python's."""


LIMIT_SECONDS = 240.0
"""How long anything is waited for, to tell a hang: far more than anything here takes, also where
cores have much else to do, and less than pytest gives a test."""


def wait_for(condition: Callable[[], Any], what: object) -> Any:
    """The first true answer; fails with `what`, as it is then, if none comes."""
    deadline = time.monotonic() + LIMIT_SECONDS
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            pytest.fail(f"waited {LIMIT_SECONDS:g} s in vain: {what}")
        time.sleep(0.05)


def runs(process: psutil.Process, word: str) -> bool:
    """Whether a process was started with a word, and is not over yet."""
    try:
        return word in process.cmdline()
    except psutil.Error:
        return False


def started_by(parent: psutil.Process) -> list[psutil.Process]:
    """What a launcher or an agent has started on its host: the children of its reaper."""
    found = []
    for child in parent.children():
        with suppress(psutil.Error):
            if child.cmdline()[-2].endswith("reaper.py"):
                found += child.children()
    return found


def read_summary(run_dir: Path) -> dict[str, Any]:
    return json.loads((run_dir / "summary.json").read_text())


def checkpoints(run_dir: Path) -> list[Path]:
    folder = run_dir / "checkpoints"
    return sorted(path for path in folder.iterdir() if path.name.isdecimal())


class Training:
    """One `srl` command in a process of its own."""

    def __init__(
        self, run_dir: Path, arguments: tuple[str, ...], before: tuple[str, ...] = ()
    ) -> None:
        """`before` is what the command begins with, to run it somewhere else."""
        self.run_dir = run_dir
        self.output = run_dir.with_name(f"{run_dir.name}.out")
        with self.output.open("ab") as output:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-c", COMMAND, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        self.seen: dict[int, psutil.Process] = {}

    @property
    def printed(self) -> str:
        return self.output.read_text()

    def workers(self) -> dict[str, psutil.Process]:
        """Its worker processes, by name."""
        found = {}
        try:
            children = psutil.Process(self.process.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return {}
        for child in children:
            self.seen[child.pid] = child
            try:
                line, status = child.cmdline(), child.status()
            except psutil.Error:
                continue
            if "srl.launch.process.worker" in line and status != psutil.STATUS_ZOMBIE:
                found[line[line.index("srl.launch.process.worker") + 1]] = child
        return found

    def metrics(self) -> dict[str, Any]:
        """The last line of metrics.jsonl."""
        if not (self.run_dir / "metrics.jsonl").exists():
            return {}
        lines = read_metrics(self.run_dir)
        return lines[-1] if lines else {}

    def wait_for_updates(self, more: int = 2) -> None:
        """Waits until it has learned from `more` batches from now on."""
        goal = self.metrics().get("policy_version", 0) + more

        def learned() -> bool:
            self.check_running()
            return self.metrics().get("policy_version", 0) >= goal

        wait_for(learned, f"policy version {goal}: {self.printed}")
        self.workers()

    def check_running(self) -> None:
        if self.process.poll() is not None:
            pytest.fail(f"ended with {self.process.returncode}: {self.printed}")

    def stop(self, number: int = signal.SIGINT) -> int:
        """Sends a signal and waits until the command has ended by itself."""
        self.workers()
        self.process.send_signal(number)
        return self.wait()

    def wait(self, seconds: float = LIMIT_SECONDS) -> int:
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            pytest.fail(f"still running after {seconds:g} s: {self.printed}")

    def survivors(self) -> list[psutil.Process]:
        """Processes that it started and that still run."""
        found = []
        for process in self.seen.values():
            # It may end between the two questions.
            with suppress(psutil.NoSuchProcess):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
        return found

    def kill(self) -> None:
        self.workers()
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for process in self.survivors():
            with suppress(psutil.NoSuchProcess):
                process.kill()
