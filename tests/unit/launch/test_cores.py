"""Which processes keep to a core, and who gets which."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from srl.envs.registry import probe
from srl.experiment import Experiment
from srl.launch.plan.build import make_plan, resolve_settings
from srl.launch.process.cores import keep_to_one_core, take_turns
from srl.overrides import override
from srl.recipes.target import find_experiment

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
    reason="needs affinity and two cores",
)


@pytest.fixture
def cores(monkeypatch: pytest.MonkeyPatch) -> Iterator[set[int]]:
    """The cores of this thread, which are its again afterwards. Whatever else runs on this machine
    has claims of its own."""
    monkeypatch.setattr("srl.launch.process.cores.CLAIMS", f"srl-test-{os.getpid()}")
    before = os.sched_getaffinity(0)
    yield before
    os.sched_setaffinity(0, before)


def keepers(target: str, **settings: object) -> list[str]:
    """Processes of a run that would keep to a core."""
    experiment: Experiment = override(find_experiment(target), settings)
    experiment = resolve_settings(experiment, 2, "cpu")
    plan, _ = make_plan(experiment, probe(experiment.env), "cpu")
    return [name for name, members in plan.processes.items() if take_turns(members, plan)]


def test_actors_that_wait_for_one_thread_keep_to_a_core() -> None:
    tiny = "envpool:CartPole-v1"
    assert keepers(tiny, layout="inline") == ["actor-0"]
    assert keepers(tiny, layout="shared", **{"actor.groups": 1}) == ["actor-0"]
    assert keepers(tiny, layout="shared", **{"actor.groups": 2}) == []
    bodies = {"actor.count": 2, "actor.groups": 1}
    assert keepers("envpool:HalfCheetah-v5", layout="shared", **bodies) == ["actor-0", "actor-1"]
    assert keepers(tiny, layout="inline", **{"actor.groups": 2}) == []
    assert keepers(tiny, layout="inline", **{"env.threads": 2}) == []
    assert keepers("envpool:Pong-v5", layout="inline") == []
    assert keepers("CartPole-v1", layout="inline") == []


def test_each_gets_a_core_of_its_own_and_the_last_gets_none(cores: set[int]) -> None:
    claims = []
    taken: set[int] = set()
    for _ in cores:
        claim = keep_to_one_core()
        assert claim is not None
        claims.append(claim)
        (core,) = os.sched_getaffinity(0)
        taken.add(core)
        os.sched_setaffinity(0, cores)
    assert taken == cores
    assert keep_to_one_core() is None
    assert os.sched_getaffinity(0) == cores
    claims.pop().close()
    again = keep_to_one_core()
    assert again is not None
    for claim in (*claims, again):
        claim.close()
