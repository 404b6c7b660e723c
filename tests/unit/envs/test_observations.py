"""Observations that are not in their space, and masks that come with them."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from playing import group_of, play

from srl.acting import ActingPolicy
from srl.data.spec import Discrete, MultiDiscrete
from srl.envs.check import check_env, random_actions
from srl.envs.listing import list_envs
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe_spaces
from srl.envs.spaces import agent_spec
from srl.errors import ConfigError, EnvError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig


class _Shows(gymnasium.Env):
    """Shows what `OBS` holds, one after the other, and then the last one."""

    OBS: tuple[Any, ...] = ()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.ticks = 0
        return self.OBS[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.ticks += 1
        return self.OBS[min(self.ticks, len(self.OBS) - 1)], 0.0, False, self.ticks == 20, {}


class OutOfRange(_Shows):
    observation_space = spaces.Discrete(4, start=1)
    action_space = spaces.Discrete(2)
    OBS = (1, 4, 5)


class Negative(_Shows):
    observation_space = spaces.Discrete(4, start=1)
    action_space = spaces.Discrete(2)
    OBS = (1, 0)


class OutOfRanges(_Shows):
    observation_space = spaces.Dict(
        {"near": spaces.Box(-1, 1, (2,)), "kinds": spaces.MultiDiscrete([2, 3])}
    )
    action_space = spaces.Discrete(2)
    OBS = (
        {"near": np.zeros(2, np.float32), "kinds": np.array([1, 2])},
        {"near": np.zeros(2, np.float32), "kinds": np.array([1, 3])},
    )


class Careless(_Shows):
    """Has a part that is out of bounds, and one of another dtype."""

    observation_space = spaces.Dict(
        {
            "fine": spaces.Discrete(3),
            "near": spaces.Box(-1, 1, (2,)),
            "pair": spaces.Tuple((spaces.Box(0, 9, (1,), np.float32), spaces.Discrete(2))),
        }
    )
    action_space = spaces.Discrete(2)
    OBS = (
        {
            "fine": 2,
            "near": np.array([0.0, 1.75], np.float32),
            "pair": (np.array([2.5], np.float64), 1),
        },
    )


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("OutOfRange", "obs: expected a number from 1 to 4, got 5,"),
        ("Negative", "obs: expected a number from 1 to 4, got 0,"),
        ("OutOfRanges", "obs.kinds: expected a number from 0 to 2, got 3 at [1],"),
    ],
)
def test_a_category_that_there_is_none_of_is_an_error(name: str, problem: str) -> None:
    group = group_of(f"{__name__}:{name}", 2)
    with pytest.raises(EnvError, match="from environment 0 in step") as caught:
        play(group, 3)
    assert problem in str(caught.value)
    findings = {f.title: f for f in check_env(EnvConfig(id=f"{__name__}:{name}"))}
    assert findings["protocol"].level == "error"
    assert problem in findings["protocol"].detail


def test_vectors_and_teams_are_judged_as_well() -> None:
    for id in ("CountingVector", "counting_team"):
        group = group_of(f"{__name__}:{id}", 2, {"main": ("agent",)})
        with pytest.raises(EnvError, match="expected a number from 0 to 2, got 3, from env"):
            play(group, 3)


class CountingVector(gymnasium.vector.VectorEnv):
    """Counts up, and past what it declared."""

    metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}  # noqa: RUF012
    has_action_mask = False

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self.single_observation_space = spaces.Discrete(3)
        self.single_action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        self.seen = np.zeros(self.num_envs, np.int64)
        return self.seen, {}

    def step(self, actions: Any) -> tuple[Any, ...]:
        self.seen = self.seen + 1
        no = np.zeros(self.num_envs, bool)
        return self.seen, np.zeros(self.num_envs), no, no, {}


def counting_team() -> Any:
    pettingzoo = pytest.importorskip("pettingzoo")

    class Counting(pettingzoo.ParallelEnv):
        metadata = {"name": "counting"}  # noqa: RUF012
        possible_agents = ("agent",)
        has_action_mask = False

        def observation_space(self, agent: str) -> spaces.Space:
            return spaces.Discrete(3)

        def action_space(self, agent: str) -> spaces.Space:
            return spaces.Discrete(2)

        def reset(self, seed: int | None = None, options: Any = None) -> tuple[dict, dict]:
            self.agents, self.seen = ["agent"], 0
            return {"agent": 0}, {"agent": {}}

        def step(self, actions: dict) -> tuple[dict, ...]:
            self.seen += 1
            no = {"agent": False}
            return {"agent": self.seen}, {"agent": 0.0}, no, no, {"agent": {}}

    return Counting()


def test_check_names_key_dtype_and_value() -> None:
    findings = [f for f in check_env(EnvConfig(id=f"{__name__}:Careless")) if f.level != "ok"]
    told = [f for f in findings if f.title == "observations"]
    assert [f.level for f in told] == ["warning", "warning"]
    assert "obs.near: expected Box(-1.0, 1.0, (2,), float32), got float32[2]" in told[0].detail
    assert "with 1.75 at [1]" in told[0].detail
    assert "obs.pair.0: expected Box(0.0, 9.0, (1,), float32), got float64[1]" in told[1].detail
    assert "with 2.5 at [0]" in told[1].detail


# -- masks -----------------------------------------------------------------------------------------


class Masked(_Shows):
    """A mask beside several other keys; what it forbids, it refuses."""

    observation_space = spaces.Dict(
        {
            "action_mask": spaces.MultiBinary(3),
            "place": spaces.Box(0, 1, (2,)),
            "kind": spaces.Discrete(2),
        }
    )
    action_space = spaces.Discrete(3)

    def _obs(self) -> dict[str, Any]:
        self.mask = np.array([0, 1, 0], np.int8) if self.ticks % 2 else np.array([1, 0, 0], np.int8)
        return {"action_mask": self.mask, "place": np.zeros(2, np.float32), "kind": 1}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict]:
        gymnasium.Env.reset(self, seed=seed)
        self.ticks = 0
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.mask[int(action)], f"{action} is not allowed"
        self.ticks += 1
        return self._obs(), 0.0, False, self.ticks == 20, {}


class MaskedPairs(Masked):
    """A mask over combinations of two choices."""

    observation_space = spaces.Dict(
        {"action_mask": spaces.Box(0, 1, (2, 3), np.int8), "place": spaces.Box(0, 1, (2,))}
    )
    action_space = spaces.MultiDiscrete([2, 3], start=[0, 5])

    def _obs(self) -> dict[str, Any]:
        # Alone every choice is allowed; together only these two.
        self.mask = np.array([[0, 1, 0], [1, 0, 0]], np.int8)
        return {"action_mask": self.mask, "place": np.zeros(2, np.float32)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        assert self.mask[int(action[0]), int(action[1]) - 5], f"{action} is not allowed"
        self.ticks += 1
        return self._obs(), 0.0, False, self.ticks == 20, {}


class MisfitMask(Masked):
    action_space = spaces.Discrete(4)


@pytest.mark.parametrize(
    ("id", "keys", "action"),
    [
        (f"{__name__}:Masked", {"place", "kind"}, Discrete(3)),
        (f"{__name__}:MaskedPairs", {"place"}, Discrete(6)),
        ("envpool:Knapsack-v1", {"weights", "values", "packed_items"}, Discrete(50)),
        ("envpool:Play2048-v1", None, Discrete(4)),
        ("envpool:Connector-v2", {"grid", "step_count"}, MultiDiscrete((5,) * 10)),
        ("envpool:Minesweeper-v0", None, Discrete(100)),
    ],
)
def test_a_leaf_named_action_mask_is_the_mask(id: str, keys: set[str] | None, action: Any) -> None:
    if id.startswith("envpool:"):
        pytest.importorskip("envpool")
    group = group_of(id, 3)
    try:
        agent = group.spec.agents["agent"]
        assert agent.has_action_mask
        assert agent.action == action
        if keys is not None:
            assert set(agent.obs) == keys
        random = np.random.default_rng(0)
        steps, forbidden = group.reset(0), 0
        for _ in range(30):
            forbidden += int((~steps["main"].action_mask[steps["main"].turn]).sum())
            steps = group.step(random_actions(group.spec, steps, group.policy_agents, random))
        assert forbidden
    finally:
        group.close()


def test_check_plays_by_masks_in_observations() -> None:
    for name in ("Masked", "MaskedPairs"):
        findings = {f.title: f for f in check_env(EnvConfig(id=f"{__name__}:{name}"))}
        assert not [f for f in findings.values() if f.level == "error"]
        assert findings["observations"].level == "ok"


@pytest.mark.parametrize("kind", [Masked, MaskedPairs])
def test_a_loaded_policy_acts_on_what_the_environment_shows(kind: type[Masked]) -> None:
    """The environment refuses what its mask forbids."""
    own = probe_spaces(EnvConfig(id=f"{__name__}:{kind.__name__}"))["agent"]
    spec = agent_spec(kind.observation_space, kind.action_space)
    policy = ActingPolicy(ActorCritic(spec, ActorCriticConfig()), "default", own)
    env = kind()
    obs, _ = env.reset()
    over = False
    while not over:
        obs, _, _, over, _ = env.step(policy.act(obs, explore=True))


def test_a_mask_that_does_not_fit_the_action_is_named() -> None:
    with pytest.raises(
        ConfigError, match=r"obs.action_mask: expected .* shape \[4\], got .* \[3\]"
    ):
        group_of(f"{__name__}:MisfitMask", 1)


# -- what cannot start here ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["TicTacToe-v1", "Go9x9-v1", "IntersectionMultiAgent-v0"])
def test_several_players_of_envpool_are_refused_with_the_reason(name: str) -> None:
    pytest.importorskip("envpool")
    with pytest.raises(ConfigError, match="expected an EnvPool environment with one player, got"):
        group_of(f"envpool:{name}", 2)


def test_what_cannot_start_is_not_listed_and_says_why() -> None:
    envpool = pytest.importorskip("envpool")
    listed = set(list_envs())
    for id in ("Ant-v2", "envpool:TicTacToe-v1", "envpool:VizdoomCustom-v1"):
        assert id not in listed
        with pytest.raises(ConfigError, match=r"Use Ant-v5|one player|cannot start it on this"):
            group_of(id, 1)
    assert {"Ant-v5", "envpool:Play2048-v1", "envpool:Basic-v1"} <= listed
    try:
        envpool.make_spec("BigfishEasy-v0")
    except ImportError:
        assert not [id for id in listed if id.startswith("envpool:Bigfish")]
        with pytest.raises(ConfigError, match=r"cannot start it on this machine: .*Qt"):
            group_of("envpool:BigfishEasy-v0", 1)
