"""Processes are spread over the hosts that name their group, and placed elsewhere after a loss."""

from __future__ import annotations

import dataclasses

import pytest

from srl.errors import ConfigError
from srl.graph import WorkerGroup
from srl.launch.plan.placement import Placed, Placement, spread
from srl.launch.run.restarts import MAX_BACKOFF_SECONDS, Restarts


def placed(**counts: int) -> Placed:
    groups = {
        name: WorkerGroup(kind="x:Y", count=count, trains=("p",) if name == "trainer" else ())
        for name, count in counts.items()
    }
    return {
        f"{name}-{index}": [(name, group, index)]
        for name, group in groups.items()
        for index in range(group.count)
    }


def test_groups_are_spread_evenly_and_the_rest_is_at_home() -> None:
    where = spread(placed(trainer=1, policy=1, actor=5), {"a": ("actor",), "b": ("actor", "pol*")})
    assert where == {
        "trainer-0": "home", "policy-0": "b",
        "actor-0": "a", "actor-1": "b", "actor-2": "a", "actor-3": "b", "actor-4": "a",
    }  # fmt: skip


def test_workers_beside_each_other_go_together() -> None:
    actor, policy = WorkerGroup(kind="x:Y"), WorkerGroup(kind="x:Z", beside="actor")
    where = spread({"actor-0": [("policy", policy, 0), ("actor", actor, 0)]}, {"a": ("actor",)})
    assert where == {"actor-0": "a"}


def test_unknown_groups_and_scattered_trainers_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"hosts\.a.*actor, trainer.*'actr'"):
        spread(placed(trainer=1, actor=1), {"a": ("actr",)})
    with pytest.raises(ConfigError, match="trainers of policy 'p' on one host, got a, b"):
        spread(placed(trainer=2), {"a": ("trainer",), "b": ("trainer",)})
    with pytest.raises(ConfigError, match="other hosts, got 'home'"):
        spread(placed(actor=1), {"home": ("actor",)})


def test_a_host_is_waited_for_at_first_and_replaced_after_it_was_lost() -> None:
    placement = Placement(placed(actor=2, trainer=1), {"a": ("actor",), "b": ("actor",)})
    assert placement.choose("actor-0", {}, {}) is None
    assert placement.choose("actor-0", {"a": (), "b": ()}, {}) == "a"
    # Another that names the group comes first, then a spare one, then this machine.
    assert placement.choose("actor-0", {"b": (), "spare": ()}, {}) == "b"
    assert placement.choose("actor-0", {"spare": ("actor",)}, {}) == "spare"
    assert placement.choose("actor-0", {"spare": ("policy",)}, {}) == "home"
    # It comes back.
    assert placement.choose("actor-0", {"a": (), "b": ()}, {"a": 9}) == "a"


def test_trainers_go_elsewhere_together_after_a_while_and_stay_there() -> None:
    placement = Placement(placed(actor=1, trainer=2), {"a": ("actor",), "gpu": ("trainer",)})
    assert placement.choose("trainer-0", {"a": ()}, {}) is None, "it has not come yet"
    assert placement.choose("trainer-0", {"a": (), "gpu": ()}, {}) == "gpu"
    # A host that joins anew is back in a moment, with what it held.
    here: dict[str, tuple[str, ...]] = {"a": (), "one": ("trainer",), "two": ("trainer",)}
    assert placement.choose("trainer-0", here, {}, awaited=["gpu"]) is None
    assert placement.choose("trainer-0", here, {"one": 1}) == "two"
    assert placement.choose("trainer-1", here, {"two": 9}) == "two", "beside the other"
    assert placement.choose("trainer-1", {**here, "gpu": ()}, {}) == "two", "not back again"
    # Lost again: home is never lost.
    assert placement.choose("trainer-1", {"a": ()}, {}) == "home"
    assert placement.choose("trainer-0", here, {}) == "home"
    assert placement.add("trainer-0", here, {}) == "home"


def test_readers_of_one_stream_are_on_one_host() -> None:
    group = WorkerGroup(kind="x:Y", count=2, reads=("s",))
    readers: Placed = {f"relabel-{i}": [("relabel", group, i)] for i in range(2)}
    with pytest.raises(ConfigError, match="all readers of stream 's' on one host, got a, b"):
        spread(readers, {"a": ("relabel",), "b": ("relabel",)})
    assert Placement(readers, {}).is_bound("relabel-0")


def test_trainers_may_be_apart_where_the_network_is_trusted() -> None:
    group = WorkerGroup(kind="x:Y", count=2, trains=("p",))
    apart: Placed = {
        f"trainer-{i}": [("trainer", dataclasses.replace(group, reads=(f"s@{i}",)), i)]
        for i in range(2)
    }
    hosts = {"a": ("trainer",), "b": ("trainer",)}
    with pytest.raises(ConfigError, match=r"got a, b.*trust_network=true.*neither encrypted"):
        spread(apart, hosts)
    placement = Placement(apart, hosts, apart=True)
    assert placement.preferred == {"trainer-0": "a", "trainer-1": "b"}
    here: dict[str, tuple[str, ...]] = {"a": (), "b": ()}
    assert placement.choose("trainer-0", here, {}) == "a"
    assert placement.choose("trainer-1", here, {}) == "b"
    # Only the one whose host is lost goes elsewhere, and it stays there.
    assert placement.choose("trainer-1", {"a": ()}, {}, awaited=["b"]) is None
    assert placement.choose("trainer-1", {"a": ()}, {}) == "a"
    assert placement.choose("trainer-1", here, {}) == "a"
    assert placement.choose("trainer-0", here, {}) == "a"


def test_a_worker_that_joins_goes_where_there_is_least() -> None:
    placement = Placement(placed(actor=4), {"a": ("actor",), "b": ("actor",)})
    here = {"a": (), "b": (), "new": ("actor",), "idle": ()}
    assert placement.add("actor-2", here, {"a": 3, "b": 2, "new": 1}) == "new"
    assert placement.choose("actor-2", here, {}) == "new"


def test_restarts_come_later_each_time_and_are_forgotten_after_the_window() -> None:
    restarts = Restarts(100.0)
    delays = [restarts.add("actor-0", float(i)) for i in range(10)]
    assert delays[:4] == [0.0, 0.5, 1.0, 2.0]
    assert delays == sorted(delays)
    assert delays[-1] == MAX_BACKOFF_SECONDS
    assert restarts.recent("actor-0", 9.0) == 10
    assert restarts.recent("actor-1", 9.0) == 0
    assert restarts.recent("actor-0", 200.0) == 0
    assert restarts.add("actor-0", 200.0) == 0.0
    assert restarts.total["actor-0"] == 11
