"""A relabeller that asks a policy: which observations it sees, and which actions it replaces."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.errors import ConfigError
from srl.policies.protocol import Policy, PolicyOutput
from srl.workers.policy_relabeller import PolicyRelabeller

TICKS, ROWS = 5, 3


class SumOfFrames(Policy):
    """Says the sum of the frames that it sees, or the first action that is allowed."""

    extras_spec = None
    seen: list[torch.Tensor]

    def act(self, obs, policy_state, is_first, explore, action_mask, generator):  # type: ignore[no-untyped-def]
        assert not explore.any(), "it is asked what is best"
        self.seen = obs
        action = obs.flatten(1).sum(1).long()
        if action_mask is not None:
            action = action_mask.int().argmax(1)
        return PolicyOutput(action, None, None)


def make(agent: AgentSpec) -> tuple[PolicyRelabeller, Any]:
    spec = TrajectorySpec(length=TICKS - 1, rows=ROWS, envs=ROWS, agent=agent)
    found: Any = PolicyRelabeller.__new__(PolicyRelabeller)
    found.spec, found._policy = spec, SumOfFrames(agent, None)
    found._generator = torch.Generator()
    return found, spec.allocate()


def test_it_sees_stacks_of_the_episode_and_replaces_what_was_done() -> None:
    worker, data = make(AgentSpec(obs=ArraySpec(shape=(1,), stack=2), action=Discrete(1000)))
    data.obs[...] = 10.0 ** np.arange(-1, TICKS)[:, None, None] // 1
    data.is_first.fill(False)
    data.is_first[2, 1] = True
    data.acted.fill(True)
    data.acted[3, 0] = False
    data.action.fill(-1)
    worker.relabel(data, TICKS - 1)
    assert data.action.tolist() == [
        [1, 1, 1],
        [11, 11, 11],
        [110, 200, 110],
        [-1, 1100, 1100],
        [-1, -1, -1],
    ]


def test_it_keeps_to_what_is_allowed() -> None:
    agent = AgentSpec(obs=ArraySpec(shape=(1,)), action=Discrete(4), has_action_mask=True)
    worker, data = make(agent)
    data.obs.fill(0.0)
    data.acted.fill(True)
    data.action_mask.fill(False)
    data.action_mask[:, :, 2] = True
    worker.relabel(data, TICKS)
    assert (data.action == 2).all()
    assert len(worker._policy.seen) == TICKS * ROWS


def test_an_expert_with_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("srl.workers.relabeller.Relabeller.__init__", lambda *_: None)
    policy = SimpleNamespace(state_spec=ArraySpec())
    context: Any = SimpleNamespace(
        worker=SimpleNamespace(follows=("expert",)), make_policy=lambda name: policy
    )
    with pytest.raises(ConfigError, match=r"policy 'expert': expected one without memory"):
        PolicyRelabeller(context)
