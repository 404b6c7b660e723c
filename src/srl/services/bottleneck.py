"""Says why a run is slow: which part all others wait for, and the one setting to change."""

from __future__ import annotations

from collections import defaultdict

import msgspec


class WorkerTimes(msgspec.Struct, kw_only=True):
    """Where one worker's time went since it started."""

    kind: str
    """"actor", "policy", "trainer", "evaluator", or a kind of the user's own."""
    name: str
    process: str = ""
    """Workers with the same non-empty process take turns in one thread."""
    busy_seconds: float = 0.0
    waits: dict[str, float] = {}
    """Seconds by what was waited for.

    Actors: inference, slots, policy_age. Policy: requests. Trainer: samples. Evaluator: weights.
    """
    cpu_seconds: float = 0.0
    """Of its process; where several workers share one, each says its own part."""
    counters: dict[str, float] = {}


class Share(msgspec.Struct, frozen=True):
    """Where the time of one worker kind went, as shares of 1."""

    busy: float
    waits: dict[str, float]

    @property
    def longest_wait(self) -> str | None:
        """What it waited for most, if it waited at all."""
        return max(self.waits, key=self.waits.__getitem__) if self.waits else None


def shares(times: list[WorkerTimes], seconds: float) -> dict[str, Share]:
    """The share of time that each worker kind was busy or waited, over `seconds` of wall time.

    A worker alone in its process is always either busy or waiting, so the shares are of the time it
    lived; one that shares a process also stands still while the others run, so its shares are of
    the wall time.
    """
    crowd: dict[str, int] = defaultdict(int)
    for worker in times:
        crowd[worker.process] += 1
    whole: dict[str, float] = defaultdict(float)
    busy: dict[str, float] = defaultdict(float)
    waits: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    for worker in times:
        lived = worker.busy_seconds + sum(worker.waits.values())
        if worker.process and crowd[worker.process] > 1:
            lived = max(lived, seconds)
        whole[worker.kind] += lived
        busy[worker.kind] += worker.busy_seconds
        for name, waited in worker.waits.items():
            waits[worker.kind][name] += waited
    return {
        kind: Share(busy[kind] / lived, {n: s / lived for n, s in waits[kind].items() if s > 0})
        for kind, lived in whole.items()
        if lived > 0
    }


def since(now: list[WorkerTimes], before: list[WorkerTimes]) -> list[WorkerTimes]:
    """What was added to `now` after `before`; a worker that started anew counts from zero."""
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
