"""One measured run: the whole system in a process of its own, until its time window is full.

The window begins when the run has learned for `warmup` seconds. It ends with the first learner step
at least `seconds` later, so it contains neither start-up nor shutdown. Then the run is stopped in
the same way as by Ctrl-C.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import msgspec

from srl.bench.usage import Usage, Used
from srl.errors import RunError
from srl.experiment import Experiment
from srl.reporting.summary import read_summary
from srl.services.metric_names import columns
from srl.services.metrics import METRICS_FILE
from srl.settings import convert, to_plain

START_SECONDS = 120.0
"""Time limit for the first learner step of a run."""
INTERVAL_SECONDS = 0.2
"""Interval between two lines of metrics."""
TIMES_PREFIX = "worker_seconds."
"""Prefix of the names in a line that hold the seconds of each worker kind."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
    """The result of a window."""

    steps_per_second: float
    seconds: float
    """Length of the window."""
    policy_age_mean: float
    workers: dict[str, dict[str, float]]
    """The time of each worker kind as shares: `busy`, and one share for each kind of wait."""
    bottleneck: str = ""
    """The part of the run that limits its speed, in words."""
    setting: str | None = None
    """The one setting to change, or None where none would help."""
    core_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """Core-seconds of a step, by the kind of the worker whose process used them."""
    idle_cores: float = 0.0
    """Share of the machine that was idle in the window."""
    other_load: float = 0.0
    """Share of the machine that other programs used in the window."""


class Window:
    """Collects lines of metrics until they fill the window."""

    def __init__(self, warmup: float, seconds: float) -> None:
        self.warmup, self.seconds = warmup, seconds
        self._lines: list[dict[str, Any]] = []
        self._begin: float | None = None
        self._steps = 0
        self.begun = False
        """Whether the window has begun: the first learner step after the warm-up has ended."""
        self.learning = False
        """Whether the first learner step is done."""
        self.full = False

    def add(self, line: dict[str, Any]) -> None:
        """Takes the next line. It counts if a learner step has ended since the line before."""
        steps, now = _env_steps(line), float(line["seconds"])
        moved, self._steps = steps > self._steps, steps
        if self.full or steps == 0:
            return
        if self._begin is None:
            self._begin = now + self.warmup
            self.learning = True
        if now < self._begin or not moved:
            return
        self.begun = True
        self._lines.append({**line, "env_steps": steps})
        self.full = now - self._lines[0]["seconds"] >= self.seconds

    def rate(self) -> Rate:
        """The result of the window, from its first learner step to its last."""
        points = self._lines
        if len(points) < 2:
            raise RunError(
                f"bench: expected at least two learner steps in the window, got {len(points)}. "
                "Measure for longer: --seconds."
            )
        first, last = points[0], points[-1]
        elapsed = last["seconds"] - first["seconds"]
        ages = [line["policy_age_mean"] for line in points[1:] if "policy_age_mean" in line]
        return Rate(
            steps_per_second=(last["env_steps"] - first["env_steps"]) / elapsed,
            seconds=elapsed,
            policy_age_mean=sum(ages) / len(ages) if ages else 0.0,
            workers=_shares(first, last),
        )


def _env_steps(line: dict[str, Any]) -> int:
    """Environment steps that every learning policy has learned from."""
    each = [line[key] for key in columns(line, "env_steps").values()]
    return int(min(each, default=0))


def _shares(first: dict[str, Any], last: dict[str, Any]) -> dict[str, dict[str, float]]:
    """The time of each worker kind between two lines, as shares; the lines hold totals."""
    found: dict[str, dict[str, float]] = {}
    elapsed = last["seconds"] - first["seconds"]
    for key, total in last.items():
        if not key.startswith(TIMES_PREFIX):
            continue
        kind, _, what = key.removeprefix(TIMES_PREFIX).partition(".")
        if what != "workers":
            available = elapsed * last[f"{TIMES_PREFIX}{kind}.workers"]
            # A worker that was started again counts from zero.
            added = max(0.0, total - first.get(key, 0.0))
            found.setdefault(kind, {})[what.removeprefix("wait.")] = min(1.0, added / available)
    return found


def run_trial(experiment: Experiment, *, seconds: float, warmup: float, dataflow: str = "") -> Rate:
    """Runs the experiment until its window is full; `dataflow` changes its graph."""
    logging = dataclasses.replace(experiment.logging, interval_seconds=INTERVAL_SECONDS, sinks=())
    changed = dataclasses.replace(
        experiment, logging=logging, dataflow=dataflow or experiment.dataflow
    )
    with tempfile.TemporaryDirectory(prefix="srl-bench-") as folder:
        run_dir = Path(folder) / "run"
        with subprocess.Popen(
            [sys.executable, "-m", "srl.bench.trial", str(run_dir)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        ) as child:
            try:
                assert child.stdin is not None
                child.stdin.write(msgspec.json.encode(to_plain(changed)) + b"\n")
                child.stdin.flush()
                window = Window(warmup, seconds)
                used = _watch(child, run_dir / METRICS_FILE, window)
            finally:
                _stop(child)
        summary = read_summary(run_dir)
    rate = window.rate()
    return dataclasses.replace(
        rate,
        bottleneck=summary.bottleneck,
        setting=summary.bottleneck_setting,
        core_seconds={kind: cores / rate.steps_per_second for kind, cores in used.cores.items()},
        idle_cores=used.idle,
        other_load=used.others,
    )


def _watch(child: subprocess.Popen[bytes], path: Path, window: Window) -> Used:
    """Adds lines of the run to the window until it is full; returns how cores were used in it."""
    position = 0
    usage = Usage(os.getpid())
    deadline = time.monotonic() + START_SECONDS
    while not window.full:
        if child.poll() is not None:
            assert child.stderr is not None
            output = child.stderr.read().decode(errors="replace").strip()
            raise RunError(
                f"the measured run ended before its window was full: {output or 'no message'}"
            )
        if time.monotonic() > deadline and not window.learning:
            raise RunError(
                f"the measured run has not learned anything in {START_SECONDS:.0f} s. Try "
                "it with `srl train`."
            )
        time.sleep(INTERVAL_SECONDS / 2)
        if path.exists():
            with path.open("rb") as file:
                file.seek(position)
                lines, newline, _ = file.read().rpartition(b"\n")
            position += len(lines) + len(newline)
            before = window.begun
            for line in lines.splitlines():
                window.add(msgspec.json.decode(line))
            if window.begun and not before:
                usage = Usage(os.getpid())
    return usage.so_far()


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ends the run as Ctrl-C would, and kills it if it does not end within a minute."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
    try:
        child.wait(timeout=60.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _end_with_parent() -> None:
    """Ends the run as Ctrl-C would, once standard input ends: the measuring process is gone."""
    # No buffered read: a thread that waits in one keeps the interpreter from a clean exit.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main() -> int:
    """The main function of the measured run's process. It reads the experiment as a line of JSON
    from standard input, which stays open for as long as the parent lives."""
    from srl.errors import SrlError
    from srl.launch.run.launch import launch

    experiment = convert(msgspec.json.decode(sys.stdin.buffer.readline()), Experiment, "")
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        launch(experiment, Path(sys.argv[1]), quiet=True)
    except SrlError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
