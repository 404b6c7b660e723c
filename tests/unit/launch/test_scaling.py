"""What `srl scale` may ask for, and what a user is told who asks for more."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.graph import Graph, WorkerGroup
from srl.launch.plan.build import make_plan, resolve_settings
from srl.launch.run.scaling import check_scale
from srl.plan import Plan
from srl.workers.actor import ActorConfig
from srl.workers.configs import EvaluatorConfig, InferenceConfig

RUN = Path("runs/one")


def with_painters(graph: Graph) -> Graph:
    """A dataflow with workers of its own in the middle."""
    painter = WorkerGroup(kind="srl.workers.actor:ActorWorker", count=2)
    return graph.insert("painter", painter, into="default")


def plan(layout: str = "shared", dataflow: str = "", room: int = 4) -> Plan:
    experiment = Experiment(
        env=EnvConfig(id="CartPole-v1"),
        actor=ActorConfig(envs=8, count=2, max_count=room),
        inference=InferenceConfig(count=1),
        evaluator=EvaluatorConfig(count=1),
        layout=layout,  # type: ignore[arg-type]
        dataflow=dataflow,
    )
    settled = resolve_settings(experiment, 4, "cpu")
    return make_plan(settled, probe(settled.env), "cpu")[0]


@pytest.mark.parametrize(
    ("layout", "group", "setting"),
    [
        ("shared", "actor", "actor.max_count"),
        ("shared", "policy", "inference.max_count"),
        ("inline", "policy", "actor.max_count"),
        ("shared", "trainer", "trainer.count"),
        ("shared", "evaluator", "evaluator.count"),
    ],
)
def test_who_asks_for_more_than_there_is_room_for_hears_the_setting(
    layout: str, group: str, setting: str
) -> None:
    with pytest.raises(ConfigError, match=rf"workers of '{group}', got 9\.") as refused:
        check_scale(plan(layout), {group: 9}, RUN)
    commands = re.findall("`(.*?)`", str(refused.value))
    scaled = setting.endswith("max_count")
    then = [f"srl scale {RUN} {group}=9"] if scaled else []
    assert commands == [f"srl resume {RUN} --set {setting}=9", *then]
    assert ("fixed while a run goes on" in str(refused.value)) is not scaled


def test_room_that_is_there_may_be_used_and_nobody_may_be_none() -> None:
    made = plan()
    check_scale(made, {"actor": 4, "policy": 1}, RUN)
    for count in (0, 5):
        with pytest.raises(ConfigError, match="expected 1 to 4 workers of 'actor'"):
            check_scale(made, {"actor": count}, RUN)
    with pytest.raises(ConfigError, match=r"a group of workers \(.*actor.*\), got 'painter'"):
        check_scale(made, {"painter": 1}, RUN)


def test_a_group_of_ones_own_has_its_room_from_the_dataflow() -> None:
    made = plan(dataflow=f"{__file__}:with_painters")
    check_scale(made, {"painter": 2}, RUN)
    with pytest.raises(ConfigError, match=r"room in the run's dataflow \(WorkerGroup.max_count\)"):
        check_scale(made, {"painter": 3}, RUN)
