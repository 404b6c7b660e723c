"""Transitions of windows: what follows an action at the end of an episode, and where none was
taken."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transition_data import AGENT, windows

from srl.algorithms.learning.transitions import TransitionMinibatch, Transitions
from srl.data.records import SampleBatch
from srl.data.spec import AgentSpec, ArraySpec
from srl.policies.bounded_actor_config import BoundedActorConfig
from srl.policies.squashed_gaussian import SquashedGaussian, SquashedGaussianConfig

torch.set_num_threads(1)
CPU = torch.device("cpu")


def policy(agent: AgentSpec = AGENT) -> SquashedGaussian:
    return SquashedGaussian(agent, SquashedGaussianConfig(hidden_sizes=(4,)))


def minibatches(batch: SampleBatch, n: int, agent: AgentSpec = AGENT) -> list[TransitionMinibatch]:
    return list(Transitions(batch, policy(agent), CPU, gamma=0.5, n=n).minibatches())


def flags(*rows: int, ticks: int, count: int, tick: int) -> np.ndarray:
    """True for some of so many rows, at one tick."""
    found = np.zeros((ticks, count), bool)
    found[tick, list(rows)] = True
    return found


def test_ends_of_episodes() -> None:
    terminated = flags(1, ticks=2, count=4, tick=1)
    truncated = flags(2, ticks=2, count=4, tick=1)
    # The last row begins at the final observation of an episode.
    truncated |= flags(3, ticks=2, count=4, tick=0)
    acted = ~(terminated | truncated)
    batch = windows(4, terminated=terminated, truncated=truncated, acted=acted)
    batch.data.action[0, 3] = np.nan
    (found,) = minibatches(batch, n=1)
    assert found.discount.tolist() == [0.5, 0.0, 0.5, 0.0]
    assert found.weight.tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0.0])
    assert found.reward[:3].tolist() == batch.data.reward[0, :3].tolist()
    assert found.reward[3] == 0.0
    next_obs = torch.from_numpy(batch.data.obs[1])
    assert torch.equal(found.next_obs[[0, 2]], next_obs[[0, 2]])
    assert torch.isfinite(found.action).all()


def test_returns_of_three_steps() -> None:
    reward = np.array([[1.0, 1, 1], [2, 2, 2], [4, 4, 4], [8, 8, 8]], np.float32)
    terminated = flags(1, ticks=4, count=3, tick=2)
    truncated = flags(2, ticks=4, count=3, tick=1)
    reward[2, 1] = reward[1, 2] = 0.0  # As in every final tick.
    acted = ~(terminated | truncated)
    batch = windows(
        3, ticks=4, reward=reward, terminated=terminated, truncated=truncated, acted=acted
    )
    (found,) = minibatches(batch, n=3)
    assert found.reward.tolist() == [1 + 2 * 0.5 + 4 * 0.25, 1 + 2 * 0.5, 1.0]
    assert found.discount.tolist() == [0.125, 0.0, 0.5]
    ticks = torch.tensor([3, 1])
    assert torch.equal(found.next_obs[[0, 2]], torch.from_numpy(batch.data.obs)[ticks, [0, 2]])


def test_ticks_without_an_action_have_no_weight_and_may_hold_anything() -> None:
    acted = ~flags(0, ticks=3, count=2, tick=0)
    acted &= ~flags(1, ticks=3, count=2, tick=1)
    alive = acted.copy()
    batch = windows(2, ticks=3, acted=acted, alive=alive)
    for array in (batch.data.obs, batch.data.action, batch.data.reward):
        array[~acted] = np.nan
    (found,) = minibatches(batch, n=2)
    assert found.weight.tolist() == [0.0, 1.0]
    # The second row's action is followed by a tick without one, and then by the last tick.
    assert found.discount.tolist()[1] == 0.5
    assert torch.equal(found.next_obs[1], torch.from_numpy(batch.data.obs[2, 1]))
    for tensor in (found.obs, found.next_obs, found.action, found.reward, found.discount):
        assert torch.isfinite(tensor).all()


def test_each_fragment_is_a_minibatch() -> None:
    batch = windows(6, fragments=3)
    found = minibatches(batch, n=1)
    assert [len(minibatch.weight) for minibatch in found] == [2, 2, 2]
    for number, minibatch in enumerate(found):
        part = slice(2 * number, 2 * number + 2)
        assert torch.equal(minibatch.obs, torch.from_numpy(batch.data.obs[0, part]))
        assert torch.equal(minibatch.action, torch.from_numpy(batch.data.action[0, part]))


def test_frames_are_stacked() -> None:
    agent = AgentSpec(obs=ArraySpec(shape=(3,), stack=2), action=AGENT.action)
    frames = np.arange(3 * 2 * 3, dtype=np.float32).reshape(3, 2, 3)
    first = flags(1, ticks=2, count=2, tick=0)
    (found,) = minibatches(windows(2, obs=frames, is_first=first), n=1, agent=agent)
    expected = np.stack([frames[0:2, 0], frames[[1, 1], 1]])  # An episode's first frame fills up.
    np.testing.assert_array_equal(found.obs.numpy(), expected)
    np.testing.assert_array_equal(found.next_obs.numpy(), frames[1:].transpose(1, 0, 2))
    assert isinstance(policy(agent).config, BoundedActorConfig)
