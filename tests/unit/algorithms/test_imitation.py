"""Learning to act as somebody else did, from batches that a test makes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from test_ranks import together

from srl.algorithms.bc.config import BCConfig
from srl.algorithms.imitation_config import ImitationConfig
from srl.algorithms.learning.imitation import ImitationLearner
from srl.data.records import NO_VERSION, SampleBatch
from srl.data.spec import (
    ActionSpec,
    AgentSpec,
    ArraySpec,
    Box,
    Discrete,
    MultiBinary,
    MultiDiscrete,
)
from srl.data.trajectory import TrajectorySpec, from_tree, to_tree
from srl.data.tree import tree_map
from srl.errors import ConfigError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig

OBS = {"code": ArraySpec(shape=(4,)), "noise": ArraySpec(shape=(2,))}
ROWS = 32


def learner(
    action: ActionSpec, *, masked: bool = False, network: Any = None, **settings: Any
) -> ImitationLearner:
    torch.manual_seed(0)
    agent = AgentSpec(obs=OBS, action=action, has_action_mask=masked)
    policy = ActorCritic(agent, ActorCriticConfig(**(network or {})))
    given = {"learning_rate": 3e-3, "gradient_steps": 4, "batch_size": 8, **settings}
    return ImitationLearner(policy, ImitationConfig(**given), seed=1)


def demonstrations(
    algorithm: ImitationLearner, expert: Any, seed: int, rows: int = ROWS
) -> SampleBatch:
    """Windows of episodes of 5 steps: `expert` chooses by the first step's code and this one's."""
    rng, config = np.random.default_rng(seed), algorithm.config
    shape = config.windows()
    spec = TrajectorySpec(
        length=shape.length,
        rows=rows,
        envs=rows,
        agent=algorithm.policy.agent,
        extras=algorithm.policy.extras_spec,
        policy_state=algorithm.policy.state_spec,
        burn_in=shape.burn_in,
        state_every=shape.state_every,
    )
    data = spec.allocate()
    code = rng.integers(4, size=data.acted.shape)
    data.obs["code"][...] = np.eye(4)[code]
    data.obs["noise"][...] = rng.normal(size=data.obs["noise"].shape)
    age = np.arange(len(code))[:, None] % 6
    data.is_first[...], data.terminated[...] = age == 0, age == 5
    data.acted[...], data.alive[...] = age < 5, True
    first = code[np.maximum(np.arange(len(code)) - age[:, 0], 0)]
    if data.action_mask is not None:
        data.action_mask[...] = rng.random(data.action_mask.shape) < 0.5
        np.put_along_axis(data.action_mask, code[..., None], True, -1)
    data.action[...] = expert(first, code, data.obs)
    # A tick without an action may hold anything, and no loss may see it.
    data.action[~data.acted] = 0
    data.obs["code"][data.terminated] = np.nan
    data.obs["noise"][data.terminated] = np.nan
    data.policy_version[...] = NO_VERSION
    return SampleBatch(data, num_fragments=4, burn_in=spec.burn_in, state_every=spec.state_every)


def train(algorithm: ImitationLearner, expert: Any, updates: int = 60) -> dict[str, float]:
    for number in range(updates):
        *_, result = algorithm.update(demonstrations(algorithm, expert, number), 0.0)
    return result.metrics


NUMBERS = Box((2,), (-1.0, -1.0), (1.0, 1.0))
TASKS = {
    "choice": (Discrete(4), lambda first, now, obs: now),
    "choices": (MultiDiscrete((4, 3)), lambda first, now, obs: np.stack([now, now % 3], -1)),
    "switches": (
        MultiBinary(4),
        lambda first, now, obs: np.eye(4, dtype=np.int8)[now],
    ),
}


@pytest.mark.parametrize("task", TASKS)
def test_choices_are_learned(task: str) -> None:
    action, expert = TASKS[task]
    metrics = train(learner(action), expert)
    assert metrics["accuracy"] == 1.0
    assert metrics["log_prob"] > -0.1
    assert metrics["num_samples"] == 32 * 14  # Of 16 ticks two are final observations.


@pytest.mark.parametrize("loss", ["log_prob", "mse"])
def test_numbers_are_learned(loss: str) -> None:
    algorithm = learner(NUMBERS, loss=loss)
    before = algorithm.policy.action_head.log_std.detach().clone()
    metrics = train(algorithm, lambda first, now, obs: np.eye(4)[now][..., :2] - 0.5)
    assert metrics["mse"] < 0.01
    after = algorithm.policy.action_head.log_std.detach()
    # The deviation follows the error where the likelihood is the loss, and else stays.
    assert (after < before - 0.2).all() if loss == "log_prob" else bool((after == before).all())


def test_masks_are_kept() -> None:
    """The expert takes the first choice that is allowed: nothing but the mask says which."""
    algorithm = learner(Discrete(4), masked=True)
    batch = demonstrations(algorithm, lambda first, now, obs: now, 0)
    mask = batch.data.action_mask
    assert mask is not None
    batch.data.action[...] = np.where(batch.data.acted, mask.argmax(-1), 0)
    for _ in range(200):
        *_, result = algorithm.update(batch, 0.0)
    # The lower numbers have become likelier wherever they are allowed.
    assert result.metrics["accuracy"] > 0.97


@pytest.mark.parametrize("burn_in", [0, 12])
def test_a_memory_is_trained_through_windows(burn_in: int) -> None:
    """The expert repeats what the first observation of the episode was."""
    settings = {"sequence_length": 12, "burn_in": burn_in, "learning_rate": 1e-2}
    network = {"recurrent": "lstm", "recurrent_size": 16}
    recalled = train(learner(Discrete(4), network=network, **settings), lambda f, n, o: f, 80)
    assert recalled["accuracy"] > 0.95
    forgotten = train(learner(Discrete(4), **settings), lambda f, n, o: f, 30)
    assert forgotten["accuracy"] < 0.6


def test_the_loss_is_what_it_says() -> None:
    """By hand: a uniform policy of four choices, with its entropy."""
    algorithm = learner(Discrete(4), network={"policy_gain": 0.0}, entropy_coefficient=0.5)
    *_, result = algorithm.update(demonstrations(algorithm, TASKS["choice"][1], 0), 0.0)
    assert result.metrics["loss"] == pytest.approx(0.5 * math.log(4), abs=0.05)
    assert result.metrics["entropy"] == pytest.approx(math.log(4), abs=0.01)


def test_any_number_of_trainers_learns_the_same() -> None:
    expert = TASKS["choice"][1]
    whole = [demonstrations(learner(Discrete(4)), expert, number) for number in range(3)]
    alone = learner(Discrete(4))
    for batch in whole:
        *_, expected = alone.update(batch, 0.0)

    def part(batch: SampleBatch, rank: int) -> SampleBatch:
        """The fragments of one rank: every second one of four."""
        rows = np.arange(ROWS).reshape(4, -1)[rank::2].ravel()
        data = from_tree(tree_map(lambda leaf: leaf[:, rows].copy(), to_tree(batch.data)))
        return SampleBatch(data, num_fragments=2)

    def work(rank: int, algorithm: ImitationLearner) -> dict[str, float]:
        for batch in whole:
            *_, result = algorithm.update(part(batch, rank), 0.0)
        return result.metrics

    pair = [learner(Discrete(4)) for _ in range(2)]
    for metrics in together(pair, work):  # type: ignore[arg-type]
        assert metrics == pytest.approx(expected.metrics, rel=1e-3)
    for one, other in zip(pair[0].policy.parameters(), alone.policy.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_a_resumed_learner_goes_on_to_the_bit() -> None:
    expert = TASKS["choice"][1]
    one, other = learner(Discrete(4)), learner(Discrete(4))
    train(one, expert, 5)
    other.policy.load_state_dict(one.policy.state_dict())
    other.restore(one.state())
    a, b = train(one, expert, 3), train(other, expert, 3)
    assert a == b


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "mae"}, "algorithm.loss"),
        ({"sequence_length": 0}, "algorithm.sequence_length: expected at least 1, got 0"),
        ({"batch_size": 0}, "algorithm.batch_size: expected at least 1"),
        ({"burn_in": -1}, "algorithm.burn_in: expected at least 0"),
        ({"entropy_coefficient": -1.0}, "algorithm.entropy_coefficient"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BCConfig(**settings)


def test_distances_between_choices_mean_nothing() -> None:
    with pytest.raises(ConfigError, match=r"for mse expected real-valued actions.*Discrete"):
        learner(Discrete(4), loss="mse")
