"""What the environment tests share: making a group, and playing it at random."""

from __future__ import annotations

from typing import Any

import numpy as np

from srl.data.records import EnvStep
from srl.envs.buffers import step_state
from srl.envs.check import random_actions
from srl.envs.protocol import EnvConfig, EnvGroup, PolicyAgents
from srl.envs.registry import make_group

ONE: PolicyAgents = {"main": ("agent",)}


def group_of(
    id: str,
    num_envs: int = 3,
    policy_agents: PolicyAgents = ONE,
    render: bool = False,
    **settings: Any,
) -> EnvGroup:
    config = EnvConfig(id=id, **settings)
    return make_group(
        config,
        num_envs=num_envs,
        policy_agents=policy_agents,
        on_call=lambda call, index: None,
        render=render,
    )


def play(group: EnvGroup, ticks: int, seed: int = 0) -> list[dict[str, dict[str, Any]]]:
    """Copies of the steps of a reset and `ticks` random actions."""
    random = np.random.default_rng(seed)
    steps = group.reset(seed)
    played = [copied(steps)]
    for _ in range(ticks):
        steps = group.step(random_actions(group.spec, steps, group.policy_agents, random))
        played.append(copied(steps))
    return played


def copied(steps: dict[str, EnvStep]) -> dict[str, dict[str, Any]]:
    return {name: step_state(step) for name, step in steps.items()}


def stacked(played: list[dict[str, dict[str, Any]]], policy_rows: str, field: str) -> np.ndarray:
    """[ticks, rows] of one field."""
    return np.stack([step[policy_rows][field] for step in played])


def check_episode_rules(played: list[dict[str, dict[str, Any]]], policy_rows: str = "main") -> None:
    """The rules that every group keeps, whatever it wraps."""
    final = stacked(played, policy_rows, "terminated") | stacked(played, policy_rows, "truncated")
    first, alive = stacked(played, policy_rows, "is_first"), stacked(played, policy_rows, "alive")
    turn, reward = stacked(played, policy_rows, "turn"), stacked(played, policy_rows, "reward")
    assert not (
        stacked(played, policy_rows, "terminated") & stacked(played, policy_rows, "truncated")
    ).any()
    assert not (final & turn).any()
    assert not (turn & ~alive).any()
    assert not (final & ~alive).any()
    assert (reward[first] == 0).all()
    for row in range(final.shape[1]):
        ticks = np.flatnonzero(alive[:, row])
        assert (final[ticks[:-1], row] == first[ticks[1:], row]).all()
        assert first[ticks[0], row]
