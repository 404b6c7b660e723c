"""How long a run stands still after the loss of one process, by kind of process.

CartPole with 4 actors, 2 policy workers and 2 trainers. One process after another is killed (-9) or
stopped (-STOP): an actor, a policy worker, a trainer, and in the layout `remote` also the bridge of
each host and the agent of each other host. After every strike the table has the longest time
without an environment step of any actor, the longest time without an update, and the time until
the run is complete again: the victim and the workers of its host are replaced, and steps and
updates go on. In `remote` actors and policy workers are on hosts of their own (folders of this
machine). All settings that judge silence are the defaults. Leaves out: the death of the command
itself, and several machines.

    python benchmarks/bench_recovery.py [--rounds 3] [--layouts shared remote] [--only agent bridge]
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil
from results import write_result

from srl.arena.shm import ROOT_VARIABLE, ShmArena, shm_root
from srl.launch.run.status import read_status
from srl.services.worker_stats import ROW_BYTES, StatsTable

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from chaos import bridges_and_agents
from harness import Training

LIMIT_SECONDS = 90.0
"""The longest time that one strike is watched."""
QUIET_SECONDS = 4.0
"""The run is watched for so long after it is complete again."""
LOOK_SECONDS = 0.005
SETTINGS = (
    "--set", "actor.count=4", "--set", "inference.count=2", "--set", "trainer.count=2",
    "--set", "max_restarts=1000", "--set", "restart_window_seconds=2",
    "--set", "checkpoint.every_seconds=2", "--set", "logging.interval_seconds=0.5",
    "--set", "until=return>=100000", "--steps", "1e9",
)  # fmt: skip
VICTIMS = {
    "actor": "actor-",
    "policy worker": "policy-",
    "trainer": "trainer-",
    "bridge at home": "bridge-home",
    "bridge of the actors": "bridge-host-1",
    "bridge of the policies": "bridge-host-2",
    "agent of the actors": "agent-host-1",
    "agent of the policies": "agent-host-2",
}


class Pauses:
    """Looks at the boards of all hosts, and notes when steps and updates were last counted."""

    def __init__(self, shm: Path, run_dir: Path) -> None:
        self._shm, self._run_dir = shm, run_dir
        self._lock = threading.Lock()
        self._counts: dict[str, dict[str, int]] = {"env_steps": {}, "updates": {}}
        self._last = dict.fromkeys(self._counts, time.monotonic())
        self._longest = dict.fromkeys(self._counts, 0.0)
        self._boards: dict[str, StatsTable] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def begin(self) -> None:
        """Forgets the pauses so far."""
        with self._lock:
            self._longest = dict.fromkeys(self._counts, 0.0)
            self._last = dict.fromkeys(self._counts, time.monotonic())

    def longest(self) -> dict[str, float]:
        """The longest pauses since `begin`, those that still last included."""
        with self._lock:
            now = time.monotonic()
            return {what: max(self._longest[what], now - self._last[what]) for what in self._last}

    def goes_on_since(self, when: float) -> bool:
        """Whether both were counted after a time."""
        with self._lock:
            return all(last > when for last in self._last.values())

    def stop(self) -> None:
        """Looks no more."""
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        names: tuple[str, ...] = ()
        while not self._over.wait(LOOK_SECONDS):
            if not names:
                with suppress(Exception):
                    names = tuple(worker.name for worker in read_status(self._run_dir).workers)
                continue
            for path in self._shm.glob("srl-*/worker_stats.region"):
                fits = path.stat().st_size == 64 + ROW_BYTES * len(names)
                if path.parent.name not in self._boards and fits:
                    self._boards[path.parent.name] = StatsTable(ShmArena(path.parent, ""), names)
            with self._lock:
                self._look()

    def _look(self) -> None:
        now = time.monotonic()
        for stats_table in self._boards.values():
            for name, row in stats_table.rows.items():
                what = "updates" if name.startswith("trainer/") else "env_steps"
                if what == "env_steps" and not name.startswith("actor/"):
                    continue
                count = row.get(f"count_{what}")
                # A row that is handed to another host never exceeds what was seen before.
                if count > self._counts[what].get(name, -1):
                    self._counts[what][name] = count
                    self._longest[what] = max(self._longest[what], now - self._last[what])
                    self._last[what] = now


@dataclass(frozen=True)
class Strike:
    """What one strike cost, in seconds."""

    layout: str
    signal: str
    victim: str
    steps: float
    updates: float
    complete: float
    """Infinite if it was not within the limit."""


def _crew(training: Training) -> dict[str, psutil.Process]:
    workers = training.workers()
    return workers | bridges_and_agents(training)


def strike(training: Training, pauses: Pauses, layout: str, victim: str, number: int) -> Strike:
    """Strikes one victim, and watches until everybody is there again."""
    before = _crew(training)
    names = sorted(name for name in before if name.startswith(VICTIMS[victim]))
    struck = before[names[0]]
    pauses.begin()
    begun = time.monotonic()
    os.kill(struck.pid, number)
    replaced, complete = float("inf"), float("inf")
    while time.monotonic() < begun + LIMIT_SECONDS and complete == float("inf"):
        time.sleep(0.05)
        training.check_running()
        now = _crew(training)
        if not (
            names[0] in now and now[names[0]].pid != struck.pid and now.keys() >= before.keys()
        ):
            replaced = float("inf")
        elif replaced == float("inf"):
            replaced = time.monotonic()
        elif pauses.goes_on_since(replaced):
            complete = time.monotonic() - begun
    time.sleep(QUIET_SECONDS)
    longest = pauses.longest()
    with suppress(psutil.Error):
        if struck.status() == psutil.STATUS_STOPPED:
            struck.resume()
    name = signal.Signals(number).name.removeprefix("SIG").lower()
    return Strike(layout, name, victim, longest["env_steps"], longest["updates"], complete)


def run(layout: str, rounds: int, only: list[str]) -> list[Strike]:
    """All strikes of one layout."""
    found = []
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="srl-recovery-", dir=shm_root()) as shm,
    ):
        before = os.environ.get(ROOT_VARIABLE)
        os.environ[ROOT_VARIABLE] = shm
        run_dir = Path(folder) / "run"
        arguments = ("train", "cartpole", "--run-dir", str(run_dir), "--quiet")
        training = Training(run_dir, (*arguments, "--layout", layout, *SETTINGS))
        pauses = Pauses(Path(shm), run_dir)
        try:
            training.wait_for_updates(20)
            names = _crew(training)
            victims = [v for v in VICTIMS if any(n.startswith(VICTIMS[v]) for n in names)]
            victims = [v for v in victims if not only or any(v.startswith(o) for o in only)]
            for number in (signal.SIGKILL, signal.SIGSTOP):
                for victim in victims:
                    for _ in range(rounds):
                        found.append(strike(training, pauses, layout, victim, number))
                        print(found[-1], file=sys.stderr, flush=True)
        finally:
            pauses.stop()
            training.kill()
            for log in (run_dir / "logs").glob("controller.log"):
                print(log.read_text(), file=sys.stderr)
            del os.environ[ROOT_VARIABLE]
            if before is not None:
                os.environ[ROOT_VARIABLE] = before
    return found


def _table(strikes: Iterable[Strike]) -> list[str]:
    kinds: dict[tuple[str, str, str], list[Strike]] = {}
    for one in strikes:
        kinds.setdefault((one.layout, one.signal, one.victim), []).append(one)
    lines = [
        "Medians, with the most in parentheses, in seconds.",
        "",
        "| layout | signal | victim | strikes | no step for | no update for | complete after |",
        "|---|---|---|---|---|---|---|",
    ]
    for (layout, number, victim), some in kinds.items():
        cells = [
            f"{statistics.median(values):.1f} ({max(values):.1f})"
            for values in (
                [one.steps for one in some],
                [one.updates for one in some],
                [one.complete for one in some],
            )
        ]
        lines.append(f"| {layout} | {number} | {victim} | {len(some)} | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3, help="strikes of each kind")
    parser.add_argument("--layouts", nargs="+", default=["shared", "remote"])
    parser.add_argument(
        "--only", nargs="+", default=[], help="kinds of victims, by their beginning"
    )
    options = parser.parse_args()
    strikes: list[Strike] = []
    for layout in options.layouts:
        strikes += run(layout, options.rounds, options.only)
    lines = _table(strikes)
    print("\n".join(lines))
    print(write_result("recovery", __doc__, lines), file=sys.stderr)
    print(json.dumps({"bench": "recovery", "most_seconds": max(one.steps for one in strikes)}))


if __name__ == "__main__":
    main()
