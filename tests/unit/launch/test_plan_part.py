"""The part of the plan that a process gets: all that it needs, however many others there are."""

from __future__ import annotations

import dataclasses
from typing import Literal

import msgspec
import pytest

from srl.arena.arena import HeapArena
from srl.envs.registry import probe
from srl.launch.plan.build import make_plan, resolve_settings
from srl.plan import Plan
from srl.recipes.classic import cartpole
from srl.services.worker_stats import ROW_BYTES, StatsTable, StatsTablePart, WorkerStats


def length(plan: Plan) -> int:
    return len(msgspec.json.encode(plan))


def plan_of(layout: Literal["shared", "inline"], actors: int, trainers: int = 1) -> Plan:
    experiment = cartpole()
    experiment = dataclasses.replace(
        experiment,
        layout=layout,
        actor=dataclasses.replace(experiment.actor, count=actors, envs=2 * actors, groups=1),
        trainer=dataclasses.replace(experiment.trainer, count=trainers),
    )
    return make_plan(resolve_settings(experiment, 2, "cpu"), probe(experiment.env), "cpu")[0]


@pytest.mark.parametrize("layout", ["shared", "inline"])
def test_a_part_is_what_the_process_needs(layout: Literal["shared", "inline"]) -> None:
    plan = plan_of(layout, actors=4, trainers=2)
    for process, members in plan.processes.items():
        part = plan.part(process)
        assert part.processes[process] == members
        names = {member.name for member in members}
        asked = {p for p, s in plan.inference.items() if names & {*s.clients, *s.servers}}
        assert set(part.inference) == asked
        assert (part.samples, part.policies) == (plan.samples, plan.policies)
    team = [worker.name for worker in plan.part("trainer-1").workers]
    assert team == ["trainer/0", "trainer/1"], "trainers know each other"
    assert [worker.group for worker in plan.part("actor-3").workers].count("actor") == 1


@pytest.mark.parametrize("layout", ["shared", "inline"])
def test_more_actors_cost_a_part_no_more_than_their_names(
    layout: Literal["shared", "inline"],
) -> None:
    few, many = plan_of(layout, actors=10), plan_of(layout, actors=110)
    grown = length(many.part("actor-0")) - length(few.part("actor-0"))
    whole = length(many) - length(few)
    assert grown < 100 * 80
    assert grown < whole / 4


def test_a_part_of_the_board_is_the_same_rows() -> None:
    arena = HeapArena()
    whole = StatsTable(arena, ("a", "b", "c"))
    part = StatsTable(arena, StatsTablePart(count=3, indices={"b": 1}))
    part.rows["b"].set("count_rows", 7)
    part.rows["b"].set("wait_slots", 5)
    whole.stop = True
    assert list(part.rows) == ["b"]
    assert part.stop
    assert [row.counters()["rows"] for row in whole.rows.values()] == [0, 7, 0]
    assert whole.rows["b"].waits()["slots"] == 5


def test_many_rows_are_loaded_as_each_would_be_or_none_is() -> None:
    there = StatsTable(HeapArena(), ("a", "b"))
    for number, row in enumerate(there.rows.values()):
        row.enter("step")
        row.set("heartbeat_ns", 1_000 + number)
        row.set("count_rows", number)
    data = [row.dump() for row in there.rows.values()]
    each, together = (StatsTable(HeapArena(), ("a", "b")) for _ in range(2))
    # A clock that is behind, one that is ahead, and one that is far ahead of time itself.
    for shift in (500, -2_000, -(1 << 61)):
        for row, cells in zip(each.rows.values(), data, strict=True):
            row.load(cells, shift)
        assert WorkerStats.load_all(list(together.rows.values()), data, shift)
        assert [r.dump() for r in together.rows.values()] == [r.dump() for r in each.rows.values()]
    before = [row.dump() for row in together.rows.values()]
    for bad in (b"", b"\xff" * (ROW_BYTES - 8), b"\x80" * ROW_BYTES):
        assert not WorkerStats.load_all(list(together.rows.values()), [data[0], bad], 0)
    assert [row.dump() for row in together.rows.values()] == before
    assert WorkerStats.load_all([], [], 0)
