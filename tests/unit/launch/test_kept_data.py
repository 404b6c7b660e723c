"""A run says which checkpoints have what its replay keeps, and what a resumed one goes on with."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from srl.envs.registry import probe
from srl.errors import ConfigError
from srl.launch.plan.build import make_plan, resolve_settings
from srl.launch.run.kept_data import kept_data_texts
from srl.overrides import override
from srl.plan import Plan
from srl.recipes.target import find_experiment
from srl.services.checkpoints import (
    Checkpoint,
    CheckpointConfig,
    CheckpointPart,
    Manifest,
)


def plan_of(algorithm: str, **settings: Any) -> Plan:
    experiment = override(find_experiment("CartPole-v1", algorithm=algorithm), settings)
    experiment = resolve_settings(experiment, 2, "cpu")
    return make_plan(experiment, probe(experiment.env), "cpu")[0]


def checkpoint(**segments: Any) -> Checkpoint:
    manifest = Manifest(number=7, policy_versions={}, env_steps=0, episodes=0, segments=segments)
    return Checkpoint(Path(), manifest)


@pytest.mark.parametrize(
    ("mode", "text", "saved"),
    [
        ("never", r"no checkpoint has what replay keeps .*: a resumed run fills it anew", False),
        ("last", r"the newest checkpoint has what replay keeps, up to .* MB", True),
        ("always", r"all checkpoints have what replay keeps, up to .* MB", True),
    ],
)
def test_which_checkpoints_have_it(mode: Any, text: str, saved: bool) -> None:
    plan = plan_of("dqn", **{"checkpoint.replay": mode})
    (found,) = kept_data_texts(plan, CheckpointConfig(replay=mode), None)
    assert found.endswith(f"(checkpoint.replay={mode})") or mode == "never"
    assert re.match(text, found)
    (worker,) = (w for w in plan.workers if w.group == "replay")
    assert worker.in_every_checkpoint == saved, "who writes into checkpoints needs the run's folder"


def test_what_a_resumed_run_goes_on_with() -> None:
    plan, config = plan_of("dqn"), CheckpointConfig()
    part = CheckpointPart("replay%2F0.000000000.segment", "", 2_000_000)
    full = checkpoint(**{"replay/0": [part]})
    assert kept_data_texts(plan, config, full)[1:] == ["replay goes on with what it kept (2.0 MB)"]
    (empty,) = kept_data_texts(plan, config, checkpoint())[1:]
    assert empty.startswith("replay begins empty and is filled anew: checkpoint 7 does not have")
    assert kept_data_texts(plan_of("ppo"), config, full) == []


def test_an_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"checkpoint\.replay: expected never, last or always"):
        CheckpointConfig(replay="sometimes")  # type: ignore[arg-type]
