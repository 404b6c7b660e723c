"""DQN: targets worked by hand, what the loss sees, and what an update keeps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from q_data import ACTIONS, KEYED, agent, batch_of, learn, make, make_table, random_batch
from test_ranks import together

from srl.algorithms.collective import Collective
from srl.algorithms.dqn.config import DQNConfig
from srl.algorithms.dqn.learner import DQN
from srl.algorithms.dqn.windows import WindowBatch
from srl.algorithms.ops.rescaling import rescale, unscale
from srl.data.codec import dump_state, parse_state
from srl.data.records import SampleBatch
from srl.data.spec import AgentSpec, Box, MultiDiscrete
from srl.data.tree import tree_map
from srl.errors import ConfigError, LearnError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.policies.q_network import QNetwork, QNetworkConfig
from srl.policies.random import RandomConfig, RandomPolicy

torch.set_num_threads(1)

ONLINE = [[1.0, 2.0, 3.0], [0.0, 9.0, 1.0], [5.0, 4.0, 0.0], [0.0, 0.0, 0.0]]
TARGET = [[0.0, 0.0, 0.0], [7.0, 5.0, 6.0], [1.0, 2.0, 8.0], [3.0, 2.0, 1.0]]
VARIANTS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {"double": False, "huber_delta": None}),
    "double": ({}, {"n_steps": 3}),
    "soft": ({"normalize_obs": True}, {"tau": 0.01, "target_steps": 1}),
    "dueling quantiles": ({"dueling": True, "num_quantiles": 4}, {"n_steps": 2}),
    "rescaled": ({"dueling": True, "head_sizes": (8,)}, {"value_rescaling": True}),
    "lstm": ({"recurrent": "lstm"}, {"sequence_length": 4, "burn_in": 2, "n_steps": 2}),
    "gru": ({"recurrent": "gru", "num_quantiles": 3}, {"sequence_length": 4, "n_steps": 3}),
}


def windows_of(learner: DQN, batch: SampleBatch) -> WindowBatch:
    config = learner.config
    return WindowBatch(
        batch,
        learner.policy,
        learner.device,
        gamma=config.gamma,
        n=config.n_steps,
        reward_clip=config.clip_reward,
    )


def errors(learner: DQN, batch: SampleBatch) -> list[list[float]]:
    """Target minus prediction, window by window."""
    windows = windows_of(learner, batch)
    return learner.loss(windows, windows.all).error.t().tolist()


@pytest.mark.parametrize(("double", "future"), [(True, 5.0), (False, 7.0)])
def test_the_online_network_chooses_in_double_q_learning(double: bool, future: float) -> None:
    # In state 1 the online network takes action 1, which the target network values at 5; its own
    # best is 7.
    learner = make_table(ONLINE, TARGET, gamma=0.5, double=double)
    batch = batch_of(learner, [[0, 1]], action=[[2, 0]], reward=[[10.0, 0.0]])
    assert errors(learner, batch) == [[pytest.approx(10.0 + 0.5 * future - 3.0)]]


@pytest.mark.parametrize(("double", "future"), [(True, 6.0), (False, 6.0)])
def test_a_target_ignores_actions_that_are_not_allowed(double: bool, future: float) -> None:
    learner = make_table(ONLINE, TARGET, mask=True, gamma=0.5, double=double)
    allowed = [[[True] * 3, [False, False, True]]]
    batch = batch_of(learner, [[0, 1]], action=[[2, 0]], action_mask=allowed)
    assert errors(learner, batch) == [[pytest.approx(0.5 * future - 3.0)]]


def test_a_target_ends_with_the_episode() -> None:
    learner = make_table(ONLINE, TARGET, gamma=0.5)
    batch = batch_of(
        learner,
        [[0, 1], [0, 1]],
        reward=[[10.0, 0.0], [10.0, 0.0]],
        acted=[[True, False], [True, False]],
        terminated=[[False, True], [False, False]],
        truncated=[[False, False], [False, True]],
    )
    assert errors(learner, batch) == [[10.0 - 1.0], [pytest.approx(10.0 + 0.5 * 5.0 - 1.0)]]


def test_three_steps_skip_ticks_without_an_action_and_stop_at_the_end() -> None:
    learner = make_table(ONLINE, TARGET, gamma=0.5, n_steps=3)
    batch = batch_of(
        learner,
        [[0, 1, 2, 2], [0, 1, 2, 2], [0, 1, 0, 0]],
        reward=[[8.0, 4.0, 2.0, 0.0], [8.0, 0.0, 2.0, 0.0], [8.0, 4.0, 0.0, 0.0]],
        acted=[[True] * 4, [True, False, True, True], [True, True, False, True]],
        terminated=[[False] * 4, [False] * 4, [False, False, True, False]],
    )
    # In state 2 the online network takes action 0, which the target network values at 1.
    whole = 8.0 + 0.5 * 4.0 + 0.25 * 2.0 + 0.125 * 1.0
    skipped = 8.0 + 0.5 * 2.0 + 0.25 * 1.0
    ended = 8.0 + 0.5 * 4.0
    assert errors(learner, batch) == [[whole - 1.0], [skipped - 1.0], [ended - 1.0]]


def test_windows_without_an_action_have_no_loss() -> None:
    learner = make_table(ONLINE, TARGET)
    one = batch_of(learner, [[0, 1]], reward=[[10.0, 0.0]])
    both = batch_of(
        learner, [[0, 1], [2, 1]], reward=[[10.0, 0.0], [99.0, 0.0]],
        acted=[[True, True], [False, True]],
    )  # fmt: skip
    both.data.obs[0, 1] = np.nan
    totals = []
    for batch in (one, both):
        windows = windows_of(learner, batch)
        totals.append(learner.loss(windows, windows.all).total.item())
    assert totals[0] == pytest.approx(totals[1])


def test_a_batch_without_any_outcome_is_an_error() -> None:
    learner = make_table(ONLINE, TARGET)
    batch = batch_of(learner, [[0, 1]], acted=[[True, False]])
    with pytest.raises(LearnError, match=r"none in a whole batch.*raise algorithm.sequence_length"):
        learn(learner, batch)


def test_rescaled_targets_are_rescaled_returns() -> None:
    learner = make_table(ONLINE, TARGET, gamma=0.5, value_rescaling=True)
    batch = batch_of(learner, [[0, 1]], reward=[[100.0, 0.0]])
    value = 100.0 + 0.5 * unscale(torch.tensor(5.0))
    assert errors(learner, batch) == [[pytest.approx(float(rescale(value)) - 1.0, rel=1e-5)]]


@pytest.mark.parametrize(("clip", "reward"), [("sign", 1.0), (3.0, 3.0), (None, 8.0)])
def test_rewards_are_clipped(clip: Any, reward: float) -> None:
    learner = make_table(ONLINE, TARGET, gamma=0.0, clip_reward=clip)
    batch = batch_of(learner, [[0, 1]], reward=[[8.0, 0.0]])
    assert errors(learner, batch) == [[reward - 1.0]]


def test_quantiles_are_learned_for_the_action_with_the_best_mean() -> None:
    zero = [[0.0, 0.0]] * ACTIONS
    online = [[[1.0, 3.0], [0.0, 0.0], [0.0, 0.0]], [[0.0, 9.0], [4.0, 4.0], [0.0, 0.0]]]
    target = [zero, [[2.0, 6.0], [50.0, 50.0], [0.0, 0.0]]]
    learner = make_table([*online, zero, zero], [*target, zero, zero], num_quantiles=2, gamma=0.5)
    batch = batch_of(learner, [[0, 1]], reward=[[1.0, 0.0]])
    windows = windows_of(learner, batch)
    found = learner.loss(windows, windows.all)
    # Targets are 1 + 0.5 (2, 6) = (2, 4), predictions (1, 3) at the midpoints 1/4 and 3/4.
    # Errors of the first: 1, 3; of the second: -1, 1. Huber: 0.5, 2.5; 0.5, 0.5.
    first = 0.25 * (0.5 + 2.5) / 2
    second = (0.25 * 0.5 + 0.75 * 0.5) / 2
    assert found.total.item() == pytest.approx(first + second)
    assert found.error.tolist() == [[pytest.approx(1.0)]]


def test_importance_weights_correct_for_the_draws() -> None:
    learner = make_table(ONLINE, TARGET, gamma=0.0, huber_delta=None)
    batch = batch_of(learner, [[0, 1], [0, 1]], row=KEYED, reward=[[3.0, 0.0], [2.0, 0.0]])
    batch.data.row["weight"][...] = [0.5, 2.0]
    windows = windows_of(learner, batch)
    windows.weigh(0.5, Collective())
    # Half the squares of the errors 2 and 1; weights are roots of 0.5 / 2 and 2 / 2.
    assert learner.loss(windows, windows.all).total.item() == pytest.approx(
        (0.5 * 2.0 + 1.0 * 0.5) / 2
    )
    config = DQNConfig(importance_exponent=0.4)
    assert [config.importance_exponent_at(x) for x in (0, 0.5, 1)] == pytest.approx([0.4, 0.7, 1.0])


def test_priorities_return_only_where_rows_have_keys() -> None:
    learner = make_table(ONLINE, TARGET, gamma=0.0, sequence_length=2, learning_rate=1e-9)
    states, rewards = [[0, 1, 2], [1, 0, 0]], [[3.0, 8.0, 0.0], [0.0, 5.0, 0.0]]
    acted = [[True, True, True], [True, False, True]]
    plain = batch_of(learner, states, reward=rewards, acted=acted)
    assert learn(learner, plain).priorities is None
    keyed = batch_of(learner, states, row=KEYED, reward=rewards, acted=acted)
    keyed.data.row["weight"][...] = 1.0
    # Errors 2 and 8; in the second window only one tick has an action, with error 0.
    priorities = learn(learner, keyed).priorities
    np.testing.assert_allclose(priorities, [0.9 * 8.0 + 0.1 * 5.0, 0.0], atol=1e-5)


def test_the_whole_memory_is_trained_behind_the_burn_in_only() -> None:
    settings = {"sequence_length": 3, "burn_in": 3, "gamma": 0.5}
    learner = make({"recurrent": "lstm"}, **settings)
    batch = random_batch(learner, rows=5, seed=1)
    batch.data.is_first[:4] = False
    loss = learner.loss(windows_of(learner, batch), windows_of(learner, batch).all)
    loss.total.backward()
    found = {name: p.grad.clone() for name, p in learner.policy.named_parameters()}

    # The same windows without burn-in, from the state that the online network has after it. The
    # target network keeps its own memory, whose weights are the same here.
    other = make({"recurrent": "lstm"}, **{**settings, "burn_in": 0})
    short = random_batch(other, rows=5, seed=2)
    for name in ("obs", "action", "reward", "acted", "terminated", "truncated", "is_first"):
        getattr(short.data, name)[...] = getattr(batch.data, name)[3:]
    obs = torch.from_numpy(batch.data.obs[:3])
    start = tree_map(lambda x: torch.from_numpy(x[0]), batch.data.policy_state)
    flags = [torch.from_numpy(x[:3]) for x in (batch.data.is_first, batch.data.acted)]
    flags[1] |= torch.from_numpy(batch.data.truncated[:3])
    flags[1] &= ~torch.from_numpy(batch.data.terminated[:3])
    with torch.no_grad():
        warm = learner.policy.unroll_values(obs, start, *flags).policy_state
    for key, leaf in warm.items():
        short.data.policy_state[key][0] = leaf.numpy()
    windows = windows_of(other, short)
    other.loss(windows, windows.all).total.backward()
    for name, parameter in other.policy.named_parameters():
        torch.testing.assert_close(parameter.grad, found[name], msg=name)


def test_memory_starts_again_with_an_episode_inside_a_window() -> None:
    learner = make({"recurrent": "gru"}, sequence_length=4)
    batch = random_batch(learner, rows=1, seed=1)
    batch.data.is_first[...] = False
    batch.data.is_first[2] = True
    batch.data.acted[...], batch.data.terminated[...] = True, False
    batch.data.truncated[...] = False

    def predicted() -> torch.Tensor:
        windows = windows_of(learner, batch)
        return windows.outcome(
            windows.all, learner.policy, learner.target.module, double=True
        ).predicted.detach()

    before = predicted()
    batch.data.obs[0] += 1.0
    changed = (predicted() != before).squeeze(1).tolist()
    assert changed == [True, True, False, False]


@pytest.mark.parametrize("variant", VARIANTS)
def test_an_update_can_be_rolled_back_and_resumed(variant: str) -> None:
    network, settings = VARIANTS[variant]
    given = {"gradient_steps": 2, "target_steps": 3, **settings}
    first, second = make(network, **given), make(network, **given)
    batches = [random_batch(first, rows=8, seed=seed) for seed in range(4)]
    for batch in batches[:2]:
        learn(first, batch)
    first.backup()
    before = dump_state(first.state()), dump_state(weights(first))
    learn(first, batches[3])
    first.rollback()
    assert (dump_state(first.state()), dump_state(weights(first))) == before
    second.policy.load_state_dict(first.policy.state_dict())
    second.restore(parse_state(dump_state(first.state())))
    for learner in (first, second):
        for batch in batches[2:]:
            learn(learner, batch)
    assert dump_state(first.state()) == dump_state(second.state())
    assert dump_state(weights(first)) == dump_state(weights(second))
    assert dump_state(weights(first)) != before[1]


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("mask", [False, True])
def test_kernels_learn_the_same(variant: str, mask: bool) -> None:
    network, settings = VARIANTS[variant]
    one = make(network, mask, **settings)
    two = make({"kernels": "reference", **network}, mask, **settings)
    two.policy.load_state_dict(one.policy.state_dict())
    for seed in range(3):
        batch = random_batch(one, rows=8, seed=seed)
        found = [learn(learner, batch).metrics for learner in (one, two)]
        assert found[0] == pytest.approx(found[1], rel=1e-3, abs=1e-5)
    for name, array in weights(one).items():
        np.testing.assert_allclose(array, weights(two)[name], rtol=1e-3, atol=1e-4, err_msg=name)


@pytest.mark.parametrize("variant", VARIANTS)
def test_ticks_without_an_action_may_hold_anything(variant: str) -> None:
    network, settings = VARIANTS[variant]
    learner = make(network, **settings)
    batch = random_batch(learner, rows=16, seed=5)
    inert = ~(batch.data.acted | batch.data.terminated | batch.data.truncated)
    assert inert.any()
    batch.data.obs[inert] = np.nan
    metrics = learn(learner, batch).metrics
    assert all(math.isfinite(value) for value in metrics.values())


def test_two_trainers_learn_what_one_learns_from_both_parts() -> None:
    settings = {"gradient_steps": 2, "n_steps": 2}
    network = {"normalize_obs": True}
    alone = make(network, **settings)
    whole = [random_batch(alone, rows=8, seed=seed) for seed in range(3)]
    # Gradient step k learns from columns 4 k to 4 k + 3: two of them in each rank.
    columns = [[0, 1, 4, 5], [2, 3, 6, 7]]

    def work(rank: int, learner: Any) -> tuple[DQN, list[dict[str, float]]]:
        parts = [part_of(learner, batch, columns[rank]) for batch in whole]
        return learner, [learn(learner, part).metrics for part in parts]

    ranks: list[Any] = [make(network, **settings) for _ in range(2)]
    results = together(ranks, work)
    metrics = [learn(alone, batch).metrics for batch in whole]
    for learner, found in results:
        assert found == [pytest.approx(one, rel=1e-3, abs=1e-5) for one in metrics]
        for name, array in weights(alone).items():
            np.testing.assert_allclose(weights(learner)[name], array, rtol=1e-4, atol=1e-5)


def part_of(learner: DQN, batch: SampleBatch, columns: list[int]) -> SampleBatch:
    found = random_batch(learner, len(columns), seed=0)
    for name in ("obs", "action", "reward", "acted", "terminated", "truncated", "is_first"):
        getattr(found.data, name)[...] = getattr(batch.data, name)[:, columns]
    return found


def test_epsilon_falls_by_environment_steps() -> None:
    config = DQNConfig(updates_per_step=0.5, epsilon_steps=100, epsilon_start=0.9, epsilon_end=0.1)
    assert [config.epsilon_at(n) for n in (0, 25, 50, 80)] == pytest.approx([0.9, 0.5, 0.1, 0.1])
    assert config.explore(3) == [1.0, 1.0, 1.0]
    learner = make(updates_per_step=0.5, epsilon_steps=100, gradient_steps=10)
    assert learner.policy.epsilon.item() == 1.0
    result = learn(learner, random_batch(learner, rows=20, seed=0))
    assert learner.policy.epsilon.item() == pytest.approx(1.0 - 0.95 * 0.2)
    assert result.metrics["epsilon"] == pytest.approx(0.81)


def test_each_environment_may_have_an_epsilon_of_its_own() -> None:
    config = DQNConfig(exploration="per_environment", epsilon_base=0.4, epsilon_alpha=7.0)
    assert config.explore(3) == pytest.approx([0.4, 0.4**4.5, 0.4**8])
    assert config.explore(1) == [0.4]
    assert config.epsilon_at(10**9) == 1.0


def test_windows_fit_into_what_actors_write() -> None:
    config = DQNConfig(sequence_length=12, burn_in=8, n_steps=3, fragment_length=16)
    stored, drawn = config.sampling(), config.windows()
    assert (stored.length, stored.state_every) == (16, 4)
    shape = (drawn.length, drawn.burn_in, drawn.bootstrap, drawn.state_every)
    assert shape == (12, 8, 3, 4)


def test_what_dqn_cannot_do_is_refused() -> None:
    box = Box(shape=(1,), low=(-1.0,), high=(1.0,))
    spec = agent().obs
    real = ActorCritic(AgentSpec(obs=spec, action=box), ActorCriticConfig())
    with pytest.raises(ConfigError, match=r"DQN expects one discrete action.*Box.*sac, td3 or ppo"):
        DQN.check(DQNConfig(), real)
    several = RandomPolicy(AgentSpec(obs=spec, action=MultiDiscrete((2, 2))), RandomConfig())
    with pytest.raises(ConfigError, match=r"got MultiDiscrete. Use ppo"):
        DQN.check(DQNConfig(), several)
    with pytest.raises(ConfigError, match=r"unroll_values.*got .*ActorCritic without.*q_network"):
        DQN.check(DQNConfig(), ActorCritic(agent(), ActorCriticConfig()))
    quantiles = QNetwork(agent(), QNetworkConfig(num_quantiles=3))
    with pytest.raises(ConfigError, match="huber_delta: expected a number"):
        DQN.check(DQNConfig(huber_delta=None), quantiles)
    memory = QNetwork(agent(), QNetworkConfig(recurrent="lstm"))
    with pytest.raises(ConfigError, match="sequence_length: expected at least 2"):
        DQN.check(DQNConfig(), memory)
    with pytest.raises(ConfigError, match="burn_in: expected 0 for a network without memory"):
        DQN.check(DQNConfig(burn_in=4), QNetwork(agent(), QNetworkConfig()))


@pytest.mark.parametrize(
    "settings",
    [
        {"n_steps": 0}, {"tau": 0.0}, {"gamma": 1.1}, {"target_steps": 0}, {"burn_in": -1},
        {"exploration": "never"}, {"huber_delta": 0.0}, {"clip_reward": -1.0},
        {"learning_rate_schedule": "cosine"}, {"epsilon_end": 2.0}, {"sequence_length": 0},
    ],
)  # fmt: skip
def test_bad_settings_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=f"algorithm.{next(iter(settings))}: expected"):
        DQNConfig(**settings)


def weights(learner: DQN) -> dict[str, np.ndarray]:
    return {name: x.detach().numpy().copy() for name, x in learner.policy.state_dict().items()}
