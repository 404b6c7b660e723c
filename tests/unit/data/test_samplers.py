"""Samplers choose exactly the windows that are allowed, as often as they say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.algorithms.ops.priorities import importance_weight
from srl.data.samplers import FifoSampler, PrioritizedSampler, UniformSampler, Windows

SLOTS, TICKS, ENVS = 5, 6, 2


def names(windows: Windows) -> list[tuple[int, int, int]]:
    return list(zip(*(part.tolist() for part in windows), strict=True))


def allowed_windows(starts: dict[int, tuple[int, int]], align: int) -> set[tuple[int, int, int]]:
    return {
        (slot, start, env)
        for slot, (first, end) in starts.items()
        for start in range(0, TICKS, align)
        if first <= start < end
        for env in range(ENVS)
    }


RANGE = st.tuples(st.integers(0, TICKS), st.integers(0, TICKS)).map(
    lambda pair: tuple(sorted(pair))
)


@settings(max_examples=60, deadline=None)
@given(
    changes=st.lists(st.tuples(st.integers(0, SLOTS - 1), RANGE), min_size=1, max_size=20),
    align=st.sampled_from([1, 2, 3]),
    kind=st.sampled_from([UniformSampler, PrioritizedSampler]),
)
def test_only_allowed_windows_are_chosen_and_all_of_them(changes, align, kind):
    more = {"exponent": 0.5} if kind is PrioritizedSampler else {}
    sampler = kind(SLOTS, TICKS, align, ENVS, seed=1, **more)
    starts: dict[int, Any] = {}
    for slot, (first, end) in changes:
        sampler.allow(slot, first, end)
        starts[slot] = (first, end)
    wanted = allowed_windows(starts, align)
    assert sampler.num_starts * ENVS == len(wanted)
    assert sampler.can_choose(1) == bool(wanted)
    if wanted:
        windows, relative = sampler.choose(40 * len(wanted), SLOTS)
        assert set(names(windows)) == wanted
        if relative is not None:
            assert relative == pytest.approx(1.0)


def test_windows_are_chosen_in_proportion_to_their_priorities():
    sampler = PrioritizedSampler(SLOTS, TICKS, 1, ENVS, seed=3, exponent=0.5)
    for slot in range(SLOTS):
        sampler.allow(slot, 1, TICKS)
    rng = np.random.default_rng(0)
    every = np.array(sorted(allowed_windows(dict.fromkeys(range(SLOTS), (1, TICKS)), 1)))
    windows = Windows(*every.T)
    priorities = rng.random(len(every)) * 9
    sampler.feed(windows, priorities)
    wanted = np.maximum(priorities, 1e-6) ** 0.5
    wanted /= wanted.sum()
    count = 60_000
    chosen, relative = sampler.choose(count, SLOTS)
    assert relative is not None
    index = {name: number for number, name in enumerate(map(tuple, every.tolist()))}
    numbers = np.array([index[name] for name in names(chosen)])
    shares = np.bincount(numbers, minlength=len(every)) / count
    # Each share of the mass has one draw, so the counts are almost exact.
    assert np.abs(shares - wanted).max() < 3 / count * len(every)
    assert relative == pytest.approx(wanted[numbers] * len(every))


def test_new_windows_have_the_highest_priority_so_far():
    sampler = PrioritizedSampler(SLOTS, TICKS, 1, 1, seed=3, exponent=1.0)
    sampler.allow(0, 0, 2)
    one = np.zeros(1, np.int64)
    sampler.feed(Windows(one, one, one), np.array([9.0]))
    sampler.feed(Windows(one, one + 1, one), np.array([0.0]))
    sampler.allow(1, 0, 1)
    chosen, _ = sampler.choose(1000, 2)
    counts = {name: names(chosen).count(name) for name in ((0, 0, 0), (0, 1, 0), (1, 0, 0))}
    assert counts[0, 1, 0] <= 1
    assert abs(counts[0, 0, 0] - counts[1, 0, 0]) <= 2


def test_many_windows_are_found_by_blocks():
    slots, ticks = 3000, 8
    sampler = PrioritizedSampler(slots, ticks, 1, 1, seed=1, exponent=1.0)
    for slot in range(slots):
        sampler.allow(slot, 0, ticks)
    every = np.arange(slots * ticks)
    windows = Windows(every // ticks, every % ticks, np.zeros_like(every))
    priorities = np.where(every % 997 == 5, 1.0, 0.0)
    sampler.feed(windows, priorities)
    chosen, _ = sampler.choose(5000, slots)
    assert np.mean((chosen.slot * ticks + chosen.start) % 997 == 5) > 0.99


def test_fifo_takes_windows_in_turn_and_each_so_often():
    sampler = FifoSampler(SLOTS, TICKS, 1, ENVS, seed=1, length=3, uses=2)
    for slot in range(3):
        sampler.allow(slot, 0, TICKS)
    turn = [(slot, start, env) for slot in range(3) for start in (0, 3) for env in range(ENVS)]
    assert sampler.can_choose(12)
    assert not sampler.can_choose(13)
    found = names(sampler.choose(8, 3)[0])
    assert found == turn[:8]
    # The slot's fragment is replaced: what is left of the old one is gone.
    sampler.allow(2, 0, 0)
    sampler.allow(2, 0, 3)
    found = [name for _ in range(5) for name in names(sampler.choose(2, 3)[0])]
    assert found == [*turn[:8], *[(2, 0, env) for env in range(ENVS)]]
    assert not sampler.can_choose(3)
    assert names(sampler.choose(2, 3)[0]) == [(2, 0, 0), (2, 0, 1)]
    assert not sampler.can_choose(1)


LENGTH = 10
"""Right actions in a row that pay 1. A wrong one leads back to the start."""


def chain_of_random_actions(count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Places, actions, rewards and next places; an action is right if it is 1."""
    rng = np.random.default_rng(5)
    action, place = rng.integers(2, size=count), np.zeros(count + 1, np.int64)
    for step in range(count):
        place[step + 1] = (place[step] + 1) % LENGTH if action[step] else 0
    paid = (place[:-1] == LENGTH - 1) & (action == 1)
    return place[:-1], action, paid.astype(np.float64), place[1:]


def updates_until_solved(sampler: PrioritizedSampler | UniformSampler, gamma: float = 0.9) -> int:
    """Batches of eight, each weighted as a learner does, until Q-learning in a table is right."""
    slots, ticks = 64, 64
    place, action, reward, following = chain_of_random_actions(slots * ticks)
    assert 1 <= reward.sum() <= 10
    for slot in range(slots):
        sampler.allow(slot, 0, ticks)
    value = np.zeros((LENGTH, 2))
    for update in range(1, 20_000):
        windows, relative = sampler.choose(8, slots)
        at = windows.slot * ticks + windows.start
        bootstrap = np.where(reward[at] > 0, 0.0, gamma * value[following[at]].max(1))
        error = reward[at] + bootstrap - value[place[at], action[at]]
        weight = np.ones(8)
        if relative is not None:
            weight = importance_weight(torch.from_numpy(1.0 / relative), 0.4).numpy()
        np.add.at(value, (place[at], action[at]), 0.25 * weight * error)
        sampler.feed(windows, np.abs(error))
        if value[0, 1] > 0.5 * gamma ** (LENGTH - 1):
            return update
    return 20_000


def test_priorities_need_fewer_updates_where_rewards_are_rare():
    """The chain of Schaul et al. 2016, section 3.1: few of many transitions tell something."""
    for seed in range(3):
        uniform = updates_until_solved(UniformSampler(64, 64, 1, 1, seed))
        prioritized = updates_until_solved(PrioritizedSampler(64, 64, 1, 1, seed, exponent=0.6))
        # Seen over seeds 0 to 4: 0.28 to 0.57 of them.
        assert prioritized < 0.7 * uniform
