"""MAPPO: what the central critic sees, what it learns, and whose work a reward is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from ppo_data import learn
from team_data import AGENT, STATE, TEAM, random_batch, sample_batch, spec_of, with_team
from test_ranks import together
from test_team_values import part_of, weights

from srl.algorithms.learning.team import Teams
from srl.algorithms.mappo.config import MAPPOConfig
from srl.algorithms.mappo.learner import MAPPO
from srl.algorithms.ops.gae import gae
from srl.algorithms.ppo.global_batch import GlobalBatch
from srl.algorithms.ppo.minibatches import minibatches
from srl.algorithms.protocol import seeded
from srl.data.codec import dump_state, parse_state
from srl.data.spec import TeamSpec
from srl.errors import ConfigError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig

torch.set_num_threads(1)

LSTM = {"recurrent": "lstm", "recurrent_size": 8}
KINDS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "state": ({}, {}),
    "observations": ({"normalize_obs": True}, {"critic_input": "observations"}),
    "memory": (LSTM, {"chunk_length": 4, "burn_in": 4}),
    "gru, own rewards": ({**LSTM, "recurrent": "gru"}, {"team_reward": "own"}),
    "the policy's critic": ({"shared": False, **LSTM}, {"value_from": "reply"}),
}


def make(network: dict[str, Any] | None = None, team: TeamSpec = TEAM, **settings: Any) -> MAPPO:
    torch.manual_seed(0)
    given = {"hidden_sizes": (16,), "shared": True, **(network or {})}
    policy = with_team(ActorCritic(AGENT, ActorCriticConfig(**given)), team)
    settings = {"rollout_length": 8, "epochs": 2, "minibatches": 3, **settings}
    return MAPPO(policy, MAPPOConfig(**settings), seed=3)


def make_linear(**settings: Any) -> MAPPO:
    """A learner whose critic says the first number of the state, plus 10 for the second agent."""
    learner = make({"hidden_sizes": (), "normalize_returns": False}, **settings)
    assert learner.critic is not None
    with torch.no_grad():
        learner.critic.head.weight.zero_()
        # The leaves of the encoder are in the order of their names: number, own, state.
        learner.critic.head.weight[0, 1] = 10.0
        learner.critic.head.weight[0, 2 + 4] = 1.0
    return learner


def episode(learner: MAPPO, **arrays: Any) -> Any:
    """One environment; arrays are [ticks][agents], and the state's first number is 100 * tick."""
    spec = spec_of(learner.policy, learner.config, 1)
    data = spec.allocate()
    data.alive[...] = True
    data.env_state[:, 0, 0] = 100.0 * np.arange(spec.capacity)
    data.extras["value"][...] = np.nan
    for name, value in arrays.items():
        getattr(data, name)[...] = value
    return learner.make_rollout(sample_batch(spec, data))


def test_values_are_of_the_state_at_their_tick_and_of_the_agent() -> None:
    learner = make_linear(rollout_length=2, team_reward="own", gamma=0.5, gae_lambda=0.0)
    rollout = episode(learner, acted=[[1, 1]] * 3, reward=[[1, 2], [3, 4], [0, 0]])
    advantage, target = learner.targets(rollout)
    assert rollout.value.tolist() == [[0, 10], [100, 110], [200, 210]]
    assert target.tolist() == [[51, 57], [103, 109]]
    assert advantage.tolist() == [[51, 47], [3, -1]]


@pytest.mark.parametrize(("join", "paid"), [("mean", 1.5), ("sum", 3.0)])
def test_a_team_is_paid_together(join: Any, paid: float) -> None:
    learner = make_linear(rollout_length=2, team_reward=join, gamma=0.5, gae_lambda=0.0)
    rollout = episode(learner, acted=[[1, 1]] * 3, reward=[[1, 2], [3, 4], [0, 0]])
    _, target = learner.targets(rollout)
    assert target[0].tolist() == [paid + 50, paid + 55]


@pytest.mark.parametrize("shared", [True, False])
def test_what_comes_after_the_death_of_an_agent_is_its_work_too(shared: bool) -> None:
    learner = make_linear(
        rollout_length=4, team_reward="mean" if shared else "own", gamma=0.5, gae_lambda=1.0
    )
    rollout = episode(
        learner,
        acted=[[1, 1], [1, 0], [1, 0], [0, 0], [1, 1]],
        terminated=[[0, 0], [0, 1], [0, 0], [1, 0], [0, 0]],
        alive=[[1, 1], [1, 1], [1, 0], [1, 0], [1, 1]],
        reward=[[2, 4], [8, 0], [16, 0], [0, 0], [0, 0]],
    )
    _, target = learner.targets(rollout)
    if shared:
        assert target[0].tolist() == [3 + 4 + 4] * 2
    else:
        assert target[0].tolist() == [2 + 4 + 4, 4]
    assert rollout.counts.tolist() == [[1, 1], [1, 0], [1, 0], [0, 0], [0, 0]]


def test_the_team_bootstraps_for_those_who_are_gone_from_the_others() -> None:
    learner = make_linear(rollout_length=2, gamma=0.5, gae_lambda=0.0)
    rollout = episode(
        learner, acted=[[1, 1], [1, 0], [1, 0]], terminated=[[0, 0], [0, 1], [0, 0]],
        alive=[[1, 1], [1, 1], [1, 0]],
    )  # fmt: skip
    _, target = learner.targets(rollout)
    # At tick 1 only the first agent is present, and it expects 100.
    assert target[0].tolist() == [50.0, 50.0]


def test_a_time_limit_of_the_team_bootstraps() -> None:
    learner = make_linear(rollout_length=2, gamma=0.5, gae_lambda=0.5)
    rollout = episode(
        learner, acted=[[1, 1], [0, 0], [1, 1]], truncated=[[0, 0], [1, 1], [0, 0]],
        reward=[[2, 2], [0, 0], [9, 9]],
    )  # fmt: skip
    _, target = learner.targets(rollout)
    assert target.tolist() == [[2 + 50.0, 2 + 55.0], [0, 0]]


@pytest.mark.parametrize("name", KINDS)
def test_what_is_learned_from_is_what_the_targets_came_from(name: str) -> None:
    """Before any step, a minibatch finds the values that the whole batch has: every tick, row,
    environment and memory is the right one."""
    network, settings = KINDS[name]
    learner = make(network, **settings)
    batch = random_batch(learner.policy, learner.config, envs=5, seed=1)
    # With memory that is stored as it would have been.
    rollout = learner.make_rollout(batch)
    learner._start_update(0.0, rollout)
    rollout.set_targets(*learner.targets(rollout))
    known = GlobalBatch(rollout, 1, learner.collective)
    config, count = learner.config, 0
    for part in minibatches(rollout, known, 3, config.chunk_ticks, seeded(1), False):
        value = learner.evaluate(part).value.detach()
        if learner.critic is not None:
            torch.testing.assert_close(value, rollout.value.flatten()[part.samples])
        count += len(value)
    assert count == int(rollout.counts.sum())


def test_memory_begins_anew_with_an_episode() -> None:
    learner = make(LSTM)
    batch = random_batch(learner.policy, learner.config, envs=1, seed=0)
    data = batch.data
    data.is_first[...] = data.terminated[...] = data.truncated[...] = False
    data.acted[...] = data.alive[...] = data.is_first[0] = True
    data.terminated[3], data.acted[3], data.is_first[4] = True, False, True

    def values() -> torch.Tensor:
        rollout = learner.make_rollout(batch)
        learner.targets(rollout)
        return rollout.value

    before = values()
    data.env_state[1] += 1.0
    changed = (values() != before).any(1).tolist()
    assert changed[:3] == [False, True, True]
    assert not any(changed[4:])


def test_the_dead_are_zeros_with_a_number() -> None:
    learner = make(critic_input="observations")
    critic = learner.critic
    assert critic is not None
    batch = random_batch(learner.policy, learner.config, envs=6, seed=2)
    rollout = learner.make_rollout(batch)
    teams = Teams(rollout, rollout.reward, "mean")
    index = torch.arange(rollout.ticks * rollout.rows).view(rollout.ticks, rollout.rows)
    seen = critic._seen(teams, index)
    present = teams.present.flatten()
    number = index.flatten() % 2
    assert seen["number"].flatten().tolist() == number.tolist()
    assert (seen["own"][~present] == 0).all()
    # What is seen of the own place in the team is what the agent sees.
    places = torch.stack([seen["team.0"], seen["team.1"]])
    torch.testing.assert_close(places[number, torch.arange(len(number))], seen["own"])
    obs = torch.from_numpy(batch.data.obs).flatten(0, 1)
    torch.testing.assert_close(seen["own"][present], obs[present])


@pytest.mark.parametrize(
    ("settings", "knows"),
    [
        ({}, True),
        ({"critic_input": "observations"}, False),
        ({"value_from": "reply"}, False),
    ],
)
def test_only_a_critic_that_sees_the_state_explains_returns(
    settings: dict[str, Any], knows: bool
) -> None:
    """Rewards are a number that only the global state shows."""
    learner = make({"hidden_sizes": (32,)}, learning_rate=1e-2, **settings)
    rng, found = np.random.default_rng(0), 0.0
    for _ in range(25):
        spec = spec_of(learner.policy, learner.config, 64)
        data = spec.allocate()
        data.alive[...] = True
        data.acted[::2] = data.is_first[::2] = True
        data.terminated[1::2] = True
        data.env_state[...] = rng.normal(size=data.env_state.shape)
        data.obs[...] = rng.normal(size=data.obs.shape)
        data.extras["log_prob"][...] = np.log(1 / 3)
        data.policy_version[...] = 1
        data.reward[::2] = data.env_state[::2, :, 0].repeat(2, 1)
        found = learn(learner, sample_batch(spec, data))["explained_variance"]
    assert found > 0.8 if knows else found < 0.3


@pytest.mark.parametrize("name", KINDS)
def test_an_update_can_be_rolled_back_and_resumed(name: str) -> None:
    network, settings = KINDS[name]
    first, second = make(network, **settings), make(network, **settings)
    batches = [random_batch(first.policy, first.config, envs=4, seed=seed) for seed in range(4)]
    for batch in batches[:2]:
        learn(first, batch)
    first.backup()
    before = dump_state(first.state()), dump_state(weights(first))
    learn(first, batches[3])
    assert dump_state(first.state()) != before[0]
    first.rollback()
    assert (dump_state(first.state()), dump_state(weights(first))) == before
    second.policy.load_state_dict(first.policy.state_dict())
    second.restore(parse_state(dump_state(first.state())))
    for learner in (first, second):
        for batch in batches[2:]:
            learn(learner, batch)
    assert dump_state(first.state()) == dump_state(second.state())
    assert dump_state(weights(first)) == dump_state(weights(second))


@pytest.mark.parametrize("name", KINDS)
def test_any_number_of_trainers_learns_the_same(name: str) -> None:
    network, settings = KINDS[name]
    alone = make(network, **settings)
    batches = [
        random_batch(alone.policy, alone.config, envs=2, seed=seed, num_fragments=4)
        for seed in range(3)
    ]

    def work(rank: int, learner: Any) -> Any:
        for batch in batches:
            learn(learner, part_of(batch, rank))
        return learner

    found = together([make(network, **settings) for _ in range(2)], work)
    for batch in batches:
        learn(alone, batch)
    for learner in found:
        for one, other in zip(
            alone.trained.parameters(), learner.trained.parameters(), strict=True
        ):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_the_critic_is_not_published() -> None:
    learner = make()
    assert any("critic" in name for name in learner.state()["modules"])
    assert not any("critic" in name for name in learner.policy.state_dict())


def test_own_rewards_of_teams_of_one_are_those_of_ppo() -> None:
    learner = make(team=TeamSpec(env_state=STATE), gae_lambda=0.9)
    batch = random_batch(learner.policy, learner.config, envs=6, seed=3)
    rollout = learner.make_rollout(batch)
    advantage, _ = learner.targets(rollout)
    expected = gae(
        value=rollout.value,
        reward=rollout.reward,
        acted=rollout.acted,
        terminated=rollout.terminated,
        truncated=rollout.truncated,
        gamma=0.99,
        lam=0.9,
    )
    torch.testing.assert_close(advantage, expected.advantage_t)


def test_what_cannot_work_is_refused() -> None:
    def check(team: TeamSpec, **settings: Any) -> None:
        policy = with_team(ActorCritic(AGENT, ActorCriticConfig()), team)
        MAPPO.check(MAPPOConfig(**settings), policy)

    check(TeamSpec())
    with pytest.raises(ConfigError, match="MAPPO expects agents that act at the same ticks"):
        check(TeamSpec(num_agents=2, turn_based=True))
    with pytest.raises(ConfigError, match=r"critic_input.*global state"):
        check(TeamSpec(num_agents=2), critic_input="state")
    for wrong in ({"team_reward": "min"}, {"critic_input": "all"}, {"value_from": "me"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            MAPPOConfig(**wrong)
