"""What bridges have counted, added up and shown."""

from __future__ import annotations

from srl.arena.arena import HeapArena
from srl.bridge.counters import REPORTED, BridgeCounters
from srl.cli.status import describe_status
from srl.launch.run.status import HostStatus, RunStatus
from srl.launch.run.traffic import Traffic
from srl.services.metric_names import PolicyResult


def test_home_hosts_that_are_here_and_those_that_were_are_added_up() -> None:
    arena = HeapArena()
    counters = BridgeCounters(arena)
    traffic = Traffic(arena, lambda: 3)
    counters.add("refused", 2)
    counters.add("wait_slots_ns", 1_500_000_000)
    counters.add("heartbeat_ns", 5)
    assert traffic.home() == {
        **dict.fromkeys(REPORTED, 0),
        "refused": 5,
        "wait_slots_ns": 1_500_000_000,
    }
    traffic.lose({"resent": 4, "wait_slots_ns": 500_000_000})
    found = traffic.all([{"resent": 1}, {"refused": 1}])
    assert found["between_hosts.refused"] == 6
    assert found["between_hosts.resent"] == 5
    assert found["between_hosts.wait_slots_seconds"] == 2.0
    assert found["between_hosts.stale"] == 0
    assert len(found) == len(REPORTED)


def test_the_line_of_a_host_says_how_long_it_waited_and_what_went_wrong() -> None:
    bridge = {
        **dict.fromkeys(REPORTED, 0),
        "wait_requests_ns": 2_500_000_000,
        "resent": 7,
        "refused": 1,
    }
    host = HostStatus(
        name="h", machine="m", address="a", state="here", joined=1, processes=2, bridge=bridge
    )
    status = RunStatus(
        written=0.0, name="n", seconds=1.0, env_steps=1, policy_version=1, join="", hosts=(host,),
        workers=(), scaled={}, capacity={},
    )  # fmt: skip
    line = next(line for line in describe_status(status, 0.0).splitlines() if line.startswith("h "))
    assert line.endswith("replies 2.5 s  7 resent, 1 refused")


def test_the_status_has_the_returns_of_every_policy() -> None:
    policies = {
        "red": PolicyResult(episode_return_mean=5.0, policy_version=3),
        "blue": PolicyResult(episode_return_mean=-5.0, policy_version=4),
    }
    status = RunStatus(
        written=0.0, name="n", seconds=1.0, env_steps=1, policy_version=4, policies=policies,
        join="", hosts=(), workers=(), scaled={}, capacity={},
    )  # fmt: skip
    rows = [line.split() for line in describe_status(status, 0.0).splitlines()]
    assert ["policy", "return", "episodes", "version", "age"] in rows
    assert ["red", "5.00", "0", "3", "-"] in rows
    assert ["blue", "-5.00", "0", "4", "-"] in rows
