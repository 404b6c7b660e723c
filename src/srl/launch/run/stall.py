"""Detects that a run has stalled: every worker waits, and none has made progress for a while.

The rows of the stats table decide, so a slow environment step, an import, a long update or a
stopped process is no stall: such a worker does not count as waiting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from srl.errors import RunError
from srl.launch.plan.facts import num_envs
from srl.launch.plan.memory import size_text
from srl.plan import Plan, SamplePlan, WorkerPlan
from srl.services.worker_stats import StatsTable, WorkerStats
from srl.streams.sample_accounting import StreamAccount

LOOK_SECONDS = 0.5
"""Time between two looks."""
RECENT_SECONDS = 5.0
"""A waiting worker adds to its waiting time at least this often (its loop does so every second). A
longer pause between two looks means that the head itself was stopped."""
_AWAITED = {
    "samples": "fragments",
    "slots": "a free slot",
    "inference": "actions",
    "policy_age": "newer weights (policy_age)",
    "ratio": "trainers to learn more from what it holds (ratio)",
    "requests": "requests",
    "weights": "weights",
    "workers": "other workers",
    "other": "something of its own",
}
_SHOWN = 8
"""Up to this many workers the message names each one; above that it names their groups."""


class StallWatch:
    """Watches the stats table, and raises RunError when a run has stalled."""

    def __init__(
        self,
        plan: Plan,
        stats_table: StatsTable,
        seconds: float,
        *,
        is_wanted: Callable[[str], bool],
        is_here: Callable[[str], bool],
        carried: Callable[[], float],
        accounts: Callable[[], Mapping[str, StreamAccount]],
    ) -> None:
        """`seconds` is the limit; 0 never raises. `is_wanted` tells whether a process is to run,
        `is_here` whether it runs and can be heard. `carried` counts data between hosts."""
        self._plan = plan
        self._stats_table = stats_table
        self._seconds = seconds
        self._is_wanted = is_wanted
        self._is_here = is_here
        self._carried = carried
        self._accounts = accounts
        self._last = float("-inf")
        """Time of the last look."""
        self._since = float("-inf")
        """Time since which nothing has moved."""
        self._moved: dict[str, object] = {}
        """Each worker's progress at the last look, and the count of data between hosts."""
        self._waits: dict[str, dict[str, int]] = {}
        """Each worker's waiting times at the last look at which they had grown."""
        self._grown: dict[str, float] = {}
        """Time of that look, for each worker."""
        self._awaited: dict[str, str] = {}
        """What each worker waited for at that look."""

    def look(self, now: float) -> None:
        """Takes another look; `now` is `time.monotonic()`."""
        if not self._seconds:
            return
        paused = now - self._last > RECENT_SECONDS
        self._last = now
        if not self._all_wait(now) or paused:
            self._since = now
        elif now - self._since >= self._seconds and self._all_asleep():
            waiting = {w.name: self._awaited.get(w.name, "other") for w in self._workers()}
            raise RunError(stall_text(self._plan, waiting, self._accounts(), now - self._since))

    def _workers(self) -> Iterable[WorkerPlan]:
        """The workers that are to run and have not finished."""
        for worker in self._plan.workers:
            finished = self._stats_table.rows[worker.name].activity == "finished"
            if self._is_wanted(worker.process) and not finished:
                yield worker

    def _all_wait(self, now: float) -> bool:
        """Whether all workers wait, and nothing has moved since the last look."""
        moved: dict[str, object] = {"": self._carried()}
        waits = True
        for worker in self._workers():
            row = self._stats_table.rows[worker.name]
            moved[worker.name] = (row.get("busy_ns"), tuple(row.counters().values()))
            waits = self._waited(worker.name, row, now) and self._is_here(worker.process) and waits
        still = moved == self._moved
        self._moved = moved
        return waits and still

    def _waited(self, name: str, row: WorkerStats, now: float) -> bool:
        """Whether a worker has recently added to its waiting times."""
        before, waits = self._waits.get(name, {}), row.waits()
        grown = {what: ns - before.get(what, 0) for what, ns in waits.items()}
        most = max(grown, key=grown.__getitem__)
        if grown[most] > 0:
            self._waits[name], self._grown[name], self._awaited[name] = waits, now, most
        elif sum(waits.values()) < sum(before.values()):
            self._waits[name] = waits
        return now - self._grown.get(name, float("-inf")) <= RECENT_SECONDS

    def _all_asleep(self) -> bool:
        """Whether every worker also waits at this moment."""
        return all(self._stats_table.rows[w.name].activity == "waiting" for w in self._workers())


def stall_text(
    plan: Plan, waiting: Mapping[str, str], accounts: Mapping[str, StreamAccount], seconds: float
) -> str:
    """The message about a stall: what each worker waits for, what the streams carried, and what to
    change. `waiting` maps workers to their kind of wait."""
    workers = [worker for worker in plan.workers if worker.name in waiting]
    duration = f" for {seconds:.0f} s" if seconds >= 1 else ""
    waits = ", ".join(_list_waits(workers, waiting)) or "all workers have finished"
    flows = "; ".join(_flow(plan, stream, accounts[name]) for name, stream in plan.samples.items())
    told = f" Fragments: {flows}." if flows else ""
    return (
        f"nothing makes progress{duration}: {waits}.{told} "
        f"{_advice(plan, workers, waiting, accounts)}"
    )


def no_update_text(plan: Plan, stats_table: StatsTable, seconds: float) -> str:
    """The message about a run that made no update in its time: how far it came, and what to
    change."""
    actor = plan.experiment["actor"]
    streams = [stream for stream in plan.samples.values() if not stream.has_tables]
    ticks = max(stream.spec.trajectory.length for stream in streams)
    made = sum(stats_table.rows[w.name].get("count_env_steps") for w in plan.workers if w.requests)
    batches = [
        size_text(s.spec.fragments_per_batch * s.parts * s.spec.record.nbytes) for s in streams
    ]
    trained = sum(
        stats_table.rows[w.name].get("count_minibatches") for w in plan.workers if w.trains
    )
    if not any(worker.requests for worker in plan.workers):
        return (
            f"no update was made in {seconds:.0f} s. The first one needs {batches[0]} of samples, "
            f"and trainers have learned from {trained:,} minibatches. Give it more time "
            "(--seconds), or smaller batches."
        )
    return (
        f"no update was made in {seconds:.0f} s. The first one needs {num_envs(plan) * ticks:,} "
        f"environment steps ({batches[0]}), actors have made {made:,} and trainers have "
        f"learned from {trained:,} minibatches. Give it more time "
        f"(--seconds), or smaller batches: actor.envs is {actor['envs']}, "
        f"algorithm.rollout_length {ticks}."
    )


def _list_waits(workers: list[WorkerPlan], waiting: Mapping[str, str]) -> list[str]:
    found: dict[tuple[str, str], int] = {}
    for worker in workers:
        what = _AWAITED.get(waiting[worker.name], waiting[worker.name])
        if worker.reads and waiting[worker.name] == "samples":
            what = f"{what} of {' and '.join(map(repr, worker.reads))}"
        subject = worker.name if len(workers) <= _SHOWN else f"every {worker.group}"
        found[subject, what] = found.get((subject, what), 0) + 1
    return [f"{subject} waits for {what}" for subject, what in found]


def _flow(plan: Plan, stream: SamplePlan, kept: StreamAccount) -> str:
    name = stream.spec.name
    trained = any(name in worker.reads for worker in plan.workers if worker.trains)
    batch = f", a batch takes {stream.spec.fragments_per_batch}" if trained else ""
    lost = sum(kept.dropped.values())
    dropped = f", {lost} dropped" if lost else ""
    return f"{name!r} {kept.produced} written, {kept.consumed} used{dropped}{batch}"


def _advice(
    plan: Plan,
    workers: list[WorkerPlan],
    waiting: Mapping[str, str],
    accounts: Mapping[str, StreamAccount],
) -> str:
    """What to change. The usual cause is a bound on policy age, and a worker between two streams
    that writes less than it reads."""
    bounded = any(s.spec.max_policy_age is not None for s in plan.samples.values())
    between = [w.group for w in plan.workers if w.reads and w.writes and bounded]
    for group in dict.fromkeys(between):
        members = [w for w in plan.workers if w.group == group]
        read = sum(accounts[name].produced for name in {n for w in members for n in w.reads})
        wrote = sum(accounts[name].produced for name in {n for w in members for n in w.writes})
        if wrote < read and all(waiting.get(w.name, "samples") == "samples" for w in members):
            return (
                f"{group} was given {read} fragments and wrote {wrote}. With max_policy_age, "
                f"actors expect that {group} writes as many fragments for each that it reads as "
                "its stream's ratio says (1, unless the dataflow declares another). Let it do so, "
                "declare another ratio, or remove the bound with --set "
                "algorithm.max_policy_age=null."
            )
    return (
        "Look in the logs of the run for the reason why the first of them gets nothing. If workers "
        "wait for something outside of the run, allow more time with --set stall_seconds=... (0: "
        "no limit)."
    )
