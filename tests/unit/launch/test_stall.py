"""When a run counts as stalled: everyone waits, nothing moves, and nobody is excused."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from srl.arena.arena import HeapArena
from srl.envs.registry import probe
from srl.errors import RunError
from srl.graph import Graph, WorkerGroup
from srl.launch.plan.build import make_plan, resolve_settings
from srl.launch.run.stall import StallWatch
from srl.plan import Plan
from srl.recipes.classic import cartpole
from srl.services.worker_stats import Activity, StatsTable
from srl.streams.sample_accounting import StreamAccount

SECONDS = 30.0
WAITS = {"actor": "policy_age", "policy": "requests", "trainer": "samples", "filter": "samples"}


def with_filter(graph: Graph) -> Graph:
    group = WorkerGroup(kind="srl.workers.relabeller:Relabeller")
    return graph.insert("filter", group, into="default")


@pytest.fixture(scope="module")
def plan() -> Plan:
    experiment = dataclasses.replace(
        cartpole(), layout="shared", dataflow=f"{__name__}:with_filter"
    )
    return make_plan(resolve_settings(experiment, 2, "cpu"), probe(experiment.env), "cpu")[0]


class Watched:
    """A run whose workers, clock and processes are played."""

    def __init__(self, plan: Plan, seconds: float = SECONDS) -> None:
        self.plan = plan
        self.stats_table = StatsTable(HeapArena(), tuple(worker.name for worker in plan.workers))
        self.now = 1000.0
        self.absent: set[str] = set()
        self.unwanted: set[str] = set()
        self.carried = 0
        self.written = {"default": 16, "default/filter": 8}
        self.watch = StallWatch(
            plan,
            self.stats_table,
            seconds,
            is_wanted=lambda process: process not in self.unwanted,
            is_here=lambda process: process not in self.absent,
            carried=lambda: self.carried,
            accounts=lambda: {name: StreamAccount(n, n, {}, 0) for name, n in self.written.items()},
        )

    def turn(self, busy: str = "", activity: Activity = "running") -> None:
        """Half a second in which everyone waits but the `busy` one, which is in a call."""
        self.now += 0.5
        for worker in self.plan.workers:
            row = self.stats_table.rows[worker.name]
            if worker.name == busy:
                row.enter(activity)
            else:
                row.enter("waiting")
                row.add(f"wait_{WAITS[worker.group]}", 500_000_000)
        self.watch.look(self.now)

    def run(self, seconds: float, busy: str = "", activity: Activity = "running") -> None:
        for _ in range(int(2 * seconds)):
            self.turn(busy, activity)

    def stalls(self, seconds: float = SECONDS + 2.0) -> str:
        with pytest.raises(RunError) as caught:
            self.run(seconds)
        return str(caught.value)


def test_a_stall_says_who_waits_for_what_and_what_to_change(plan: Plan) -> None:
    text = Watched(plan).stalls()
    assert "nothing makes progress for 30 s" in text
    assert "actor/0 waits for newer weights (policy_age)" in text
    assert "filter/0 waits for fragments of 'default'" in text
    assert "trainer/0 waits for fragments of 'default/filter'" in text
    assert "policy/0 waits for requests" in text
    assert "'default' 16 written, 16 used" in text
    assert "filter was given 16 fragments and wrote 8" in text
    assert "--set algorithm.max_policy_age=null" in text


def test_where_no_worker_drops_anything_the_logs_are_named(plan: Plan) -> None:
    watched = Watched(plan)
    watched.written["default/filter"] = 16
    text = watched.stalls()
    assert "filter was given" not in text
    assert "stall_seconds" in text


@pytest.mark.parametrize("activity", ["starting", "running", "make", "reset", "step"])
@pytest.mark.parametrize("worker", ["actor/0", "trainer/0"])
def test_who_is_at_work_is_no_stall_however_long_it_takes(
    plan: Plan, worker: str, activity: Activity
) -> None:
    watched = Watched(plan)
    watched.run(20 * SECONDS, busy=worker, activity=activity)
    watched.run(SECONDS - 2.0)
    watched.stalls()


@pytest.mark.parametrize("activity", ["running", "make", "reset", "step"])
def test_who_has_waited_until_just_now_and_is_at_work_is_no_stall(
    plan: Plan, activity: Activity
) -> None:
    watched = Watched(plan, seconds=1.0)
    for _ in range(10):
        watched.turn()
        watched.run(10.0, busy="actor/0", activity=activity)
    watched.stalls()


def test_a_worker_that_gets_on_now_and_then_is_no_stall(plan: Plan) -> None:
    watched = Watched(plan)
    for _ in range(10):
        watched.run(SECONDS - 2.0)
        watched.stats_table.rows["trainer/0"].worked(0, 1)
    for _ in range(10):
        watched.run(SECONDS - 2.0)
        watched.stats_table.rows["trainer/0"].add("count_minibatches", 1)


def test_data_on_its_way_between_hosts_is_no_stall(plan: Plan) -> None:
    watched = Watched(plan)
    for _ in range(10):
        watched.run(SECONDS - 2.0)
        watched.carried += 1
    watched.stalls()


def test_a_process_that_is_stopped_cut_off_or_to_be_started_is_no_stall(plan: Plan) -> None:
    watched = Watched(plan)
    watched.absent = {"actor-0"}
    watched.run(10 * SECONDS)
    watched.absent = set()
    watched.run(SECONDS - 2.0)
    watched.stalls()


def _unwanted(watched: Watched) -> None:
    watched.unwanted = {"actor-0"}


def _finished(watched: Watched) -> None:
    turn = watched.turn

    def turn_without(*_: object) -> None:
        turn(busy="actor/0", activity="finished")

    watched.turn = turn_without  # type: ignore[method-assign]


@pytest.mark.parametrize("leave", [_unwanted, _finished])
def test_who_is_not_to_run_or_has_finished_is_not_asked(
    plan: Plan, leave: Callable[[Watched], None]
) -> None:
    watched = Watched(plan)
    leave(watched)
    watched.absent = {"actor-0"}
    assert "actor/0" not in watched.stalls()


def test_a_launcher_that_was_stopped_counts_anew(plan: Plan) -> None:
    watched = Watched(plan)
    watched.run(SECONDS - 2.0)
    watched.now += 600.0
    watched.run(SECONDS - 2.0)
    watched.stalls()


def test_with_0_seconds_a_run_may_wait_for_ever(plan: Plan) -> None:
    Watched(plan, seconds=0.0).run(10 * SECONDS)
