"""The metrics collector: it turns reports of workers into a snapshot, JSON lines and TensorBoard
curves."""

from __future__ import annotations

import math
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from srl.errors import ConfigError, RunError, nearest
from srl.files import read_lines
from srl.services.messages import Episodes, Evaluation, Message, Note, Update
from srl.services.metric_names import MetricNames
from srl.services.policy_metrics import PolicyMetrics, mean
from srl.services.tensorboard import EventFile, Value
from srl.services.worker_times import WorkerTimes, kept_counts, shares, since

METRICS_FILE = "metrics.jsonl"
POINTS = 20
"""Updates that have a line each at the start of a run, so that a short run has a curve, too."""
MAX_LINE_BYTES = 1 << 20
"""Longest line of metrics.jsonl that is read; a line with ten thousand metrics fits."""
TENSORBOARD = "tensorboard"
SINKS = (TENSORBOARD, "wandb", "mlflow", "prometheus")
"""Names of everything that can get the metrics besides metrics.jsonl."""
_encode_line = msgspec.json.Encoder().encode


@dataclass(frozen=True, kw_only=True)
class LoggingConfig:
    """How often a run writes its metrics, and where."""

    interval_seconds: float = 1.0
    """Most seconds between two lines of metrics.jsonl, and between two points of a TensorBoard
    curve. At the start it is less: a twentieth of the time since the first update. Each of the
    first twenty updates has a line of its own."""
    sinks: tuple[str, ...] = (TENSORBOARD,)
    """Programs that get the metrics besides metrics.jsonl: `tensorboard` (events in the run
    directory), `wandb`, `mlflow`, `prometheus`. Each but the first has an extra of its name."""
    project: str = "srl"
    """The project at W&B, and the experiment in MLflow, that the run belongs to."""
    prometheus_port: int = 9464
    """Port on loopback from which Prometheus fetches metrics; if it is taken, or 0, any free
    port."""
    callbacks: tuple[str, ...] = ()
    """Import paths of callbacks: classes with methods like `on_metrics` and `on_checkpoint`, which
    the controller calls."""
    window: int = 100
    """Number of last training episodes in episode_return_mean and episode_length_mean."""
    rate_seconds: float = 10.0
    """Seconds over which env_steps_per_second is measured."""

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
        for sink in self.sinks:
            if sink not in SINKS:
                raise ConfigError(
                    f"logging.sinks: no sink is named {sink!r}: {nearest(sink, SINKS)}"
                )
        if len(set(self.sinks)) < len(self.sinks):
            raise ConfigError(
                f"logging.sinks: expected each sink once, got {', '.join(self.sinks)}."
            )
        if not self.project.strip():
            raise ConfigError("logging.project: expected a name, got none.")
        if not 0 <= self.prometheus_port < 65536:
            raise ConfigError(
                f"logging.prometheus_port: expected a port, or 0, got {self.prometheus_port}."
            )


class Collector:
    """The metrics of a run, in one place.

    *Consumes* messages (`add`) and worker times (`observe`), *produces* a line of metrics.jsonl and
    a TensorBoard point each interval (`tick`). Nothing here waits; a full disk is a RunError. A
    serial run calls it directly, so `add` only appends, and `tick` returns at once between
    intervals.
    """

    def __init__(self, run_dir: Path, config: LoggingConfig, names: MetricNames) -> None:
        self.run_dir = run_dir
        self.config = config
        self.names = names
        self.path = run_dir / METRICS_FILE
        self.notes: deque[Note] = deque(maxlen=100)
        """The latest notes, for the console."""
        self.between_hosts: Callable[[], dict[str, float]] = dict
        """Counters of the bridges; empty on one host."""
        self._policies = self._records()
        self._hosts: dict[str, float] = {}
        self._seconds_before = 0.0
        self._started: float | None = None
        self._now = 0.0
        self._next_line = -math.inf
        self._first_update: float | None = None
        """Time of the first update since this start of the run."""
        self._updates_with_line = 0
        """Updates since this start of the run that had a line of their own."""
        self._points: deque[tuple[float, int]] = deque()
        self._rate: float | None = None
        self._times: list[WorkerTimes] = []
        self._times_before: list[WorkerTimes] = []
        self._workers: dict[str, float] = {}
        self._events: EventFile | None = None
        self._writes_events = TENSORBOARD in config.sinks
        self.hear: Callable[[Message | dict[str, Value]], None] = lambda what: None
        """Also gets every message that counts, and every line of metrics; for callbacks."""

    def _records(self) -> dict[str, PolicyMetrics]:
        names, window = self.names, self.config.window
        return {policy: PolicyMetrics(policy, names, window) for policy in names.policies}

    def add(self, message: Message) -> None:
        """Takes one message of a worker; ignores messages about policies that the run does not
        have."""
        if isinstance(message, Note):
            self.notes.append(message)
            return
        record = self._policies.get(message.policy)
        if record is None:
            return
        match message:
            case Episodes():
                record.add_episodes(message)
            case Update():
                record.add_update(message)
            case Evaluation():
                record.add_evaluation(message)
        self.hear(message)

    def observe(self, times: list[WorkerTimes]) -> None:
        """Takes the workers' times since they started; a line shows shares since the line
        before."""
        self._times = times

    @property
    def env_steps(self) -> int:
        """Environment steps consumed by the policy that has consumed the most."""
        return max((int(p.totals.get("env_steps", 0)) for p in self._policies.values()), default=0)

    def count_consumed(self, policy: str, counts: dict[str, int]) -> None:
        """Takes `env_steps`, `agent_steps` and `policy_version` of a policy's trainer, whose last
        messages may be lost. Counts never go back."""
        record = self._policies.get(policy)
        if record is not None:
            for name, count in counts.items():
                record.totals[name] = max(count, int(record.totals.get(name, 0)))

    def consumed(self, policy: str) -> dict[str, int]:
        """Environment and agent steps that a policy has learned from, as far as is known."""
        totals = self._policies[policy].totals if policy in self._policies else {}
        return {name: int(totals.get(name, 0)) for name in ("env_steps", "agent_steps")}

    def seconds(self, now: float) -> float:
        """Seconds of training since the first tick, including those before a resume."""
        return self._seconds_before + (now - self._started if self._started is not None else 0.0)

    @property
    def scores(self) -> dict[str, float]:
        """The scores that select the best checkpoints, where they are known.

        There is one for each policy that learns, or for each side (POLICY/SIDE) if it plays
        several.
        """
        each = [self._policies[name].scores for name in self.names.learning]
        return {n: float(s) for found in each for n, s in found.items() if math.isfinite(s)}

    def snapshot(self) -> dict[str, Value]:
        """The latest metrics by name (see `MetricNames`).

        Metrics of progress also exist for all policies together: counters are those of the policy
        that is furthest. Returns are by policy only.
        """
        values: dict[str, Value] = {
            "seconds": self.seconds(self._now),
            "env_steps": 0,
            "episodes": 0,
            "policy_version": 0,
        }
        values.update(self._over_policies())
        for record in self._policies.values():
            values.update(record.values())
        if self._rate is not None:
            values["env_steps_per_second"] = self._rate
        values.update(self._workers)
        values.update(kept_counts(self._times))
        values.update(self._hosts)
        return values

    @property
    def has_news(self) -> bool:
        """Whether the last update gets a line of its own, as the first ones do."""
        return (
            self._updates_with_line < POINTS
            and bool(self._points)
            and self.env_steps > self._points[-1][1]
        )

    def tick(self, now: float, *, force: bool = False) -> bool:
        """Writes a line and a point if there are news or the interval is over; returns whether it
        wrote.

        `now` is `time.monotonic()`. `force` writes in any case (the last line of a run).
        """
        news, steps = self.has_news, self.env_steps
        if self._first_update is None and self._points and steps > self._points[0][1]:
            self._first_update = self._next_line = now
        if now < self._next_line and not news and not force:
            return False
        self._updates_with_line += news
        if self._started is None:
            self._started = self._now = now
            self._points.append((now, steps))
        elapsed = now - self._now
        self._now = now
        interval = self.config.interval_seconds
        if self._first_update is not None:
            interval = min(interval, (now - self._first_update) / POINTS)
        self._next_line = now + interval
        self._measure_rate(now)
        self._hosts = self.between_hosts()
        if elapsed > 0:
            self._workers = _worker_values(since(self._times, self._times_before), elapsed)
            self._times_before = self._times
        wall = time.time()
        values = self.snapshot()
        try:
            self._write_line({"time": wall, **values, **_worker_totals(self._times)})
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        if self._writes_events:
            with self._without_events():
                self._write_events(values, wall)
        self.hear(values)
        return True

    def close(self) -> None:
        """Closes the TensorBoard file; the collector can still be used."""
        if self._events is not None:
            events, self._events = self._events, None
            with self._without_events():
                events.close()

    @contextmanager
    def _without_events(self) -> Iterator[None]:
        """Goes on without TensorBoard curves after an error, which it notes once."""
        try:
            yield
        except OSError as error:
            self._writes_events = False
            text = (
                f"TensorBoard curves end here ({error.strerror or error}); {METRICS_FILE} goes on"
            )
            self.notes.append(Note("controller", "warning", text))

    def state(self, now: float) -> dict[str, Any]:
        """The state with which a resumed run continues its counts."""
        return {
            "seconds": self.seconds(now),
            "policies": {name: record.state() for name, record in self._policies.items()},
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`; new lines are appended to metrics.jsonl."""
        self._seconds_before = float(state["seconds"])
        self._started, self._now, self._next_line, self._first_update = None, 0.0, -math.inf, None
        self._updates_with_line = 0
        self._points.clear()
        self._policies = self._records()
        for name, record in self._policies.items():
            if name in state["policies"]:
                record.restore(state["policies"][name])

    def _over_policies(self) -> dict[str, Value]:
        """Metrics of the progress of all policies together."""
        records = [self._policies[name] for name in self.names.learning or self._policies]
        totals = [record.totals for record in records if record.totals]
        values: dict[str, Value] = {"episodes": max(record.episodes for record in records)}
        if totals:
            for key in ("env_steps", "policy_version", "policy_age_max"):
                values[key] = max(total[key] for total in totals)
            values["agent_steps"] = sum(total["agent_steps"] for total in totals)
            values["policy_age_mean"] = mean(total["policy_age_mean"] for total in totals)
        return values

    def _measure_rate(self, now: float) -> None:
        # Only points at which the counter moved are kept. An update may take longer than the
        # interval, and the rate would otherwise jump between zero and a peak.
        points, steps = self._points, self.env_steps
        if steps != points[-1][1]:
            points.append((now, steps))
        while len(points) > 2 and points[1][0] < now - self.config.rate_seconds:
            points.popleft()
        if now > points[0][0]:
            self._rate = (steps - points[0][1]) / (now - points[0][0])

    def _write_line(self, values: dict[str, Value]) -> None:
        with self.path.open("ab") as file:
            # An incomplete line of a killed run must not spoil the next one.
            torn = file.tell() > 0 and not _ends_with_newline(self.path)
            file.write((b"\n" if torn else b"") + _encode_line(values) + b"\n")

    def _write_events(self, values: dict[str, Value], wall: float) -> None:
        steps = int(values["env_steps"])
        if self._events is None:
            self._events = EventFile(self.run_dir, wall, steps)
        self._events.write(values, wall, steps)


def saved_names(state: dict[str, Any], learning: Sequence[str]) -> MetricNames:
    """The names of the metrics in a saved `Collector.state`, without the environment."""
    policies = state["policies"]
    return MetricNames(
        {name: tuple(saved.get("sides", ())) for name, saved in policies.items()},
        learning,
        tuple({name: None for saved in policies.values() for name in saved.get("actors", ())}),
    )


_Int64 = Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)]
_line_decoder = msgspec.json.Decoder(dict[str, float | _Int64 | bool | None])


def read_metrics(run_dir: Path) -> list[dict[str, Any]]:
    """The lines of a run's metrics.jsonl as one history.

    A resumed run may start from before the last line; the lines that it then writes replace the
    older ones. A line that is incomplete, or has values that are not numbers, is skipped.
    """
    path = run_dir / METRICS_FILE
    try:
        found = list(read_lines(path, MAX_LINE_BYTES))
    except OSError as error:
        raise RunError(
            f"{path}: expected the metrics of a run, got {error.strerror}. Is this a run directory?"
        ) from None
    lines: list[dict[str, Any]] = []
    for raw in found:
        line = decode_line(raw)
        if line is None:
            continue
        while lines and lines[-1]["env_steps"] > line["env_steps"]:
            lines.pop()
        lines.append(line)
    return lines


def decode_line(raw: bytes) -> dict[str, Any] | None:
    """The metrics in a line of metrics.jsonl; None if it is incomplete, or has values that are not
    numbers."""
    try:
        line = _line_decoder.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return line if isinstance(line.get("env_steps"), int) else None


def _worker_values(times: list[WorkerTimes], seconds: float) -> dict[str, float]:
    values: dict[str, float] = {}
    for kind, share in shares(times, seconds).items():
        values[f"workers.{kind}.busy"] = share.busy
        values.update((f"workers.{kind}.wait.{name}", s) for name, s in share.waits.items())
    return values


def _worker_totals(times: list[WorkerTimes]) -> dict[str, float]:
    """Seconds since the start, summed over all workers of a kind, and the number of workers.

    A worker adds to its times when one of its steps is over, which may take longer than the
    interval. Shares over several lines are differences of these sums.
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
