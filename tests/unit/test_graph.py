"""Graphs that cannot work are refused, with what to change."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

import srl
from srl.data.spec import ArraySpec
from srl.data.table import TableSpec
from srl.errors import ConfigError
from srl.graph import Graph, StreamNode, WorkerGroup, check_graph


def graph(**changes: WorkerGroup) -> Graph:
    workers = {
        "trainer": WorkerGroup(kind="x:Trainer", reads=("a",), trains=("a",)),
        "policy": WorkerGroup(kind="x:Policy", serves=("a",)),
        "actor": WorkerGroup(kind="x:Actor", requests=("a",), writes=("a",)),
    }
    return Graph(workers={**workers, **changes}, streams={"a": StreamNode(policy="a")})


class WithReplay(srl.OffPolicyConfig):
    def windows(self) -> srl.FragmentShape:
        return srl.FragmentShape(length=1)


def worker(**fields: Any) -> WorkerGroup:
    return WorkerGroup(kind="x:Worker", **fields)


def test_ratios_multiply_on_the_way() -> None:
    made = graph().insert("half", worker(), into="a", ratio=Fraction(1, 2))
    made = made.insert("six", worker(), into="a/half", ratio=6)
    check_graph(made)
    assert made.upstream("a/half/six") == ["a/half"]
    numbers = [made.fragments_per_batch(stream, 4) for stream in ("a", "a/half", "a/half/six")]
    assert numbers == [4, 2, 12]


def test_what_is_inserted_keeps_the_shape_and_the_delivery() -> None:
    made = graph()
    node = StreamNode(policy="a", delivery="key", shape=srl.FragmentShape(length=3))
    made = Graph(workers=made.workers, streams={"a": node}).insert("w", worker(), into="a")
    after = made.streams["a/w"]
    assert (after.delivery, after.shape, after.bounds_age) == ("key", node.shape, False)


def test_a_supply_removes_who_has_nothing_left_to_do() -> None:
    data = worker(settings={"dataset": "x"})
    made = graph(evaluator=worker(follows=("a",))).supply(
        "dataset", data, stream="a", fragments_per_batch=3
    )
    check_graph(made)
    assert set(made.workers) == {"trainer", "evaluator", "dataset"}
    assert made.workers["dataset"].writes == ("a",)
    assert not made.streams["a"].bounds_age
    assert made.fragments_per_batch("a", agent_batches=4) == 3


def test_a_supply_keeps_actors_that_others_learn_from() -> None:
    made = graph(
        actor=worker(requests=("a", "b"), writes=("a", "b"), follows=("a", "b")),
        policy=worker(serves=("a", "b")),
        other=worker(reads=("b",), trains=("b",)),
    )
    streams = {"a": StreamNode(policy="a"), "b": StreamNode(policy="b")}
    made = Graph(workers=made.workers, streams=streams).supply("dataset", worker(), stream="a")
    check_graph(made)
    actor = made.workers["actor"]
    # It still plays both policies, and writes only what one of them learns from.
    assert (actor.requests, actor.writes, actor.follows) == (("a", "b"), ("b",), ("b",))
    with pytest.raises(ConfigError, match="there are workers 'actor' already"):
        made.supply("actor", worker(), stream="a")
    with pytest.raises(ConfigError, match="no stream 'c'"):
        made.supply("more", worker(), stream="c")


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (graph(w=worker(reads=("b",))), "uses stream 'b', which is not declared"),
        (graph(w=worker(beside="b")), "is beside 'b', which does not exist"),
        (
            graph(w=worker(beside="trainer", count=2, max_count=3)),
            "at most as many workers as 'trainer' has, because each is in the process of one of "
            "them, got 3 and 1",
        ),
        (
            graph(w=worker(beside="trainer"), v=worker(beside="w")),
            "'v' is beside 'w', which is beside 'trainer' itself",
        ),
        (graph(w=worker(count=0, reads=("a",))), "expects at least 1 worker, got 0"),
        (graph(trainer=worker()), "'a' is written but never read"),
        (graph(actor=worker(requests=("a",))), "'a' is read but never written"),
        (graph(policy=worker()), "requests its actions, but no worker group serves it"),
        (graph(w=worker(trains=("a",))), "expected one worker group that trains it"),
        (graph().insert("w", worker(), into="a", ratio=0), "expected a ratio above 0"),
        (
            graph().insert("w", worker(), into="a", ratio=None, fragments_per_batch=0),
            "fragments_per_batch of at least 1, got 0",
        ),
        (
            graph().insert("w", worker(), into="a", fragments_per_batch=3),
            "'a/w': expected ratio=None, because fragments_per_batch is 3, got ratio 1",
        ),
        (
            graph(w=worker(reads=("a",), writes=("a",))),
            "streams that lead from actors to trainers, got a circle: a -> a",
        ),
        (
            graph(actor=worker(requests=("a",), writes=("a", "a"))),
            "one stream for its fragments, got several",
        ),
    ],
)
def test_what_cannot_work_is_refused(made: Graph, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_graph(made)


def test_workers_of_one_name_are_not_replaced() -> None:
    with pytest.raises(ConfigError, match="there are workers 'actor' already"):
        graph().insert("actor", worker(), into="a")


def test_each_policy_has_a_replay_of_its_own() -> None:
    made = graph(
        trainer_b=worker(reads=("b",), trains=("b",)),
        policy_b=worker(serves=("b",)),
        actor_b=worker(requests=("b",), writes=("b",)),
    )
    made = Graph(workers=made.workers, streams={**made.streams, "b": StreamNode(policy="b")})
    for policy in ("a", "b"):
        made = WithReplay().dataflow(made, policy)
    check_graph(made)
    assert made.workers["trainer"].reads == ("a/replay-a",)
    assert made.workers["trainer_b"].reads == ("b/replay-b",)
    assert [made.workers[f"replay-{policy}"].reads for policy in "ab"] == [("a",), ("b",)]


class ByPriority(WithReplay):
    gives_priorities = True


def test_priorities_go_back_from_the_trainer_to_each_replay_worker() -> None:
    made = ByPriority(replay="prioritized", replay_workers=3).dataflow(graph(), "a")
    check_graph(made)
    assert made.workers["trainer"].writes == ("a/priorities",)
    assert made.workers["replay"].reads == ("a", "a/priorities")
    assert made.parts("a/priorities") == 3
    assert made.upstream("a/replay") == ["a"], "tables lead back, and are no circle"
    assert WithReplay().dataflow(graph(), "a").workers["trainer"].writes == ()


def test_tables_are_between_workers_that_are_there() -> None:
    table = TableSpec(columns={"x": ArraySpec()}, capacity=2)
    with pytest.raises(ConfigError, match="no workers 'b'; there are trainer"):
        graph().connect("t", writer="b", reader="actor", policy="a", table=table)
    made = graph().connect("t", writer="trainer", reader="actor", policy="a", table=table)
    with pytest.raises(ConfigError, match="there is a stream 't' already"):
        made.connect("t", writer="trainer", reader="actor", policy="a", table=table)


def test_a_stream_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match="no stream 'b'; there are a"):
        graph().insert("w", worker(), into="b")
