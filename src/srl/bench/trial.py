"""One measured run: the real system in a process of its own, watched until its window is full.

The window begins when the run has learned for `warmup` seconds and ends with the first learner step
that is at least `seconds` later, so start-up and the shut-down are not in it. The run is then
stopped as Ctrl-C would stop it.
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
from srl.services.metrics import METRICS_FILE
from srl.services.summary import read_summary
from srl.settings import convert, to_plain

START_SECONDS = 120.0
"""How long a run may take to its first learner step."""
LINE_SECONDS = 0.2
"""Between two lines of metrics."""
TOTALS = "worker_seconds."
"""What the seconds of each worker kind are called in a line."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rate:
    """What a window shows."""

    steps_per_second: float
    seconds: float
    """Of the window."""
    policy_age_mean: float
    workers: dict[str, dict[str, float]]
    """Where the time of each worker kind went: shares of it by `busy` and what was waited for."""
    bottleneck: str = ""
    """What held the run back, in words."""
    setting: str | None = None
    """The one setting to change, or None where none would help."""
    core_seconds: dict[str, float] = dataclasses.field(default_factory=dict)
    """What a step took of the cores' time, by the worker kind whose process it was."""
    idle_cores: float = 0.0
    """Share of the machine that nobody used in the window."""
    other_load: float = 0.0
    """Share of the machine that other programs used in the window."""


class Window:
    """Lines of metrics, and whether enough of them have come."""

    def __init__(self, warmup: float, seconds: float) -> None:
        self.warmup, self.seconds = warmup, seconds
        self._lines: list[dict[str, Any]] = []
        self._begin: float | None = None
        self._steps = 0
        self.begun = False
        """Whether the warm-up is over, and a learner step after it."""
        self.learning = False
        """Whether a first learner step is done."""
        self.full = False

    def add(self, line: dict[str, Any]) -> None:
        """Takes the next line; it counts if a learner step ended since the one before."""
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
        """What the window shows, from its first learner step to its last."""
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
    """Environment steps that all policies which learn have learned from."""
    each = [v for k, v in line.items() if k.startswith("policies.") and k.endswith(".env_steps")]
    return int(min(each, default=line.get("env_steps", 0)))


def _shares(first: dict[str, Any], last: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Where the time of each worker kind went between two lines, from its times since the start."""
    found: dict[str, dict[str, float]] = {}
    elapsed = last["seconds"] - first["seconds"]
    for key, total in last.items():
        if not key.startswith(TOTALS):
            continue
        kind, _, what = key.removeprefix(TOTALS).partition(".")
        if what != "workers":
            whole = elapsed * last[f"{TOTALS}{kind}.workers"]
            # A worker that was started anew counts from zero.
            added = max(0.0, total - first.get(key, 0.0))
            found.setdefault(kind, {})[what.removeprefix("wait.")] = min(1.0, added / whole)
    return found


def run_trial(experiment: Experiment, *, seconds: float, warmup: float, dataflow: str = "") -> Rate:
    """Runs the experiment until its window is full; `dataflow` changes its graph."""
    logging = dataclasses.replace(
        experiment.logging, interval_seconds=LINE_SECONDS, tensorboard=False
    )
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
    """Feeds the run's lines to the window until that is full; says who used the cores in it."""
    position = 0
    usage = Usage(os.getpid())
    patience = time.monotonic() + START_SECONDS
    while not window.full:
        if child.poll() is not None:
            assert child.stderr is not None
            said = child.stderr.read().decode(errors="replace").strip()
            raise RunError(f"the measured run ended before its window was full: {said or 'silent'}")
        if time.monotonic() > patience and not window.learning:
            raise RunError(
                f"the measured run has not learned anything in {START_SECONDS:.0f} s. Does "
                "`srl train` get on with it?"
            )
        time.sleep(LINE_SECONDS / 2)
        if path.exists():
            with path.open("rb") as file:
                file.seek(position)
                whole, newline, _ = file.read().rpartition(b"\n")
            position += len(whole) + len(newline)
            before = window.begun
            for line in whole.splitlines():
                window.add(msgspec.json.decode(line))
            if window.begun and not before:
                usage = Usage(os.getpid())
    return usage.so_far()


def _stop(child: subprocess.Popen[bytes]) -> None:
    """Ends the run as Ctrl-C would, and for certain if it does not."""
    if child.poll() is None:
        child.send_signal(signal.SIGINT)
    try:
        child.wait(timeout=60.0)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _end_with_parent() -> None:
    """Ends the run as Ctrl-C would when standard input does: whoever measures is gone."""
    # Without Python's buffers: a thread that waits in those keeps the interpreter from ending well.
    while os.read(0, 1):
        pass
    os.kill(os.getpid(), signal.SIGINT)


def main() -> int:
    """The measured run's own process: its experiment comes as a line of JSON on standard input,
    which stays open for as long as the parent lives."""
    from srl.errors import SrlError
    from srl.launch.launch import launch

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
