"""Windows drawn from a replay are pieces of what was played, whatever was evicted before."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.data.codec import dump_state, parse_state
from srl.data.records import Trajectory
from srl.data.replay import Replay, key_base, shard_of
from srl.data.replay_columns import replay_bytes
from srl.data.samplers import (
    MakeSampler,
    PrioritizedSampler,
    SamplerName,
    UniformSampler,
    sampler_maker,
)
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.stacking import stack_index
from srl.data.trajectory import TrajectorySpec, to_tree
from srl.data.tree import leaves
from srl.errors import ConfigError


def uniform(seed: int) -> MakeSampler:
    return partial(UniformSampler, seed=seed)


PARTS = 9
"""Fragments that an agent batch plays."""


def spec(length: int, *, envs: int, agents: int = 1, stack: int = 1, **fields: Any) -> Any:
    obs = {"frame": ArraySpec(shape=(2,), stack=stack), "where": ArraySpec(shape=(3,))}
    return TrajectorySpec(
        length=length,
        rows=envs * agents,
        envs=envs,
        agent=AgentSpec(obs=obs, action=Discrete(2), has_action_mask=True),
        extras={"value": ArraySpec()},
        env_state=ArraySpec(shape=(2,)),
        **fields,
    )


class Played:
    """Everything that one agent batch has played, tick by tick."""

    def __init__(self, stored: TrajectorySpec, origin: int, rng: np.random.Generator) -> None:
        self.stored = stored
        every = msgspec.structs.replace(stored, state_every=1, burn_in=0)
        self.ticks = stored.burn_in + PARTS * stored.length + stored.bootstrap
        self.all = every.allocate(self.ticks)
        for array in leaves(to_tree(self.all)):
            if array.dtype == bool:
                array[...] = rng.random(array.shape) < 0.2
            else:
                array[...] = rng.integers(1 << 20, size=array.shape)
        where = self.all.obs["where"]
        where[..., 0] = origin
        where[..., 1] = np.arange(self.ticks)[:, None]
        where[..., 2] = np.arange(stored.rows)

    def fragment(self, number: int) -> Trajectory:
        """A fragment as an actor writes it; what is in front of its stacks is not said."""
        found = self.stored.allocate()
        start, stored = number * self.stored.length, self.stored
        end = start + stored.capacity
        for name, whole in to_tree(self.all).items():
            for to, played in zip(leaves(getattr(found, name)), leaves(whole), strict=True):
                if name == "policy_state":
                    to[...] = played[start : end : stored.state_every]
                else:
                    depth = len(played) - self.ticks
                    to[:depth] = 0
                    to[depth:] = played[start + depth : end + depth]
        return found

    def stacks(self) -> np.ndarray:
        """What the policy saw at every tick: [ticks, rows, stack, 2]."""
        return stacked(self.all, self.stored)


def stacked(data: Trajectory, like: TrajectorySpec) -> np.ndarray:
    depth = like.agent.obs["frame"].stack
    index = stack_index(data.is_first, depth)
    found: np.ndarray = data.obs["frame"][index, np.arange(index.shape[1])[None, :, None]]
    return found


def check_windows(data: Trajectory, drawn: TrajectorySpec, played: list[Played]) -> None:
    agents = drawn.num_agents
    seen = stacked(data, drawn)
    for env in range(drawn.envs):
        origin, start, row = data.obs["where"][0, env * agents].astype(int)
        whole = played[origin]
        assert row % agents == 0, "a window has all agents of an environment"
        ticks = slice(start, start + drawn.capacity)
        theirs, mine = slice(row, row + agents), slice(env * agents, (env + 1) * agents)
        for name, array in to_tree(whole.all).items():
            if name == "row":
                continue
            for got, expected in zip(leaves(getattr(data, name)), leaves(array), strict=True):
                if name == "env_state":
                    np.testing.assert_array_equal(got[:, env], expected[ticks, row // agents])
                elif name == "policy_state":
                    states = expected[ticks][:: drawn.state_every, theirs]
                    np.testing.assert_array_equal(got[:, mine], states)
                else:
                    depth = len(expected) - whole.ticks
                    np.testing.assert_array_equal(
                        got[depth:, mine], expected[depth:][ticks, theirs], err_msg=name
                    )
        np.testing.assert_array_equal(seen[:, mine], whole.stacks()[ticks, theirs])


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_windows_are_what_was_played(data: st.DataObject) -> None:
    rng = np.random.default_rng(data.draw(st.integers(0, 1000)))
    every = data.draw(st.sampled_from([1, 2]))
    length, stack = every * data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    envs, agents = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 2))
    state = data.draw(st.sampled_from([None, ArraySpec(shape=(2,))]))
    shared = {"agents": agents, "stack": stack, "policy_state": state}
    burn_in = every * data.draw(st.integers(0, 1))
    bootstrap = data.draw(st.integers(1, 2))
    stored = spec(
        length, envs=envs, burn_in=burn_in, bootstrap=bootstrap, state_every=every, **shared
    )
    drawn = spec(
        2 * every * data.draw(st.integers(1, 3)),
        envs=4,
        state_every=2 * every if state else 1,
        bootstrap=data.draw(st.integers(1, 4)),
        row={"key": ArraySpec(dtype="int64"), "weight": ArraySpec()},
        **shared,
    )
    least = -(-(drawn.capacity + stack - 1) // length)
    capacity = data.draw(st.integers(least, least + 12))
    replay = Replay(stored, drawn, capacity * length * envs, uniform(1))
    played = [Played(stored, origin, rng) for origin in range(2)]
    todo = [(origin, number) for number in range(PARTS) for origin in range(2)]
    lost = data.draw(st.sets(st.sampled_from(todo), max_size=3))
    swapped = data.draw(st.integers(0, len(todo) - 2))
    todo[swapped], todo[swapped + 1] = todo[swapped + 1], todo[swapped]
    kept: list[tuple[int, int]] = []
    into = drawn.allocate()
    for origin, number in todo:
        if (origin, number) in lost:
            continue
        replay.insert(played[origin].fragment(number), stored.capacity, origin, number)
        kept = [*kept, (origin, number)][-capacity:]
        expected = starts(kept, stored, drawn, state is not None)
        assert replay.sampler.num_starts == len(expected)
        assert replay.can_draw == bool(expected)
        if expected:
            replay.draw(into)
            check_windows(into, drawn, played)
            where = into.obs["where"][0, ::agents].astype(int)
            assert {(origin, start) for origin, start, _ in where.tolist()} <= expected


def starts(
    kept: list[tuple[int, int]], stored: TrajectorySpec, drawn: TrajectorySpec, aligned: bool
) -> set[tuple[int, int]]:
    """Origin and tick of every window that the fragments have, with the frames in front."""
    length, depth = stored.length, stored.agent.obs["frame"].stack - 1
    ticks = {
        (origin, stored.burn_in + number * length + tick)
        for origin, number in kept
        for tick in range(length)
    }
    step = stored.state_every if aligned else 1
    return {
        (origin, start)
        for origin, start in ticks
        if (start - stored.burn_in) % step == 0
        and all((origin, start + tick) in ticks for tick in range(-depth, drawn.capacity))
    }


def test_every_window_is_drawn_equally_often() -> None:
    stored, drawn = spec(4, envs=2), spec(2, envs=1000)
    replay = Replay(stored, drawn, 1000, uniform(3))
    played = Played(stored, 0, np.random.default_rng(0))
    for number in range(3):
        replay.insert(played.fragment(number), stored.capacity, 0, number)
    counts: dict[tuple[int, ...], int] = {}
    into = drawn.allocate()
    for _ in range(20):
        replay.draw(into)
        for _, tick, row in into.obs["where"][0].astype(int).tolist():
            counts[tick, row] = counts.get((tick, row), 0) + 1
    assert set(counts) == {(tick, row) for tick in range(10) for row in range(2)}
    # Each 1000 of 20,000: six standard deviations.
    assert all(abs(count - 1000) < 6 * 31 for count in counts.values())


def test_the_same_seed_draws_the_same() -> None:
    stored = spec(4, envs=2)
    drawn = spec(2, envs=8)
    found = []
    for seed in (1, 1, 2):
        replay = Replay(stored, drawn, 1000, uniform(seed))
        played = Played(stored, 0, np.random.default_rng(0))
        for number in range(3):
            replay.insert(played.fragment(number), stored.capacity, 0, number)
        into = drawn.allocate()
        replay.draw(into)
        found.append(into.obs["where"].tolist())
    assert found[0] == found[1] != found[2]


def test_its_bytes_are_those_of_what_it_keeps_once() -> None:
    stored = spec(8, envs=4, stack=4)
    replay = Replay(stored, spec(1, envs=32, stack=4), 10 * 8 * 4, uniform(1))
    assert replay.capacity == 10
    held = sum(store.array.nbytes for store in replay._stores)
    assert replay.nbytes == replay_bytes(stored, 10) == held
    frames = 10 * 8 * 4 * 2 * 4
    assert sum(s.array.nbytes for s in replay._stores if s.column.depth) == frames


@pytest.mark.parametrize(
    ("drawn", "message"),
    [
        (spec(4, envs=2, agents=2), "the same num_agents .* got 1 and 2"),
        (spec(4, envs=2, stack=2), "the same agent"),
        (spec(4, envs=2, policy_state=ArraySpec()), "the same policy_state"),
        (spec(4, envs=1, cut="episode"), "cut 'fixed', got 'episode'"),
    ],
)
def test_specs_that_do_not_fit_are_refused(drawn: TrajectorySpec, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Replay(spec(4, envs=2), drawn, 100, uniform(1))


def test_a_replay_without_room_for_a_window_is_refused() -> None:
    stored, drawn = spec(4, envs=2, stack=3), spec(5, envs=2, stack=3, bootstrap=3)
    with pytest.raises(ConfigError, match=r"a window of 10 ticks .* got 16 .* to 24 at least"):
        Replay(stored, drawn, 16, uniform(1))
    assert Replay(stored, drawn, 24, uniform(1)).capacity == 3


def test_states_that_were_not_stored_cannot_be_drawn() -> None:
    stored = spec(6, envs=1, policy_state=ArraySpec(), state_every=2)
    with pytest.raises(ConfigError, match=r"a multiple of .* \(2\), got 3"):
        Replay(stored, spec(6, envs=1, policy_state=ArraySpec(), state_every=3), 100, uniform(1))


def test_priorities_come_back_by_key_and_only_to_windows_that_are_there():
    row = {"key": ArraySpec(dtype="int64"), "weight": ArraySpec()}
    stored = spec(4, envs=2)
    drawn = spec(1, envs=64, row=row)
    make = partial(PrioritizedSampler, seed=1, exponent=1.0)
    base = key_base(3, 2)
    replay = Replay(stored, drawn, 3 * 4 * 2, make, key_base=base)
    played = Played(stored, 7, np.random.default_rng(1))
    for number in range(3):
        replay.insert(played.fragment(number), stored.capacity, 7, number)
    into = drawn.allocate()
    replay.draw(into)
    keys = np.unique(into.row["key"])
    assert set(shard_of(keys)) == {3}
    assert into.row["weight"] == pytest.approx(1.0)
    # One window is worth learning from, and others are not.
    chosen = keys[5]
    assert replay.feed(keys, np.where(keys == chosen, 50.0, 0.0)) == len(keys)
    replay.draw(into)
    assert (into.row["key"] == chosen).mean() > 0.5
    weights = into.row["weight"][into.row["key"] == chosen]
    assert weights == pytest.approx(weights[0])
    assert weights[0] < 1.0
    # What another worker, or this one before its restart, has drawn says nothing here.
    for other in (key_base(2, 2), key_base(3, 1), key_base(3, 3)):
        assert replay.feed(keys - base + other, np.ones(len(keys))) == 0
    # Nor does what is gone.
    for number in range(3, 6):
        replay.insert(played.fragment(number), stored.capacity, 7, number)
    assert replay.feed(keys, np.ones(len(keys))) == 0


@pytest.mark.parametrize("kind", ["uniform", "prioritized", "fifo"])
def test_a_restored_replay_goes_on_as_if_nothing_had_been(kind: SamplerName) -> None:
    """Saved in pieces after some fragments were evicted, and before two halves of a window met."""
    row = {"key": ArraySpec(dtype="int64"), "weight": ArraySpec()}
    stored = spec(4, envs=2, stack=2, policy_state=ArraySpec(shape=(2,)), state_every=2)
    shared = {"stack": 2, "policy_state": ArraySpec(shape=(2,)), "state_every": 2}
    drawn = spec(2, envs=4, row=row, **shared)
    played = Played(stored, 0, np.random.default_rng(0))

    def new() -> Replay:
        make = sampler_maker(kind, seed=1, exponent=0.6, length=2, uses=50)
        return Replay(stored, drawn, 5 * 4 * 2, make, key_base=key_base(1, 1))

    first, second = new(), new()
    into, again = drawn.allocate(), drawn.allocate()
    for number in range(PARTS - 1):
        first.insert(played.fragment(number), stored.capacity, 0, number)
    first.draw(into)
    first.feed(into.row["key"], np.arange(1.0, 5.0))
    numbers = first.numbers
    pieces = [range(2, 5), range(5, 8)]
    assert (numbers.start, numbers.stop) == (3, 8)
    contents = [first.content(range(max(p.start, numbers.start), p.stop)) for p in pieces]
    state = parse_state(dump_state(first.state()))
    second.restore(state, (parse_state(dump_state(content)) for content in contents))
    for replay in (first, second):
        replay.insert(played.fragment(PARTS - 1), stored.capacity, 0, PARTS - 1)
    assert first.sampler.num_starts == second.sampler.num_starts > 0
    for _ in range(6):
        first.draw(into)
        second.draw(again)
        for one, other in zip(leaves(to_tree(into)), leaves(to_tree(again)), strict=True):
            np.testing.assert_array_equal(one, other)
        assert first.feed(into.row["key"], np.ones(4)) == 4
        assert second.feed(again.row["key"], np.ones(4)) == 4

    with pytest.raises(ValueError, match="expected 5 fragments, got 3 fewer"):
        new().restore(state, contents[:1])


def test_fragments_of_another_session_continue_nothing() -> None:
    stored, drawn = spec(4, envs=1), spec(4, envs=1)
    replay = Replay(stored, drawn, 100, uniform(1))
    played = Played(stored, 0, np.random.default_rng(0))
    replay.insert(played.fragment(0), stored.capacity, 0, 0)
    replay.session = 1
    replay.insert(played.fragment(1), stored.capacity, 0, 1)
    assert not replay.can_draw
    replay.insert(played.fragment(2), stored.capacity, 0, 2)
    assert replay.can_draw
