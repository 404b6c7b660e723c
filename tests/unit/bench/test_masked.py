"""CartPole without velocities by EnvPool is CartPole, and shows position and angle only."""

from __future__ import annotations

import numpy as np
import pytest

from srl.bench.workloads import experiment_of
from srl.envs.registry import make_group, probe


def test_it_shows_positions_and_plays_whole_episodes() -> None:
    pytest.importorskip("envpool")
    config = experiment_of("W4").env
    (agent,) = probe(config).agents.values()
    assert agent.obs.shape == (2,)
    policy = "default"
    policy_agents = {policy: ("agent",)}
    group = make_group(
        config, num_envs=4, policy_agents=policy_agents, on_call=lambda call, index: None
    )
    try:
        shown = group.reset(3)[policy].obs.copy()
        assert shown.shape == (4, 2)
        assert (np.abs(shown) <= 0.05).all()
        assert (group.reset(3)[policy].obs == shown).all()
        assert not (group.reset(4)[policy].obs == shown).all()
        begun, lengths, length = 0, [], np.zeros(4)
        for _ in range(60):
            # Always to one side: the pole falls within a dozen steps.
            step = group.step({policy: np.ones(4, np.int64)})[policy]
            assert step.reward[step.is_first].sum() == 0.0
            length += step.reward
            ends = step.terminated | step.truncated
            lengths += length[ends].tolist()
            length[ends] = 0
            begun += int(step.is_first.sum())
        assert begun > 12
        assert all(7 <= one <= 12 for one in lengths)
    finally:
        group.close()
