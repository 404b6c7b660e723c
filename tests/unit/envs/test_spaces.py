"""Spaces to specs and back."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from srl.data.spec import ArraySpec, Box, Discrete, MultiBinary, MultiDiscrete
from srl.envs.buffers import BadObservation, ObsBuffer
from srl.envs.spaces import ActionAdapter, action_spec, agent_spec, obs_spec
from srl.errors import ConfigError


def test_trees_keep_their_keys() -> None:
    space = spaces.Dict(
        {
            "camera": spaces.Box(0, 255, (4, 4), np.uint8),
            "body": spaces.Tuple((spaces.Box(-1, 1, (2,), np.float64), spaces.Discrete(3))),
            "grid": spaces.MultiDiscrete([[2, 3], [4, 5]]),
            "bits": spaces.MultiBinary(3),
        }
    )
    assert obs_spec(space) == {
        "camera": ArraySpec(shape=(4, 4), dtype="uint8"),
        "body": {"0": ArraySpec(shape=(2,)), "1": ArraySpec(dtype="int64", categories=(3,))},
        "grid": ArraySpec(shape=(2, 2), dtype="int64", categories=(2, 3, 4, 5)),
        "bits": ArraySpec(shape=(3,), dtype="int8"),
    }


@pytest.mark.parametrize("seed", range(5))
def test_samples_are_written_where_they_belong(seed: int) -> None:
    space = spaces.Dict(
        {
            "b": spaces.Tuple((spaces.Discrete(3, start=5), spaces.Box(-1, 1, (2,), np.float64))),
            "a": spaces.MultiDiscrete([3, 4], start=[1, 2]),
        },
        seed=seed,
    )
    buffer = ObsBuffer(space, 3)
    samples = [space.sample() for _ in range(3)]
    for row, sample in enumerate(samples):
        buffer.write(row, sample)
    for row, sample in enumerate(samples):
        assert buffer.arrays["b"]["0"][row] == sample["b"][0] - 5
        assert (buffer.arrays["b"]["1"][row] == sample["b"][1].astype(np.float32)).all()
        assert (buffer.arrays["a"][row] == sample["a"] - [1, 2]).all()


@pytest.mark.parametrize(
    "space",
    [
        spaces.Text(5),
        spaces.Sequence(spaces.Discrete(2)),
        spaces.Graph(spaces.Box(0, 1, (2,)), None),
        spaces.OneOf((spaces.Discrete(2),)),
        spaces.Dict({"x": spaces.Text(3)}),
        spaces.Dict({}),
        spaces.Dict({"a.b": spaces.Discrete(2)}),
    ],
)
def test_what_has_no_fixed_size_is_refused(space: gymnasium.Space) -> None:
    with pytest.raises(ConfigError, match=r"wrapper|Remove"):
        obs_spec(space)


def test_actions() -> None:
    assert action_spec(spaces.Discrete(4, start=2)) == Discrete(4)
    assert action_spec(spaces.MultiDiscrete([2, 3])) == MultiDiscrete((2, 3))
    assert action_spec(spaces.MultiBinary(4)) == MultiBinary(4)
    box = action_spec(spaces.Box(-1, np.inf, (2,)))
    assert box == Box((2,), (-1.0, -1.0), (np.inf, np.inf))
    with pytest.raises(ConfigError, match="Tuple"):
        action_spec(spaces.Tuple((spaces.Discrete(2),)))


@pytest.mark.parametrize(
    ("space", "stored"),
    [
        (spaces.Discrete(4), np.array([0, 3])),
        (spaces.Discrete(4, start=-2), np.array([0, 3])),
        (spaces.MultiDiscrete([2, 3], start=[4, 5]), np.array([[0, 0], [1, 2]])),
        (spaces.MultiBinary(3), np.array([[0, 1, 0], [1, 1, 1]], np.int8)),
        (spaces.Box(-1, 1, (2,), np.float64), np.array([[5, 0.5], [-9, -1]], np.float32)),
        (spaces.Box(0, 9, (1,), np.int32), np.array([[3.6], [42.0]], np.float32)),
    ],
)
def test_environments_get_what_their_space_contains(space, stored) -> None:
    adapter = ActionAdapter(space)
    batch = adapter.batch(stored)
    for action in batch:
        assert space.contains(action)
        assert action.dtype == space.dtype
    written = np.zeros_like(batch)
    adapter.write(stored, written)
    np.testing.assert_array_equal(written, batch)


@pytest.mark.parametrize(
    "value", [np.zeros(3, np.float32), np.zeros((2, 1), np.float32), 0.0, np.zeros(2, np.complex64)]
)
def test_what_does_not_fit_is_not_broadcast(value) -> None:
    buffer = ObsBuffer(spaces.Box(-1, 1, (2,), np.float32), 2)
    with pytest.raises(BadObservation, match=r"expected float32\[2\]"):
        buffer.write(0, value)


def test_integers_do_not_wrap() -> None:
    buffer = ObsBuffer(spaces.Box(0, 255, (1,), np.uint8), 1)
    with pytest.raises(BadObservation):
        buffer.write(0, np.array([300]))


def test_infinity_is_allowed_only_where_the_space_has_no_bound() -> None:
    low, high = np.array([-1, -np.inf], np.float32), np.array([1, np.inf], np.float32)
    buffer = ObsBuffer(spaces.Box(low, high), 2)
    buffer.write(1, np.array([0, np.inf], np.float32))
    assert buffer.broken_row() is None
    buffer.write(1, np.array([np.inf, 0], np.float32))
    broken = buffer.broken_row()
    assert broken is not None
    assert broken[0] == 1


def test_a_mask_in_the_observation_is_taken_out() -> None:
    space = spaces.Dict(
        observation=spaces.Box(0, 1, (3,)), action_mask=spaces.Box(0, 1, (4,), np.int8)
    )
    spec = agent_spec(space, spaces.Discrete(4))
    assert spec.obs == ArraySpec(shape=(3,))
    assert spec.has_action_mask
