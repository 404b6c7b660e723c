"""Plans with several trainers of one policy."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import pytest

from srl.algorithms.ppo.learner import PPO
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe
from srl.errors import ConfigError
from srl.experiment import Experiment, SampleConfig
from srl.graph import Graph, WorkerGroup
from srl.launch.plan.build import make_plan, resolve_settings
from srl.launch.run.scaling import check_streams
from srl.plan import Plan
from srl.workers.actor import ActorConfig
from srl.workers.configs import TrainerConfig


class Private(PPO):
    """An algorithm that has not heard of other trainers."""

    data_parallel = False


def plan(layout: str = "shared", trainers: int = 2, **changes: Any) -> Plan:
    experiment = Experiment(
        env=EnvConfig(id="CartPole-v1"),
        actor=ActorConfig(envs=8, count=2, groups=2),
        trainer=TrainerConfig(count=trainers),
        layout=layout,  # type: ignore[arg-type]
        **changes,
    )
    settled = resolve_settings(experiment, 4, "cpu")
    return make_plan(settled, probe(settled.env), "cpu")[0]


def test_each_trainer_has_a_stream_and_the_first_one_writes_checkpoints() -> None:
    made = plan()
    trainers = [worker for worker in made.workers if worker.trains]
    assert [worker.process for worker in trainers] == ["trainer-0", "trainer-1"]
    assert [worker.in_every_checkpoint for worker in trainers] == [True, False]
    assert all(worker.restarts for worker in trainers)
    assert list(made.samples) == ["default@0", "default@1"]
    for part, stream in enumerate(made.samples.values()):
        assert (stream.stream, stream.part, stream.parts) == ("default", part, 2)
        assert stream.readers == (f"trainer/{part}",)
        assert stream.writers == ("actor/0", "actor/1"), "each has two groups"
        assert (stream.spec.fragments_per_batch, stream.spec.slots) == (2, 4)


def test_actors_are_divided_batch_by_batch() -> None:
    made = plan(trainers=4)
    writers = {name: stream.writers for name, stream in made.samples.items()}
    assert writers == {
        "default@0": ("actor/0",),
        "default@1": ("actor/0",),
        "default@2": ("actor/1",),
        "default@3": ("actor/1",),
    }


def between(count: int) -> Callable[[Graph], Graph]:
    group = WorkerGroup(kind="srl.workers.relabeller:Relabeller", count=count)
    return lambda graph: graph.insert("between", group, into="default")


def halved(graph: Graph) -> Graph:
    return _between(graph, 1, ratio=Fraction(1, 2))


def thirds(graph: Graph) -> Graph:
    return _between(graph, 1, ratio=Fraction(1, 3))


def unknown(graph: Graph) -> Graph:
    return _between(graph, 1, ratio=None, fragments_per_batch=10)


def shards(graph: Graph) -> Graph:
    return _between(graph, 3, split="readers", ratio=None, fragments_per_batch=10)


def _between(graph: Graph, count: int, **stream: Any) -> Graph:
    group = WorkerGroup(kind="srl.workers.relabeller:Relabeller", count=count)
    return graph.insert("between", group, into="default", **stream)


one_between, three_between = between(1), between(3)
UNBOUNDED = {"name": "ppo", "max_policy_age": None}


def test_a_declared_ratio_changes_the_fragments_of_a_batch() -> None:
    made = plan(dataflow=f"{__name__}:halved").samples
    assert [stream.spec.fragments_per_batch for stream in made.values()] == [2, 2, 1, 1]
    assert [stream.spec.max_policy_age for stream in made.values()] == [1, 1, None, None]


def test_a_ratio_that_leaves_parts_of_fragments_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'default/between': expected a whole number .* got 4/3"):
        plan(dataflow=f"{__name__}:thirds")


def test_a_bound_on_age_expects_a_fixed_number_of_fragments() -> None:
    with pytest.raises(ConfigError, match=r"max_policy_age: expected null, .* no fixed number"):
        plan(dataflow=f"{__name__}:unknown")
    made = plan(dataflow=f"{__name__}:unknown", algorithm=UNBOUNDED).samples
    assert [stream.spec.fragments_per_batch for stream in made.values()] == [2, 2, 5, 5]


def test_each_reader_may_have_a_part_of_a_stream() -> None:
    with pytest.raises(ConfigError, match=r"max_policy_age: expected null, .* 'default'"):
        plan(dataflow=f"{__name__}:shards")
    made = plan(dataflow=f"{__name__}:shards", algorithm=UNBOUNDED).samples
    names = ["default@0", "default@1", "default@2", "default/between@0", "default/between@1"]
    assert list(made) == names
    assert [made[name].readers for name in names[:3]] == [
        ("between/0",),
        ("between/1",),
        ("between/2",),
    ]
    assert [made[name].writers for name in names[:3]] == [
        ("actor/0", "actor/1"),
        ("actor/0",),
        ("actor/1",),
    ]
    assert [made[name].writers for name in names[3:]] == [
        ("between/0", "between/2"),
        ("between/1",),
    ]


@pytest.mark.parametrize(
    ("dataflow", "ends"),
    [
        ("one_between", [("between/0",), ("between/0",)]),
        ("three_between", [("between/0", "between/2"), ("between/1",)]),
    ],
)
def test_workers_in_between_are_divided_among_the_trainers(
    dataflow: str, ends: list[tuple[str, ...]]
) -> None:
    made = plan(dataflow=f"{__name__}:{dataflow}")
    names = ["default@0", "default@1", "default/between@0", "default/between@1"]
    assert list(made.samples) == names
    assert [made.samples[name].readers for name in names[:2]] == ends
    assert [made.samples[name].writers for name in names[2:]] == ends
    assert [made.samples[name].readers for name in names[2:]] == [("trainer/0",), ("trainer/1",)]


def test_slots_are_for_all_trainers_together() -> None:
    made = plan(sample=SampleConfig(slots=6))
    assert [stream.spec.slots for stream in made.samples.values()] == [3, 3]
    with pytest.raises(ConfigError, match=r"at least 2 slots.* got 1\. Raise sample.slots to 4"):
        plan(sample=SampleConfig(slots=2))


def test_no_trainer_is_left_without_anyone_who_writes_for_it() -> None:
    made = plan(trainers=4)
    check_streams(made, {"actor": 2})
    with pytest.raises(ConfigError, match=r"2 workers of 'actor', so that a worker writes"):
        check_streams(made, {"actor": 1})


def test_one_trainer_takes_everything() -> None:
    (stream,) = plan(trainers=1).samples.values()
    assert (stream.spec.name, stream.parts, stream.spec.fragments_per_batch) == ("default", 1, 4)


def test_a_serial_run_has_one_trainer() -> None:
    assert len([worker for worker in plan("serial").workers if worker.trains]) == 1


def test_unequal_parts_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"a divisor of the 4 fragments .* got 3"):
        plan(trainers=3)


def test_an_algorithm_that_does_not_know_of_it_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"expected 1, because Private does not say .* got 2"):
        plan(algorithm={"name": f"{__name__}:Private"})


def test_less_than_one_trainer_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"trainer\.count: expected at least 1, got 0"):
        TrainerConfig(count=0)
