"""A loaded policy acts as it did in training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from gymnasium import spaces

from srl import evaluation
from srl.acting import ActingPolicy
from srl.casting import assign_agents
from srl.data.spec import AgentSpec, ArraySpec, Box, Discrete
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe
from srl.envs.spaces import AgentSpaces, agent_spaces, agent_spec
from srl.errors import ConfigError, SpecError
from srl.experiment import Experiment, PolicyConfig
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.services.metric_names import MetricNames
from srl.services.score import Score
from srl.workers import episode_player
from srl.workers import policy as policy_worker

VECTOR = ArraySpec(shape=(3,))
SEEN = spaces.Box(-np.inf, np.inf, (3,))


def test_real_numbers_are_clipped_to_the_bounds() -> None:
    action = Box((2,), (-1.0, -0.5), (1.0, float("inf")))
    policy = ActorCritic(AgentSpec(obs=VECTOR, action=action), ActorCriticConfig())
    with torch.no_grad():
        policy.action_head.linear.bias.copy_(torch.tensor([4.0, 7.0]))
    bounds = spaces.Box(np.array([-1.0, -0.5], np.float32), np.array([1.0, np.inf], np.float32))
    acting = ActingPolicy(policy, "default", AgentSpaces(SEEN, bounds))
    one = acting.act(np.zeros(3))
    assert one[0] == 1.0
    assert one[1] > 5.0
    with torch.no_grad():
        policy.action_head.linear.bias.copy_(torch.tensor([-4.0, -7.0]))
    assert acting.act(np.zeros((4, 3))).tolist() == [[-1.0, -0.5]] * 4


def test_another_way_to_explore_forgets_nothing() -> None:
    agent = AgentSpec(obs=VECTOR, action=Discrete(4))
    torch.manual_seed(0)
    policy = ActorCritic(agent, ActorCriticConfig(recurrent="lstm", recurrent_size=8))
    own = AgentSpaces(SEEN, spaces.Discrete(4))
    asked, changed = ActingPolicy(policy, "a", own), ActingPolicy(policy, "b", own)
    shown = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    for number, obs in enumerate(shown):
        asked.act(obs)
        changed.act(obs, explore=number % 2 == 1)
    assert asked._runner is not None
    assert changed._runner is not None
    for key in ("h", "c"):
        kept = asked._runner._state[key]
        assert np.abs(kept).max() > 0
        np.testing.assert_array_equal(kept, changed._runner._state[key])


def acting(observation: spaces.Space, action: spaces.Space) -> ActingPolicy:
    torch.manual_seed(0)
    policy = ActorCritic(agent_spec(observation, action), ActorCriticConfig())
    return ActingPolicy(policy, "default", agent_spaces(observation, action))


@pytest.mark.parametrize("obs", [4, 8, [5, 9]])
def test_a_category_that_there_is_none_of_is_refused(obs: int | list[int]) -> None:
    policy = acting(spaces.Discrete(3, start=5), spaces.Discrete(2))
    assert policy.act(7) in (0, 1)
    policy.reset()
    with pytest.raises(SpecError, match=r"act: expected numbers from 5 on, 3 of them, got .*[489]"):
        policy.act(obs)


def test_it_takes_and_returns_what_the_spaces_contain() -> None:
    shifted = acting(spaces.Discrete(3, start=1), spaces.Discrete(2, start=5))
    plain = acting(spaces.Discrete(3), spaces.Discrete(2))
    for obs in range(3):
        assert shifted.act(obs + 1) == plain.act(obs) + 5
    assert shifted.act(np.array([1, 2, 3])).tolist() == (plain.act(np.arange(3)) + 5).tolist()
    several = spaces.MultiDiscrete([[2, 3], [4, 2]], start=[[1, 1], [0, 7]])
    both = acting(spaces.Dict(a=spaces.Discrete(2, start=-1), b=SEEN), several)
    assert several.contains(both.act({"a": -1, "b": np.zeros(3)}))
    whole = spaces.Box(0, 9, (2,), dtype=np.int32)
    assert whole.contains(acting(SEEN, whole).act(np.ones(3)))


@pytest.mark.parametrize("rest", [["place"], ["observation"], ["place", "observation"]])
def test_a_mask_that_comes_with_the_observation_is_the_actions(rest: list[str]) -> None:
    """Of one choice, and of combinations of two; of one observation, and of a batch."""
    parts = {name: spaces.Box(0, 1, (2,)) for name in rest}
    one = acting(spaces.Dict(parts, action_mask=spaces.MultiBinary(3)), spaces.Discrete(3))
    grid = spaces.Box(0, 1, (2, 3), np.int8)
    pairs = spaces.MultiDiscrete([2, 3], start=[0, 5])
    both = acting(spaces.Dict(parts, action_mask=grid), pairs)
    seen = {name: np.zeros(2, np.float32) for name in rest}
    for choice in range(3):
        mask = np.eye(3, dtype=np.int8)[choice]
        assert one.act({**seen, "action_mask": mask}) == choice
        other = np.roll(mask, 1)
        assert one.act({**seen, "action_mask": mask}, action_mask=other) == (choice + 1) % 3
        for row in range(2):
            only = np.zeros((2, 3), np.int8)
            only[row, choice] = 1
            assert both.act({**seen, "action_mask": only}).tolist() == [row, choice + 5]
    batch = {name: np.zeros((6, 2), np.float32) for name in rest}
    chosen = one.act({**batch, "action_mask": np.tile(np.eye(3, dtype=np.int8), (2, 1))})
    assert chosen.tolist() == [0, 1, 2, 0, 1, 2]
    combined = both.act({**batch, "action_mask": np.eye(6, dtype=np.int8).reshape(6, 2, 3)})
    assert combined.tolist() == [[row, choice + 5] for row in range(2) for choice in range(3)]


def test_policies_whose_agents_all_have_others_do_not_play() -> None:
    roles = {
        "player_2": PolicyConfig(agents=("player_2",)),
        "player_1": PolicyConfig(agents=("player_1",)),
        "first": PolicyConfig(agents=("player_1",)),
        "second": PolicyConfig(agents=("player_2",)),
    }
    agents = ["player_1", "player_2"]
    assert assign_agents(roles, agents, idle=True) == {
        "player_2": ("player_2",),
        "player_1": ("player_1",),
    }
    with pytest.raises(ConfigError, match=r"policies\.first: expected at least one agent"):
        assign_agents(roles, agents)


def test_episodes_are_played_on_one_thread_and_their_number_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    env = EnvConfig(id="srl.testing.envs:ScriptedEnv")
    policy = ActorCritic(probe(env).agents["agent"], ActorCriticConfig())
    names = MetricNames({"default": None}, ["default"])
    cast = evaluation._Cast({"default": policy}, {"default": ("agent",)}, names)
    threads, told = [], []

    def infer(*args: Any) -> Any:
        threads.append(torch.get_num_threads())
        return policy_worker.infer(*args)

    monkeypatch.setattr(episode_player, "infer", infer)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        result = evaluation._play(
            Experiment(env=env),
            cast,
            episodes=5,
            seed=0,
            explore=False,
            envs=2,
            on_progress=lambda episodes, steps: told.append((episodes, steps)),
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert set(threads) == {1}
    assert len(result.returns["default"]) == 5
    assert told == sorted(told)
    assert [steps for _, steps in told] == [2 * (i + 1) for i in range(len(told))]
    assert told[-1][0] == 5


def test_what_the_environment_reports_is_measured_once_for_each_episode() -> None:
    env = EnvConfig(id="srl.testing.envs:ScriptedEnv")
    policy = ActorCritic(probe(env).agents["agent"], ActorCriticConfig())
    names = MetricNames({"default": None}, ["default"])
    cast = evaluation._Cast({"default": policy}, {"default": ("agent",)}, names)
    result = evaluation._play(Experiment(env=env), cast, episodes=5, seed=0, explore=False, envs=2)
    # Two environments play three and two episodes, which report their numbers.
    assert sorted(result.metrics["episode"]) == [0, 0, 1, 1, 2]
    result.metrics["unknown"] = [float("nan")] * 5
    result.metrics["episode"][0] = float("nan")
    score = Score(result.returns, result.lengths, result.agents, names, result.metrics)
    assert score.metric_means() == {"episode": 1.0}
    assert str(score).splitlines()[-1] == "episode: 1"


def test_a_pattern_of_agents_gets_a_policy_of_its_own() -> None:
    env = EnvConfig(id="srl.testing.envs:ScriptedEnv")
    experiment = Experiment(env=env, policies={"both": PolicyConfig()})
    directory = Path("unused: all policies are replaced")
    cast = evaluation._cast(directory, experiment, "latest", {"ag*": "random"}, True)
    assert cast.policy_agents == {"ag*": ("agent",)}
    with pytest.raises(ConfigError, match=r"name or pattern of agents \(agent\), got neither"):
        evaluation._cast(directory, experiment, "latest", {"seeker_*": "random"}, True)


def test_an_agent_of_any_name_may_play_at_random() -> None:
    env = EnvConfig(id="srl.testing.envs:ScriptedEnv")
    spec = probe(env)
    alone = msgspec.structs.replace(spec, agents={"agent 1/2": spec.agents["agent"]})
    assert evaluation._load(
        "random", "agent 1/2", alone, Experiment(env=env), "agent 1/2", trust=False
    )
