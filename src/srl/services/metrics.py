"""One collector turns what workers report into a snapshot, JSON lines and TensorBoard curves."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from srl.errors import ConfigError, RunError
from srl.services.bottleneck import WorkerTimes, shares, since
from srl.services.events import EventFile, Value
from srl.services.messages import Episodes, Evaluation, Message, Note, Update
from srl.services.policy_record import PolicyRecord, mean
from srl.services.until import Until as Until
from srl.services.until import parse_until as parse_until

METRICS_FILE = "metrics.jsonl"
_encode_line = msgspec.json.Encoder().encode


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """How often a run writes down how it is doing, and where."""

    interval_seconds: float = 1.0
    """Seconds between two lines of metrics.jsonl (and two points of every TensorBoard curve)."""
    tensorboard: bool = True
    """Write TensorBoard events into the run directory."""
    window: int = 100
    """Training episodes behind episode_return_mean and episode_length_mean."""
    rate_seconds: float = 10.0
    """Seconds behind env_steps_per_second."""

    def __post_init__(self) -> None:
        if self.interval_seconds <= 0:
            raise ConfigError(
                f"logging.interval_seconds: expected more than 0, got {self.interval_seconds}."
            )
        if self.window < 1:
            raise ConfigError(f"logging.window: expected at least 1, got {self.window}.")
        if self.rate_seconds <= 0:
            raise ConfigError(
                f"logging.rate_seconds: expected more than 0, got {self.rate_seconds}."
            )


class Collector:
    """Everything a run knows about itself, in one place.

    *Consumes* messages (`add`) and worker times (`observe`), *produces* a line of metrics.jsonl and
    a TensorBoard point each interval (`tick`). Nothing here waits; a full disk is a RunError. In a
    serial run it is called directly, so `add` only appends and `tick` returns at once between
    intervals.
    """

    def __init__(self, run_dir: Path, config: LoggingConfig) -> None:
        self.run_dir = run_dir
        self.config = config
        self.path = run_dir / METRICS_FILE
        self.notes: deque[Note] = deque(maxlen=100)
        """The latest notes, for the console to take."""
        self.between_hosts: Callable[[], dict[str, float]] = dict
        """What gates have counted; nothing where there is one host."""
        self._policies: dict[str, PolicyRecord] = {}
        self._hosts: dict[str, float] = {}
        self._seconds_before = 0.0
        self._started: float | None = None
        self._now = 0.0
        self._next = -math.inf
        self._points: deque[tuple[float, int]] = deque()
        self._rate: float | None = None
        self._times: list[WorkerTimes] = []
        self._times_before: list[WorkerTimes] = []
        self._workers: dict[str, float] = {}
        self._events: EventFile | None = None

    def add(self, message: Message) -> None:
        """Takes one message of a worker."""
        if isinstance(message, Note):
            self.notes.append(message)
            return
        record = self._policies.get(message.policy)
        if record is None:
            record = self._policies[message.policy] = PolicyRecord(self.config.window)
        match message:
            case Episodes():
                record.add_episodes(message)
            case Update():
                record.add_update(message)
            case Evaluation():
                record.add_evaluation(message)

    def observe(self, times: list[WorkerTimes]) -> None:
        """Takes the workers' times since they started; lines show shares since the line before."""
        self._times = times

    @property
    def env_steps(self) -> int:
        """Environment steps consumed by the policy that has consumed most."""
        return max((int(p.totals.get("env_steps", 0)) for p in self._policies.values()), default=0)

    def consumed(self, policy: str) -> dict[str, int]:
        """What a policy is known to have learned from, in environment and agent steps."""
        totals = self._policies[policy].totals if policy in self._policies else {}
        return {name: int(totals.get(name, 0)) for name in ("env_steps", "agent_steps")}

    def seconds(self, now: float) -> float:
        """Seconds of training since the first tick, those before a resume included."""
        return self._seconds_before + (now - self._started if self._started is not None else 0.0)

    @property
    def score(self) -> float | None:
        """What makes a checkpoint best: the evaluation's mean return, else the full window's."""
        values = self.snapshot()
        if (score := values.get("eval_return_mean")) is None and values["window_full"]:
            score = values.get("episode_return_mean")
        return float(score) if score is not None and math.isfinite(score) else None

    def snapshot(self) -> dict[str, Value]:
        """The latest numbers by name.

        With several policies, `policies.<name>.*` has each one's; the plain names are then means
        over the policies that learn, and counters are those of the policy that is furthest.
        """
        each = {name: record.values() for name, record in sorted(self._policies.items())}
        values: dict[str, Value] = {
            "seconds": self.seconds(self._now),
            "env_steps": 0,
            "episodes": 0,
            "policy_version": 0,
            "window_full": False,
        }
        if len(each) == 1:
            values.update(*each.values())
        elif each:
            values.update(_over_policies(each))
            for name, own in each.items():
                values.update((f"policies.{name}.{key}", value) for key, value in own.items())
        if self._rate is not None:
            values["env_steps_per_second"] = self._rate
        values.update(self._workers)
        values.update(self._hosts)
        return values

    def tick(self, now: float, *, force: bool = False) -> bool:
        """Writes a line and a point if the interval is over; `now` is `time.monotonic()`.

        Returns whether it wrote. `force` writes in any case (the last line of a run).
        """
        if now < self._next and not force:
            return False
        if self._started is None:
            self._started = self._now = now
            self._points.append((now, self.env_steps))
        elapsed = now - self._now
        self._now = now
        self._next = now + self.config.interval_seconds
        self._measure_rate(now)
        self._hosts = self.between_hosts()
        if elapsed > 0:
            self._workers = _worker_values(since(self._times, self._times_before), elapsed)
            self._times_before = self._times
        wall = time.time()
        values = self.snapshot()
        try:
            self._write_line({"time": wall, **values, **_worker_totals(self._times)})
            self._write_events(values, wall)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        return True

    def close(self) -> None:
        """Closes the TensorBoard file; the collector itself may go on."""
        if self._events is not None:
            events, self._events = self._events, None
            try:
                events.close()
            except OSError as error:
                raise _cannot_write(self.path, error) from error

    def state(self, now: float) -> dict[str, Any]:
        """All that a resumed run needs to go on counting."""
        return {
            "seconds": self.seconds(now),
            "policies": {name: record.state() for name, record in self._policies.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Goes on from `state`; metrics.jsonl is appended to."""
        self._seconds_before = float(state["seconds"])
        self._started, self._now, self._next = None, 0.0, -math.inf
        self._points.clear()
        self._policies = {
            name: PolicyRecord.restored(self.config.window, policy)
            for name, policy in state["policies"].items()
        }

    def _measure_rate(self, now: float) -> None:
        # A point is kept only where the counter moved: an update may take longer than the interval,
        # and the rate would otherwise jump between zero and a peak.
        points, steps = self._points, self.env_steps
        if steps != points[-1][1]:
            points.append((now, steps))
        while len(points) > 2 and points[1][0] < now - self.config.rate_seconds:
            points.popleft()
        if now > points[0][0]:
            self._rate = (steps - points[0][1]) / (now - points[0][0])

    def _write_line(self, values: dict[str, Value]) -> None:
        with self.path.open("ab") as file:
            # A run that was killed in the middle of a line must not spoil the next one.
            torn = file.tell() > 0 and not _ends_with_newline(self.path)
            file.write((b"\n" if torn else b"") + _encode_line(values) + b"\n")

    def _write_events(self, values: dict[str, Value], wall: float) -> None:
        if not self.config.tensorboard:
            return
        steps = int(values["env_steps"])
        if self._events is None:
            self._events = EventFile(self.run_dir, wall, steps)
        self._events.write(values, wall, steps)


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl as one forward history.

    A resumed run may start from before the last line; what it then wrote again replaces the older
    lines. A torn line is skipped.
    """
    path = run_dir / METRICS_FILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RunError(
            f"{path}: expected the metrics of a run, got {error.strerror}. Is this a run directory?"
        ) from None
    lines: list[dict[str, Any]] = []
    for raw in data.splitlines():
        try:
            line = msgspec.json.decode(raw)
        except msgspec.DecodeError:
            continue
        if not isinstance(line, dict) or "env_steps" not in line:
            continue
        while lines and lines[-1]["env_steps"] > line["env_steps"]:
            lines.pop()
        lines.append(line)
    return lines


def _over_policies(each: dict[str, dict[str, Value]]) -> dict[str, Value]:
    learning = [own for own in each.values() if "policy_version" in own] or list(each.values())
    values: dict[str, Value] = {"window_full": all(own["window_full"] for own in learning)}
    for key in ("env_steps", "episodes", "policy_version", "policy_age_max"):
        values[key] = max((own[key] for own in learning if key in own), default=0)
    values["agent_steps"] = sum(own.get("agent_steps", 0) for own in learning)
    for key in (
        "policy_age_mean",
        "episode_return_mean",
        "episode_length_mean",
        "eval_return_mean",
        "eval_length_mean",
    ):
        if found := [own[key] for own in learning if key in own]:
            values[key] = mean(found)
    return values


def _worker_values(times: list[WorkerTimes], seconds: float) -> dict[str, float]:
    values: dict[str, float] = {}
    for kind, share in shares(times, seconds).items():
        values[f"workers.{kind}.busy"] = share.busy
        values.update((f"workers.{kind}.wait.{name}", s) for name, s in share.waits.items())
    return values


def _worker_totals(times: list[WorkerTimes]) -> dict[str, float]:
    """Seconds since the start, of all workers of a kind together, and how many they are.

    A worker adds to its times when a step of it is over, which may take longer than the interval;
    shares over several lines are differences of these.
    """
    totals: dict[str, float] = {}
    for worker in times:
        start = f"worker_seconds.{worker.kind}."
        each = {"busy": worker.busy_seconds, "workers": 1.0}
        each |= {f"wait.{name}": s for name, s in worker.waits.items() if s > 0}
        for name, value in each.items():
            totals[start + name] = totals.get(start + name, 0.0) + value
    return totals


def _ends_with_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


def _cannot_write(path: Path, error: OSError) -> RunError:
    try:
        free = f"{shutil.disk_usage(path.parent).free} bytes are free there"
    except OSError:
        free = "the folder is gone"
    return RunError(
        f"{path}: cannot write metrics ({error.strerror or error}); {free}. "
        "Free some space or check the folder's permissions, then resume the run."
    )
