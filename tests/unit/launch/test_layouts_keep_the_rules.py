"""The episode rules in every layout: real runs whose trainer checks each batch that it gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from srl.envs.protocol import EnvConfig
from srl.errors import SrlError
from srl.experiment import Experiment
from srl.launch.run.launch import launch
from srl.workers.actor import ActorConfig

HERE = Path(__file__).with_name("checking.py")
SINGLE = "srl.testing.envs:ScriptedEnv"
PARALLEL = "srl.testing.team_envs:ScriptedParallelEnv"
AEC = "srl.testing.team_envs:ScriptedAecEnv"


def experiment(layout: str, env: str, **algorithm: object) -> Experiment:
    return Experiment(
        env=EnvConfig(id=env),
        algorithm={"name": f"{HERE}:Checking", **algorithm},
        network={"name": f"{HERE}:CheckedPolicy"},
        actor=ActorConfig(envs=4, count=0 if layout == "serial" else 2, groups=1),
        layout=layout,  # type: ignore[arg-type]
        steps=1500,
    )


@pytest.mark.parametrize("env", [SINGLE, PARALLEL, AEC], ids=["single", "parallel", "aec"])
@pytest.mark.parametrize("age", [0, 1])
def test_serial(tmp_path: Path, env: str, age: int) -> None:
    summary = launch(experiment("serial", env, max_policy_age=age), tmp_path, quiet=True)
    assert summary.status == "finished"
    assert summary.env_steps >= 1500


@pytest.mark.parametrize(
    ("layout", "env", "algorithm"),
    [
        ("inline", SINGLE, {"max_policy_age": 0}),
        ("inline", AEC, {"max_policy_age": 0, "length": 3}),
        ("shared", PARALLEL, {"max_policy_age": 1, "burn_in": 4, "state_every": 2, "length": 6}),
        ("shared", AEC, {"max_policy_age": 1, "length": 4, "burn_in": 2, "state_every": 2}),
    ],
    ids=["inline-single", "inline-aec", "shared-parallel", "shared-aec"],
)
def test_processes(tmp_path: Path, layout: str, env: str, algorithm: dict[str, int]) -> None:
    summary = launch(experiment(layout, env, **algorithm), tmp_path, quiet=True)
    assert summary.status == "finished"
    assert summary.env_steps >= 1500


def test_the_check_would_notice(tmp_path: Path) -> None:
    """A trainer that expects less than what it gets fails the run, with the worker's name."""
    broken = experiment("serial", AEC, max_policy_age=0, accepted_age=-1, length=2)
    with pytest.raises(SrlError, match=r"trainer/0.*broken: age within the bound"):
        launch(broken, tmp_path, quiet=True)
