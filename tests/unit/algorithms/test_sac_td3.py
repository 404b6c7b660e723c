"""SAC and TD3 beside their formulas, and on a task of one step that they learn in seconds."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import pytest
import torch
from transition_data import AGENT, windows

from srl.algorithms.learning.continuous_learner import ContinuousLearner
from srl.algorithms.learning.transitions import TransitionMinibatch, Transitions
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.registry import algorithm_config, find_algorithm
from srl.algorithms.sac.learner import SAC
from srl.algorithms.td3.learner import TD3
from srl.data.codec import dump_state, parse_state
from srl.data.records import SampleBatch
from srl.data.spec import Discrete
from srl.errors import ConfigError, LearnError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.policies.registry import find_policy

torch.set_num_threads(1)
NAMES = ["sac", "td3"]


def make(name: str, seed: int = 0, network: Any = None, **settings: Any) -> ContinuousLearner:
    torch.manual_seed(seed)
    kind = find_algorithm(name)
    policy_class = find_policy(kind.Config.network)
    chosen = {"hidden_sizes": (16, 16), "policy_gain": 1.0, **(network or {})}
    wanted = {"critic_hidden_sizes": (16, 16), **settings}
    policy = policy_class(AGENT, policy_class.Config(**chosen))
    made = kind(policy, algorithm_config(name)(**wanted), seed=seed)
    assert isinstance(made, ContinuousLearner)
    return made


def minibatch(own: ContinuousLearner, batch: SampleBatch) -> TransitionMinibatch:
    (found,) = Transitions(batch, own.policy, own.device, gamma=0.9, n=1).minibatches()
    return found


def ends(rows: int) -> dict[str, np.ndarray]:
    """Some windows end an episode, and some begin in its last tick."""
    terminated, truncated = np.zeros((2, rows), bool), np.zeros((2, rows), bool)
    terminated[1, 0] = truncated[1, 1] = truncated[0, 2] = True
    return {
        "terminated": terminated,
        "truncated": truncated,
        "acted": ~(terminated | truncated),
    }


def learn(own: ContinuousLearner, batch: SampleBatch) -> dict[str, float]:
    own.backup()
    *_, result = own.update(batch, 0.0)
    assert result is not None
    return result.metrics


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_sac_takes_the_gradients_of_its_paper(kernels: str) -> None:
    own = make("sac", network={"kernels": kernels}, initial_temperature=0.3, gamma=0.9)
    assert isinstance(own, SAC)
    policy, data = copy.deepcopy(own.policy), minibatch(own, windows(16, **ends(16)))
    critic = copy.deepcopy(own.critics.critic)
    noise = torch.randn((2, 16, 2), generator=copy.deepcopy(own.generator))
    metrics = own.gradient_step(data)
    # The critics, beside the same networks under autograd.
    with torch.no_grad():
        next_action, next_log_prob = policy.sample(policy.seen(data.next_obs), noise[1])  # type: ignore[operator]
        next_value = critic({"": data.next_obs}, next_action).min(0).values
        target = data.reward + data.discount * (next_value - 0.3 * next_log_prob)
    counts = data.weight > 0
    assert int(counts.sum()) == 15
    unit = policy.unit(data.action)  # type: ignore[operator]
    error = (critic({"": data.obs}, unit) - target)[:, counts]
    torch.testing.assert_close(metrics["critic_loss"], 0.5 * error.square().mean(1).sum())
    # The policy, which follows the critics as they are after their step.
    action, log_prob = policy.sample(policy.seen(data.obs), noise[0])  # type: ignore[operator]
    value = own.critics.critic({"": data.obs}, action).min(0).values
    loss = (0.3 * log_prob - value)[counts].mean()
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    torch.testing.assert_close(metrics["policy_loss"], loss)
    for parameter, gradient in zip(own.policy.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(metrics["entropy"], -log_prob[counts].mean())
    # The temperature falls, because the entropy is above its target of -2.
    assert float(metrics["entropy"]) > -2.0
    assert float(own.temperature.value) < 0.3


def test_temperature_moves_against_the_distance_to_the_target_entropy() -> None:
    for log_prob, falls in ((1.0, True), (3.0, False)):
        own = make("sac", temperature_learning_rate=0.01)
        assert isinstance(own, SAC)
        own.temperature.step(torch.tensor(log_prob))
        # Adam's first step is as long as its rate, in the logarithm.
        expected = math.exp(-0.01 if falls else 0.01)
        assert float(own.temperature.value) == pytest.approx(expected)
    fixed = make("sac", temperature=0.2)
    assert isinstance(fixed, SAC)
    fixed.temperature.step(torch.tensor(5.0))
    assert float(fixed.temperature.value) == pytest.approx(0.2)
    other = make("sac", target_entropy=3.0)
    assert isinstance(other, SAC)
    assert other.temperature.target_entropy == 3.0


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_td3_takes_the_gradients_of_its_paper(kernels: str) -> None:
    own = make("td3", network={"kernels": kernels}, gamma=0.9, policy_delay=1)
    assert isinstance(own, TD3)
    policy, data = copy.deepcopy(own.policy), minibatch(own, windows(16, **ends(16)))
    critic = copy.deepcopy(own.critics.critic)
    noise = torch.randn((16, 2), generator=copy.deepcopy(own.generator))
    metrics = own.gradient_step(data)
    with torch.no_grad():
        best = policy.best(policy.seen(data.next_obs))  # type: ignore[operator]
        next_action = (best + (0.2 * noise).clamp(-0.5, 0.5)).clamp(-1, 1)
        target = (
            data.reward + data.discount * critic({"": data.next_obs}, next_action).min(0).values
        )
    counts = data.weight > 0
    unit = policy.unit(data.action)  # type: ignore[operator]
    error = (critic({"": data.obs}, unit) - target)[:, counts]
    torch.testing.assert_close(metrics["critic_loss"], 0.5 * error.square().mean(1).sum())
    loss = -own.critics.critic({"": data.obs}, policy.best(policy.seen(data.obs)))[0, counts].mean()  # type: ignore[operator]
    torch.testing.assert_close(metrics["policy_loss"], loss.detach())
    gradients = torch.autograd.grad(loss, list(policy.parameters()))
    for parameter, gradient in zip(own.policy.parameters(), gradients, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-4, atol=1e-6)


def test_td3_delays_policy_and_targets() -> None:
    own = make("td3", policy_delay=3, tau=0.5)
    assert isinstance(own, TD3)
    data = minibatch(own, windows(16))
    targets = (own.critics.target.module, own._target.module)
    moved = []
    for _ in range(7):
        before = [own.optimizer.flat.clone(), *_flat(*targets)]
        own.gradient_step(data)
        after = [own.optimizer.flat, *_flat(*targets)]
        moved.append([not torch.equal(a, b) for a, b in zip(before, after, strict=True)])
    assert [policy for policy, _, _ in moved] == [False, False, True, False, False, True, False]
    # Targets follow before the step after the policy's.
    assert [critic for _, critic, _ in moved] == [False, False, False, True, False, False, True]
    assert [policy for _, _, policy in moved] == [False, False, False, True, False, False, True]


def _flat(*modules: torch.nn.Module) -> list[torch.Tensor]:
    return [torch.cat([p.flatten() for p in module.parameters()]) for module in modules]


def test_td3_smooths_inside_of_the_bounds() -> None:
    own = make("td3", target_noise=10.0, target_noise_clip=0.3, network={"policy_gain": 0.0})
    assert isinstance(own, TD3)
    seen = {"": torch.zeros(500, 3)}
    noisy = own.target_action(seen)  # Around 0, where the noise has room.
    assert float(noisy.abs().max()) == pytest.approx(0.3)
    assert float(noisy.abs().min()) > 0.0
    with torch.no_grad():
        own._target.module.head.bias.fill_(10.0)  # type: ignore[union-attr,operator]
    noisy = own.target_action(seen)
    assert float(noisy.max()) == 1.0
    assert float(noisy.min()) == pytest.approx(0.7)


@pytest.mark.parametrize("name", NAMES)
def test_state_and_rollback_are_exact(name: str) -> None:
    network = {"normalize_obs": True}
    batches = [windows(32, fragments=4, seed=seed, **ends(32)) for seed in range(3)]

    def numbers(own: ContinuousLearner) -> bytes:
        weights = {key: x.numpy() for key, x in own.policy.state_dict().items()}
        return dump_state({"weights": weights, "learner": own.state()})

    own = make(name, network=network)
    learn(own, batches[0])
    at_first = numbers(own)
    learn(own, batches[1])
    learn(own, batches[2])
    expected = numbers(own)
    # An update that is given up half-way, and then repeated.
    other = make(name, seed=7, network=network)
    state = parse_state(at_first)
    weights = {key: torch.tensor(x) for key, x in state["weights"].items()}
    other.policy.load_state_dict(weights)
    other.restore(state["learner"])
    assert numbers(other) == at_first
    other.backup()
    steps = other.update(batches[1], 0.0)
    next(steps), next(steps)
    other.rollback()
    assert numbers(other) == at_first
    learn(other, batches[1])
    learn(other, batches[2])
    assert numbers(other) == expected


@pytest.mark.parametrize("name", NAMES)
def test_actions_are_uniform_until_the_first_update(name: str) -> None:
    own = make(name)
    published = own.policy.state_dict()
    assert float(published["uniform"]) == 1.0
    learn(own, windows(8))
    assert float(published["uniform"]) == 0.0
    assert float(make(name, learning_starts=0).policy.state_dict()["uniform"]) == 0.0
    # Critics and targets stay with the learner.
    assert not [key for key in published if "critic" in key or "target" in key]


@pytest.mark.parametrize("seed", [0])
@pytest.mark.parametrize("name", NAMES)
def test_learns_to_point(name: str, seed: int) -> None:
    """Episodes of one action, which is worth most where it equals what is seen."""
    own = make(name, seed, learning_rate=3e-3, network={"policy_gain": 0.01})
    random = np.random.default_rng(seed)
    generator = torch.Generator().manual_seed(seed)
    terminated = np.zeros((2, 256), bool)
    terminated[1] = True

    def play(explore: float) -> tuple[SampleBatch, float]:
        obs = random.uniform(-1, 1, (2, 256, 3)).astype(np.float32)
        # There is no replay, so a half of the actions is uniform to the end.
        own.policy.uniform.fill_(0.5)  # type: ignore[union-attr,operator]
        given = (torch.from_numpy(obs[0]), None, torch.ones(256).bool())
        with torch.inference_mode():
            act = own.policy.act(*given, torch.full((256,), explore), None, generator)
        action = act.action.numpy()
        unit = action / np.array([2.0, 0.5]) - np.array([0.0, 1.0])
        reward = np.zeros((2, 256), np.float32)
        reward[0] = -np.square(unit - obs[0, :, :2]).sum(1)
        actions = np.stack([action, action])
        fields = {"obs": obs, "action": actions, "reward": reward, "terminated": terminated}
        return windows(256, fragments=4, acted=~terminated, **fields), float(reward[0].mean())

    _, at_first = play(0.0)
    for _ in range(60):
        batch, _ = play(1.0)
        learn(own, batch)
    _, at_last = play(0.0)
    assert at_first < -0.5
    # Seen over ten seeds: between -0.08 and -0.02.
    assert at_last > -0.1


@pytest.mark.parametrize("name", NAMES)
def test_numbers_that_are_not_finite_are_an_error(name: str) -> None:
    own = make(name)
    batch = windows(8)
    batch.data.reward[0, 0] = np.inf
    with pytest.raises(LearnError, match="update 0: expected a finite loss"):
        learn(own, batch)


@pytest.mark.parametrize("name", NAMES)
def test_refuses_other_policies_and_settings(name: str) -> None:
    kind, config = find_algorithm(name), algorithm_config(name)
    other = AGENT.__class__(obs=AGENT.obs, action=Discrete(2))
    policy = ActorCritic(other, ActorCriticConfig())
    with pytest.raises(ConfigError, match=rf"{name.upper()} expects a policy with.*network.name="):
        kind(policy, config())
    wrong = "sac" if name == "td3" else "td3"
    with pytest.raises(ConfigError, match=r"Use network.name="):
        kind(make(wrong).policy, config())
    for setting, value in {
        "tau": 0.0,
        "gamma": 1.5,
        "n_steps": 0,
        "learning_rate": -1.0,
        "critic_hidden_sizes": (0,),
    }.items():
        with pytest.raises(ConfigError, match=rf"algorithm.{setting}: expected"):
            config(**{setting: value})
    own = {"sac": {"temperature": -1.0, "initial_temperature": 0.0}, "td3": {"policy_delay": 0}}
    for setting, value in own[name].items():
        with pytest.raises(ConfigError, match=rf"algorithm.{setting}: expected"):
            config(**{setting: value})
    assert not isinstance(config(), PPOConfig)


@pytest.mark.parametrize("name", NAMES)
def test_first_weights_of_critics_come_from_the_seed(name: str) -> None:
    policy = make(name).policy
    kind, config = find_algorithm(name), algorithm_config(name)()
    states = []
    for elsewhere, seed in ((1, 7), (2, 7), (1, 8)):
        torch.manual_seed(elsewhere)
        own = kind(copy.deepcopy(policy), config, seed=seed)
        assert isinstance(own, ContinuousLearner)
        states.append(dump_state(own.critics.state()))
    assert states[0] == states[1] != states[2]
