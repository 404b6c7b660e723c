"""A restored environment continues bit by bit."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from playing import copied, group_of

from srl.data.codec import load_state, save_state
from srl.data.tree import leaves
from srl.envs.check import random_actions
from srl.errors import CheckpointError


@pytest.mark.parametrize(
    ("id", "settings", "before", "after"),
    [
        ("CartPole-v1", {"backend": "single"}, 40, 100),
        ("CartPole-v1", {"backend": "vector"}, 40, 100),
        ("Pendulum-v1", {}, 30, 250),
        ("MountainCar-v0", {}, 30, 250),
        ("Acrobot-v1", {}, 30, 50),
        ("HalfCheetah-v5", {"max_episode_steps": 60}, 30, 100),
        ("Ant-v5", {}, 30, 60),
        ("ALE/Pong-v5", {}, 60, 100),
        ("ALE/Breakout-v5", {"args": {"terminal_on_life_loss": True}}, 60, 100),
        ("srl.testing.envs:ScriptedEnv", {"args": {"mask": True}}, 10, 50),
        ("srl.envs.tasks.memory:CueRecall", {}, 10, 50),
        ("srl.envs.tasks.memory:MaskedCartPole", {}, 10, 50),
    ],
)
def test_restored_groups_continue_exactly(
    id: str, settings: dict, before: int, after: int, tmp_path: Path
) -> None:
    group, copy = group_of(id, 2, **settings), group_of(id, 2, **settings)
    random = np.random.default_rng(0)
    steps = group.reset(11)
    for _ in range(before):
        steps = group.step(random_actions(group.spec, steps, group.policy_agents, random))
    # Save in the tick of an end, if one is near: rows that wait for their reset are part of it.
    for _ in range(30):
        if not steps["main"].turn.all():
            break
        steps = group.step(random_actions(group.spec, steps, group.policy_agents, random))
    save_state(tmp_path / "state", group.state())
    shown = copied(copy.restore(load_state(tmp_path / "state")))
    assert _equal(shown, copied(steps))
    for tick in range(after):
        actions = random_actions(group.spec, steps, group.policy_agents, random)
        steps = group.step(actions)
        assert _equal(copied(steps), copied(copy.step(actions))), tick
    group.close()
    copy.close()


def test_unknown_environments_have_no_state() -> None:
    group = group_of("Taxi-v4", 1)
    group.reset(0)
    assert group.state() is None


def test_a_state_of_another_environment_is_refused() -> None:
    cartpole = group_of("CartPole-v1", 1)
    cartpole.reset(0)
    with pytest.raises(CheckpointError, match="same"):
        group_of("Pendulum-v1", 1, max_episode_steps=7).restore(cartpole.state())


def _equal(a: object, b: object) -> bool:
    left, right = leaves(a), leaves(b)
    return len(left) == len(right) and all(
        np.array_equal(x, y) for x, y in zip(left, right, strict=True)
    )
