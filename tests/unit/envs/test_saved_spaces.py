"""What a run saves of its environment's spaces is enough to act without the environment."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from gymnasium import spaces

from srl.data.spec import EnvSpec
from srl.data.tree import flatten
from srl.envs.saved_spaces import SavedSpaces
from srl.envs.spaces import ActionAdapter, agent_spaces, agent_spec, obs_starts

VECTOR = spaces.Box(-np.inf, np.inf, (3,), np.float64)
NESTED = spaces.Dict(
    {
        "camera": spaces.Box(0, 255, (84, 84, 3), np.uint8),
        "pair": spaces.Tuple((VECTOR, spaces.Discrete(4, start=-1))),
        "many": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, 2]]),
        "flags": spaces.MultiBinary(3),
    }
)


@pytest.mark.parametrize(
    ("observation", "action"),
    [
        (VECTOR, spaces.Discrete(3, start=5)),
        (NESTED, spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 0], [0, 2]])),
        (NESTED, spaces.MultiBinary([2, 2])),
        (VECTOR, spaces.Box(-np.inf, 2.5, (2, 2), np.float64)),
        (VECTOR, spaces.Box(0.1, 0.7, (2,), np.float32)),
        (VECTOR, spaces.Box(-3, 9, (2,), np.int16)),
        (
            spaces.Dict({"observation": VECTOR, "action_mask": spaces.Box(0, 1, (3, 4), np.int8)}),
            spaces.MultiDiscrete([3, 4]),
        ),
    ],
)
def test_saved_spaces_take_observations_and_give_actions_as_the_spaces_do(
    observation: spaces.Space[Any], action: spaces.Space[Any]
) -> None:
    own = agent_spaces(observation, action)
    spec = EnvSpec(agents={"agent": agent_spec(observation, action, stack=2)})
    data = SavedSpaces.of(spec, {"agent": own}).encoded()
    assert len(data) < 3000
    found = msgspec.json.decode(data, type=SavedSpaces)
    assert found.spec == spec
    again = found.agent("agent")
    assert (again.mask_dims, again.alone) == (own.mask_dims, own.alone)
    starts = {path: x.tolist() for path, x in flatten(obs_starts(own.observation)).items()}
    assert {p: x.tolist() for p, x in flatten(obs_starts(again.observation)).items()} == starts
    raw = _stored_actions(own.action)
    expected = ActionAdapter(own.action).batch(raw)
    given = ActionAdapter(again.action).batch(raw)
    np.testing.assert_array_equal(given, expected)
    assert given.dtype == expected.dtype


def _stored_actions(space: spaces.Space[Any]) -> np.ndarray:
    rng = np.random.default_rng(0)
    if isinstance(space, spaces.Discrete):
        return rng.integers(0, space.n, 20)
    if isinstance(space, spaces.MultiDiscrete):
        return rng.integers(0, space.nvec.reshape(-1), (20, space.nvec.size))
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, (20, int(np.prod(space.shape))), np.int8)
    return rng.normal(0, 5, (20, *space.shape)).astype(np.float32)
