"""Time shares of each worker kind: busy, and waiting by reason."""

from __future__ import annotations

from collections import defaultdict

import msgspec

_KEPT = ("inserted", "stored", "sampled", "lost")
"""Counters of workers that keep data."""


class WorkerTimes(msgspec.Struct, kw_only=True):
    """The times and counters of one worker since it started."""

    kind: str
    """The kind of worker: "actor", "policy", "trainer", "evaluator", or one of the user's own."""
    name: str
    process: str = ""
    """The worker's process. Workers with the same non-empty process take turns in one thread."""
    busy_seconds: float = 0.0
    waits: dict[str, float] = {}
    """Seconds of waiting, by reason.

    Actors: inference, slots, policy_age. Policy workers: requests. Trainers: samples. Replay
    workers: samples, ratio. Evaluators: weights.
    """
    cpu_seconds: float = 0.0
    """CPU time of the process; workers that share a process each have their own part."""
    counters: dict[str, float] = {}


class Share(msgspec.Struct, frozen=True):
    """Time shares of one worker kind, from 0 to 1."""

    busy: float
    waits: dict[str, float]

    @property
    def longest_wait(self) -> str | None:
        """The reason of the longest wait; None if there was no wait."""
        return max(self.waits, key=self.waits.__getitem__) if self.waits else None


def shares(times: list[WorkerTimes], seconds: float) -> dict[str, Share]:
    """The share of time that each worker kind was busy or waited, over `seconds` of wall time.

    A worker alone in its process is always either busy or waiting, so its shares are of its
    lifetime. A worker that shares a process also stands still while the others run, so its shares
    are of the wall time.
    """
    workers_in: dict[str, int] = defaultdict(int)
    for worker in times:
        workers_in[worker.process] += 1
    total: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    waits: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for worker in times:
        lifetime = worker.busy_seconds + sum(worker.waits.values())
        if worker.process and workers_in[worker.process] > 1:
            lifetime = max(lifetime, seconds)
        total[worker.kind] += lifetime
        busy[worker.kind] += worker.busy_seconds
        for name, waited in worker.waits.items():
            waits[worker.kind][name] += waited
    return {
        kind: Share(
            busy[kind] / lifetime, {n: s / lifetime for n, s in waits[kind].items() if s > 0}
        )
        for kind, lifetime in total.items()
        if lifetime > 0
    }


def kept_counts(times: list[WorkerTimes]) -> dict[str, float]:
    """What workers of each kind that keeps data (a replay) have stored, kept, drawn and lost."""
    found: dict[str, float] = {}
    keeping = {worker.kind for worker in times if worker.counters.get("inserted")}
    for worker in times:
        for name in _KEPT if worker.kind in keeping else ():
            key = f"replay.{worker.kind}.{name}"
            found[key] = found.get(key, 0) + worker.counters.get(name, 0)
    return found


def since(now: list[WorkerTimes], before: list[WorkerTimes]) -> list[WorkerTimes]:
    """The times that `now` has more than `before`; a worker that has restarted counts from zero."""
    old = {worker.name: worker for worker in before}
    result = []
    for worker in now:
        last = old.get(worker.name)
        if last is None or worker.busy_seconds < last.busy_seconds:
            result.append(worker)
            continue
        result.append(
            WorkerTimes(
                kind=worker.kind,
                name=worker.name,
                process=worker.process,
                busy_seconds=worker.busy_seconds - last.busy_seconds,
                waits={k: max(v - last.waits.get(k, 0.0), 0.0) for k, v in worker.waits.items()},
                cpu_seconds=max(worker.cpu_seconds - last.cpu_seconds, 0.0),
                counters={k: v - last.counters.get(k, 0.0) for k, v in worker.counters.items()},
            )
        )
    return result
