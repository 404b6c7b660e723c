"""What a plan is said to take is what it takes, and a plan that takes too much is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from srl.arena.arena import HeapArena
from srl.envs.registry import probe
from srl.errors import ConfigError, RunError
from srl.launch.plan.build import make_plan, resolve_settings
from srl.launch.plan.memory import available_memory, check_memory, memory_needs, region_bytes
from srl.plan import Plan
from srl.run import assemble
from srl.services.parameters import ParameterReader
from srl.streams.inference import create_inference
from srl.streams.sample import create_sample

CROWD = "srl.testing.team_envs:CrowdEnv"


def plan_of(target: str, layout: str = "shared", **settings: object) -> Plan:
    experiment = resolve_settings(assemble(target, layout=layout, set=settings), 2, "cpu")
    return make_plan(experiment, probe(experiment.env), "cpu")[0]


@pytest.fixture(scope="module")
def crowd() -> Plan:
    return plan_of(CROWD)


@pytest.mark.parametrize("target", ["CartPole-v1", "simple_tag"])
def test_regions_are_as_large_as_the_plan_says(target: str) -> None:
    plan = plan_of(target)
    arena = HeapArena()
    for inference in plan.inference.values():
        create_inference(inference.spec, arena)
    for sample in plan.samples.values():
        create_sample(sample.spec, arena)
    for policy in plan.policies.values():
        ParameterReader(policy.parameters, arena)
    assert region_bytes(plan) == {name: region.size for name, region in arena.regions.items()}


def test_a_stream_within_a_process_is_shared_memory_unless_the_run_is_one_process() -> None:
    """Its accounts must outlive the process."""
    settings = {"algorithm.name": "dqn", "algorithm.replay_beside_trainer": True}
    for layout, carrier in (("shared", "shm"), ("serial", "inline")):
        plan = plan_of("CartPole-v1", layout, **settings)
        stream = plan.samples["default/replay"]
        assert len(set(stream.spec.writers + stream.spec.readers)) == 1
        assert (stream.carrier, stream.spec.patience_seconds) == (carrier, 0.0)


def test_more_replay_workers_than_trainers_are_not_beside_them() -> None:
    settings = {"algorithm.name": "dqn", "algorithm.replay_beside_trainer": True}
    with pytest.raises(ConfigError, match=r"replay_workers: expected at most trainer.count \(1\)"):
        plan_of("CartPole-v1", **settings, **{"algorithm.replay_workers": 2})


def test_twenty_agents_with_images_get_batches_that_fit(crowd: Plan) -> None:
    needs = memory_needs(crowd)
    assert needs.total < 2e9
    one_tick = 20 * 457 * 120 * 3
    assert needs.batches > 2 * 32 * one_tick
    assert crowd.experiment["actor"]["envs"] >= 2, "an environment for each of two actors"
    assert str(needs).startswith(f"about {needs.total / 1e9:.1f} GB: streams ")


def test_small_observations_keep_their_batches() -> None:
    experiment = assemble("CartPole-v1")
    assert experiment.actor.envs == 16
    assert "rollout_length" not in experiment.algorithm


def test_what_a_user_sets_is_not_lowered() -> None:
    experiment = assemble(CROWD, set={"actor.envs": 16, "algorithm.rollout_length": 128})
    assert experiment.actor.envs == 16
    assert experiment.algorithm["rollout_length"] == 128


def test_more_than_there_is_is_refused_before_it_is_taken(crowd: Plan) -> None:
    total = memory_needs(crowd).total
    check_memory(crowd, total)
    check_memory(crowd, None)
    with pytest.raises(RunError, match=r"memory: this run needs about .*; 500 MB are") as caught:
        check_memory(crowd, 500_000_000)
    lower = "Lower actor.envs, algorithm.rollout_length or sample.slots: they are 2, 32"
    assert lower in str(caught.value)


EXAMPLE = Path(__file__).parents[3] / "examples" / "09_dqn_with_replay.py"


def replaying(**settings: object) -> Plan:
    names = {"algorithm.name": f"{EXAMPLE}:DQN", "network.name": f"{EXAMPLE}:QPolicy"}
    return plan_of("CartPole-v1", **names, **settings)


def test_a_replay_is_part_of_the_estimate_and_may_be_too_large() -> None:
    plan = replaying(**{"algorithm.buffer_size": 1_000_000, "algorithm.replay_workers": 2})
    needs = memory_needs(plan)
    # Four float32 of observations and at least an action and a reward for each step.
    assert 1_000_000 * (16 + 8 + 4) <= needs.kept["replay"] < 1_000_000 * 64
    assert "replay 4" in str(needs)
    assert needs.total - needs.in_checkpoints == needs.kept["replay"]
    check_memory(plan, needs.total)
    with pytest.raises(RunError, match=r"Let replay keep less; .* algorithm\.buffer_size"):
        check_memory(plan, needs.total - 1)


def test_a_replay_has_room_for_a_window_of_every_group() -> None:
    small = {"algorithm.learning_starts": 10, "actor.envs": 16, "actor.count": 2}
    with pytest.raises(ConfigError, match=r"2 x 8 envs, got 100 .* to 128 at least"):
        replaying(**small, **{"algorithm.buffer_size": 100})
    replaying(**small, **{"algorithm.buffer_size": 128})


def test_other_hosts_have_memory_of_their_own() -> None:
    check_memory(plan_of("CartPole-v1", layout="remote", launcher="manual"), 1)


def test_hosts_that_are_processes_here_share_this_machines() -> None:
    with pytest.raises(RunError, match="memory: this run needs"):
        check_memory(plan_of("CartPole-v1", layout="remote"), 1)


def test_what_is_available_is_bounded_by_the_container(tmp_path: Path) -> None:
    assert available_memory(tmp_path) is None
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/meminfo").write_text(
        "MemTotal: 9000 kB\nMemAvailable:    5000 kB\nSwapFree: 1000 kB\nHugePages_Total:       0\n"
    )
    assert available_memory(tmp_path) == 6000 * 1024
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    assert available_memory(tmp_path) == 6000 * 1024
    (group / "memory.max").write_text("5000\n")
    assert available_memory(tmp_path) == 4000
