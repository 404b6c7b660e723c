"""A2C and IMPALA: their losses by hand, masked ticks change nothing, resuming is exact."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ppo_data import AGENT, ToyWorld, learn, random_batch, trajectory_spec
from torch import nn

from srl.algorithms.a2c.learner import A2C
from srl.algorithms.impala.learner import IMPALA
from srl.algorithms.learning.one_pass import OnePass
from srl.algorithms.learning.outputs import outputs_everywhere
from srl.algorithms.learning.rmsprop import RMSProp
from srl.algorithms.learning.sequences import Sequences
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.learner import PPO
from srl.data.codec import load_state, save_state
from srl.data.records import SampleBatch
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.errors import CheckpointError, ConfigError, LearnError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.policies.distributions import Categorical
from srl.policies.protocol import Policy, PolicyOutput, TracksStatistics, Unroll

torch.set_num_threads(1)

KINDS = [A2C, IMPALA]
NETWORKS = {
    "ff": {"normalize_returns": False},
    "normalised": {"normalize_obs": True, "normalize_returns": True},
    "lstm": {"recurrent": "lstm", "recurrent_size": 8},
    "reference": {"kernels": "reference"},
}


def make(kind: type[OnePass], network: dict[str, Any], **settings: Any) -> OnePass:
    torch.manual_seed(0)
    policy = ActorCritic(AGENT, ActorCriticConfig(hidden_sizes=(8,), **network))
    return kind(policy, kind.Config(**{"rollout_length": 8, **settings}), seed=3)


def weights(algorithm: OnePass | PPO) -> dict[str, torch.Tensor]:
    return {key: x.clone() for key, x in algorithm.policy.state_dict().items()}


def assert_equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> None:
    for key, weight in one.items():
        assert torch.equal(weight, other[key]), key


# -- the loss by hand ------------------------------------------------------------------------------


class TwoNumbers(Policy, TracksStatistics):
    """A policy of two parameters: the log-odds of action 1, and the value of every state."""

    Config = ActorCriticConfig
    extras_spec = {"log_prob": ArraySpec(), "value": ArraySpec()}  # noqa: RUF012

    def __init__(self, log_odds: float, value: float) -> None:
        agent = AgentSpec(obs=ArraySpec(shape=(1,)), action=Discrete(2))
        super().__init__(agent, ActorCriticConfig())
        self.log_odds = nn.Parameter(torch.tensor(log_odds))
        self.value = nn.Parameter(torch.tensor(value))

    def act(self, *_: Any) -> PolicyOutput:
        raise NotImplementedError

    def unroll(
        self, obs: Any, policy_state: Any, is_first: Any, active: Any, action_mask: Any = None
    ) -> Unroll:
        logits = torch.stack((torch.zeros(is_first.shape), self.log_odds.expand(is_first.shape)))
        distribution = Categorical(logits.movedim(0, -1))
        return Unroll(distribution, self.value.expand(is_first.shape), None)


def one_row(
    algorithm: OnePass, ticks: list[tuple[str, int, float, float]], age: int = 1
) -> SampleBatch:
    """One row of (kind, action, reward, the behaviour's probability of the action)."""
    policy = algorithm.policy
    spec = trajectory_spec(policy, algorithm.config, 1)
    assert len(ticks) == spec.capacity
    data = spec.allocate()
    data.obs[...] = 0.0
    for tick, (kind, action, reward, chance) in enumerate(ticks):
        data.acted[tick], data.alive[tick] = kind == "acted", kind != "idle"
        data.terminated[tick], data.truncated[tick] = kind == "terminated", kind == "truncated"
        data.action[tick], data.reward[tick] = action, reward
        data.extras["log_prob"][tick] = math.log(chance)
        data.extras["value"][tick] = 0.0
    data.is_first[1:] = (data.terminated | data.truncated)[:-1]
    data.policy_version[...] = np.where(data.acted, 1 - age, -1)
    return SampleBatch(data=data, state_every=spec.state_every, learner_version=1)


def gradients(algorithm: OnePass, batch: SampleBatch) -> tuple[dict[str, float], float, float]:
    """The metrics of an update, and the gradients of the two parameters, before clipping."""
    metrics = learn(algorithm, batch)
    policy = algorithm.policy
    assert isinstance(policy, TwoNumbers)
    assert policy.log_odds.grad is not None
    assert policy.value.grad is not None
    return metrics, float(policy.log_odds.grad), float(policy.value.grad)


SETTINGS: dict[str, Any] = {
    "gamma": 0.5, "value_coefficient": 0.5, "entropy_coefficient": 0.0, "max_grad_norm": None,
}  # fmt: skip
EVEN = math.log(1.0)
"""Log-odds at which both actions have probability 0.5."""


def test_a2c_by_hand() -> None:
    """Returns look ahead to the end of the fragment, and bootstrap from the critic."""
    ticks = [("acted", 1, 1.0, 0.5), ("acted", 0, 2.0, 0.5), ("acted", 1, 9.0, 0.5)]
    algorithm = A2C(TwoNumbers(EVEN, 4.0), A2C.Config(rollout_length=2, **SETTINGS))
    metrics, of_log_odds, of_value = gradients(algorithm, one_row(algorithm, ticks))
    # Returns: 2 + 0.5 * 4 = 4, then 1 + 0.5 * 4 = 3. Advantages: 3 - 4 = -1, and 4 - 4 = 0.
    assert metrics["return_mean"] == pytest.approx(3.5)
    assert metrics["advantage_mean"] == pytest.approx(-0.5)
    assert metrics["num_samples"] == 2
    # d log pi(1) / d log-odds = 1 - 0.5; the mean of -(-1) * 0.5 and 0.
    assert of_log_odds == pytest.approx(0.25)
    # 0.5 * mean of (4 - 3) and (4 - 4).
    assert of_value == pytest.approx(0.25)
    assert metrics["policy_loss"] == pytest.approx(math.log(0.5) / 2)
    assert metrics["value_loss"] == pytest.approx(0.25)
    assert metrics["approx_kl"] == pytest.approx(0.0, abs=1e-7)


def test_impala_by_hand() -> None:
    """An action that has become rarer counts less, one that is now likelier at most once."""
    ticks = [("acted", 1, 1.0, 1.0), ("acted", 0, 2.0, 0.25), ("acted", 1, 9.0, 0.5)]
    algorithm = IMPALA(TwoNumbers(EVEN, 4.0), IMPALA.Config(rollout_length=2, **SETTINGS))
    metrics, of_log_odds, of_value = gradients(algorithm, one_row(algorithm, ticks))
    # Ratios 0.5 / 1 and 0.5 / 0.25, clipped to 0.5 and 1. Differences: 2 + 0.5 * 4 - 4 = 0, so
    # v_1 = 4, and v_0 = 4 + 0.5 * (1 + 0.5 * 4 - 4) = 3.5. Advantages times rho: 0.5 * (-1), 0.
    assert metrics["return_mean"] == pytest.approx((3.5 + 4.0) / 2)
    assert metrics["advantage_mean"] == pytest.approx(-0.25)
    assert metrics["rho_mean"] == pytest.approx(0.75)
    assert metrics["rho_clipped"] == pytest.approx(0.5)
    assert of_log_odds == pytest.approx(0.5 * 0.5 / 2)
    assert of_value == pytest.approx(0.5 * 0.5 / 2)


def test_the_entropy_bonus_by_hand() -> None:
    odds = math.log(3.0)
    ticks = [("acted", 1, 0.0, 0.75), ("acted", 1, 0.0, 0.75)]
    settings = {**SETTINGS, "entropy_coefficient": 2.0, "rollout_length": 1}
    algorithm = A2C(TwoNumbers(odds, 0.0), A2C.Config(**settings))
    metrics, of_log_odds, _ = gradients(algorithm, one_row(algorithm, ticks))
    entropy = -(0.75 * math.log(0.75) + 0.25 * math.log(0.25))
    assert metrics["entropy"] == pytest.approx(entropy)
    # d H / d log-odds = -p (1 - p) log-odds.
    assert of_log_odds == pytest.approx(2.0 * 0.75 * 0.25 * odds)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_no_trace_crosses_the_end_of_an_episode(kind: type[OnePass], end: str) -> None:
    """Two episodes in one fragment give the gradient of both alone."""
    first = [("acted", 1, 1.0, 0.4), (end, 0, 0.0, 1.0)]
    second = [("acted", 0, -3.0, 0.7), ("acted", 1, 2.0, 0.6), ("acted", 0, 0.0, 0.5)]

    def run(*parts: list[tuple[str, int, float, float]]) -> tuple[float, float]:
        ticks = [tick for part in parts for tick in part]
        settings = {**SETTINGS, "rollout_length": len(ticks) - 1}
        algorithm = kind(TwoNumbers(0.3, 1.5), kind.Config(**settings))
        metrics, *found = gradients(algorithm, one_row(algorithm, ticks))
        samples = metrics["num_samples"]
        return found[0] * samples, found[1] * samples

    # Behind its end, the first episode alone has a tick that only bootstraps nothing.
    alone = run([*first, ("acted", 0, 0.0, 0.5)]), run(second)
    both = run(first, second)
    assert both == pytest.approx((alone[0][0] + alone[1][0], alone[0][1] + alone[1][1]))


@pytest.mark.parametrize("kind", KINDS)
def test_ticks_without_an_action_are_skipped(kind: type[OnePass]) -> None:
    """Other players' turns cost neither discount nor trace."""
    ticks = [("acted", 1, 1.0, 0.4), ("acted", 0, -3.0, 0.7), ("acted", 1, 2.0, 0.6)]
    idle = ("idle", 0, 7.0, 1.0)
    found = []
    for row in (ticks, [ticks[0], idle, idle, ticks[1], idle, ticks[2]]):
        settings = {**SETTINGS, "rollout_length": len(row) - 1}
        algorithm = kind(TwoNumbers(0.3, 1.5), kind.Config(**settings))
        found.append(gradients(algorithm, one_row(algorithm, row)))
    assert found[0] == found[1]


# -- what must hold for any batch ------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("minibatches", [1, 3])
def test_what_is_masked_changes_nothing(kind: type[OnePass], name: str, minibatches: int) -> None:
    """Not even NaN, or actions that do not exist."""
    outcomes = []
    for spoil in (False, True):
        algorithm = make(kind, NETWORKS[name], minibatches=minibatches)
        for seed in range(2):
            batch = random_batch(algorithm, seed)
            data = batch.data
            if spoil:
                asked = (data.acted | data.truncated) & ~data.terminated
                data.obs[~asked] = np.nan
                data.extras["value"][...] = np.nan
                data.action[~data.acted] = np.iinfo(np.int64).min
                data.extras["log_prob"][~data.acted] = np.nan
                data.action_mask[~asked] = False
                data.reward[~data.acted] = np.nan
                data.reward[-1] = np.nan
            metrics = learn(algorithm, batch)
        outcomes.append((metrics, weights(algorithm)))
    (metrics, plain), (spoiled_metrics, spoiled) = outcomes
    assert metrics == spoiled_metrics
    assert_equal(plain, spoiled)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NETWORKS)
def test_an_update_makes_its_numbers_where_its_data_is(kind: type[OnePass], name: str) -> None:
    algorithm = make(kind, NETWORKS[name])
    batch = random_batch(algorithm)
    with torch.device("meta"):
        metrics = learn(algorithm, batch)
    assert all(np.isfinite(value) for value in metrics.values()), metrics


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_resuming_is_exact(kind: type[OnePass], optimizer: str, tmp_path: Path) -> None:
    network = NETWORKS["normalised"]
    going_on = make(kind, network, optimizer=optimizer)
    batches = [random_batch(going_on, seed) for seed in range(4)]
    for batch in batches[:2]:
        learn(going_on, batch)
    resumed = make(kind, network, optimizer=optimizer)
    resumed.policy.load_state_dict(weights(going_on))
    save_state(tmp_path / "state", going_on.state())
    resumed.restore(load_state(tmp_path / "state"))
    for batch in batches[2:]:
        assert learn(going_on, batch) == learn(resumed, batch)
    assert_equal(weights(going_on), weights(resumed))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("optimizer", ["rmsprop", "adam"])
def test_an_update_can_be_undone(kind: type[OnePass], optimizer: str) -> None:
    algorithm = make(kind, NETWORKS["normalised"], optimizer=optimizer)
    first, second = (random_batch(algorithm, seed) for seed in range(2))
    learn(algorithm, first)
    algorithm.backup()
    before = weights(algorithm)
    wanted = learn(algorithm, second)
    algorithm.rollback()
    assert_equal(before, weights(algorithm))
    assert learn(algorithm, second) == wanted


@pytest.mark.parametrize("kind", KINDS)
def test_a_batch_without_actions_changes_nothing(kind: type[OnePass]) -> None:
    algorithm = make(kind, NETWORKS["ff"])
    batch, before = random_batch(algorithm), weights(algorithm)
    batch.data.acted[...] = False
    assert learn(algorithm, batch)["num_samples"] == 0.0
    assert_equal(before, weights(algorithm))


@pytest.mark.parametrize("kind", KINDS)
def test_nan_is_refused_before_the_weights_change(kind: type[OnePass]) -> None:
    algorithm = make(kind, NETWORKS["ff"])
    batch, before = random_batch(algorithm), weights(algorithm)
    tick, row = np.argwhere(batch.data.acted[:-1] & ~batch.data.truncated[:-1])[0]
    batch.data.reward[tick, row] = np.nan
    with pytest.raises(LearnError, match="update 0: expected a finite loss"):
        learn(algorithm, batch)
    assert_equal(before, weights(algorithm))


@pytest.mark.parametrize("name", ["ff", "reference", "lstm"])
def test_a2c_is_ppo_of_one_epoch(name: str) -> None:
    """On data of the policy itself the ratio is 1, so no clip matters (Huang et al. 2022)."""
    network = {**NETWORKS[name], "normalize_returns": False}
    plain = {
        "rollout_length": 8, "gae_lambda": 1.0, "minibatches": 1, "max_grad_norm": None,
        "learning_rate": 1e-3,
    }  # fmt: skip
    a2c = make(A2C, network, **plain, optimizer="adam", optimizer_eps=1e-5)
    torch.manual_seed(0)
    policy = ActorCritic(AGENT, ActorCriticConfig(hidden_sizes=(8,), **network))
    settings = PPOConfig(**plain, epochs=1, normalize_advantages=False, chunk_length=8)
    ppo = PPO(policy, settings, seed=3)
    assert_equal(weights(a2c), weights(ppo))
    for seed in range(3):
        batch = random_batch(ppo, seed)
        batch.learner_version = -1
        policy = a2c.policy
        assert isinstance(policy, ActorCritic)
        own = Sequences(batch, policy, a2c.device)
        log_prob, value = outputs_everywhere(policy, own)
        batch.data.extras["log_prob"][...] = log_prob.numpy()
        batch.data.extras["value"][...] = value.numpy()
        learn(a2c, batch)
        learn(ppo, batch)
        torch.testing.assert_close(a2c.optimizer.grad, ppo.optimizer.grad, rtol=1e-4, atol=1e-7)
    for key, weight in weights(ppo).items():
        torch.testing.assert_close(weights(a2c)[key], weight, rtol=1e-4, atol=1e-5, msg=key)


# -- settings, optimizer, learning -----------------------------------------------------------------


def test_rmsprop_has_the_numbers_of_torch() -> None:
    torch.manual_seed(0)
    ours, theirs = nn.Linear(3, 2), nn.Linear(3, 2)
    theirs.load_state_dict(ours.state_dict())
    mine = RMSProp(ours.parameters(), lr=0.1, eps=1e-3, decay=0.9)
    other = torch.optim.RMSprop(theirs.parameters(), lr=0.1, eps=1e-3, alpha=0.9)
    for step in range(5):
        x = torch.full((4, 3), float(step))
        for module, optimizer in ((ours, mine), (theirs, other)):
            optimizer.zero_grad()
            module(x).square().sum().backward()
            optimizer.step()
        for one, two in zip(ours.parameters(), theirs.parameters(), strict=True):
            torch.testing.assert_close(one, two)


def test_a_state_of_another_optimizer_is_refused() -> None:
    rmsprop = make(A2C, NETWORKS["ff"])
    adam = make(A2C, NETWORKS["ff"], optimizer="adam")
    with pytest.raises(CheckpointError, match="expected a state of RMSProp, got one of Adam"):
        rmsprop.restore(adam.state())
    with pytest.raises(CheckpointError, match="expected a state of Adam"):
        adam.restore(rmsprop.state())


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (A2C, "gae_lambda", 1.5),
        (A2C, "minibatches", 0),
        (A2C, "optimizer", "sgd"),
        (A2C, "optimizer_eps", 0.0),
        (A2C, "rmsprop_decay", -0.1),
        (A2C, "rollout_length", 0),
        (IMPALA, "vtrace_lambda", 2.0),
        (IMPALA, "vtrace_rho_clip", 0.0),
        (IMPALA, "max_policy_age", -1),
    ],
)
def test_wrong_settings_are_named(kind: type[OnePass], name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm\.{name}: expected .*, got {value!r}\.$"):
        kind.Config(**{name: value})


def test_data_of_older_policies_is_declared() -> None:
    assert IMPALA.handles_stale_samples
    assert IMPALA.Config().sampling().max_policy_age is None
    assert not A2C.handles_stale_samples
    assert A2C.Config().sampling().max_policy_age == 0


@pytest.mark.parametrize("kind", KINDS)
def test_a_cue_is_remembered(kind: type[OnePass]) -> None:
    """The secret is shown once; the right action is wanted two ticks later."""

    def observe(t: int, secret: np.ndarray) -> np.ndarray:
        return np.eye(2, dtype=np.float32)[secret] * (t == 0)

    def pay(t: int, secret: np.ndarray, action: np.ndarray) -> np.ndarray:
        return (action == secret).astype(np.float32) * 3 * (t == 2)

    torch.manual_seed(0)
    agent = AgentSpec(obs=ArraySpec(shape=(2,)), action=Discrete(2))
    network = ActorCriticConfig(recurrent="lstm", recurrent_size=16, hidden_sizes=(16,))
    policy = ActorCritic(agent, network)
    config = kind.Config(rollout_length=16, learning_rate=5e-3, entropy_coefficient=0.0)
    world = ToyWorld(policy, config, 32, 3, observe, pay)
    algorithm = kind(policy, config)
    rewards = []
    for _ in range(60):
        batch, reward = world.batch()
        learn(algorithm, batch)
        rewards.append(reward)
    assert max(rewards[-5:]) > 0.9
