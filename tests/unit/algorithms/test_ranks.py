"""Several trainers learn what one would: the ranks are threads here, and sums go through memory."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from ppo_data import AGENT, learn, random_batch, split_batch

from srl.algorithms.a2c.learner import A2C
from srl.algorithms.appo.learner import APPO
from srl.algorithms.collective import Collective
from srl.algorithms.impala.learner import IMPALA
from srl.algorithms.learning.policy_gradient import PolicyGradient
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.learner import PPO
from srl.data.records import SampleBatch
from srl.errors import LearnError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig

torch.set_num_threads(1)

CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}),
    "statistics": ({"normalize_obs": True, "normalize_returns": True}, {}),
    "memory": ({"recurrent": "lstm", "recurrent_size": 8}, {"chunk_length": 4, "burn_in": 4}),
    "early stop": ({}, {"target_kl": 1e-4, "learning_rate": 0.02}),
    "one minibatch": ({}, {"minibatches": 1, "normalize_advantages": False}),
    "v-trace": ({}, {"kind": APPO}),
    "a2c": ({"normalize_obs": True}, {"kind": A2C}),
    "impala": ({}, {"kind": IMPALA, "learning_rate": 1e-3}),
    "impala with memory": ({"recurrent": "lstm", "recurrent_size": 8}, {"kind": IMPALA}),
}


class ThreadRanks(Collective):
    """Ranks that meet in one process."""

    def __init__(self, rank: int, count: int, table: list[Any], barrier: threading.Barrier) -> None:
        self.rank, self.count = rank, count
        self._table, self._barrier = table, barrier

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        self._barrier.wait(20)
        self._table[self.rank] = x.clone()
        self._barrier.wait(20)
        return torch.stack(list(self._table))

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        return self.gather(x).sum(0)


def together(
    learners: list[PolicyGradient], work: Callable[[int, PolicyGradient], Any]
) -> list[Any]:
    """Runs `work` in every rank at once, and returns what each found."""
    count = len(learners)
    table: list[Any] = [None] * count
    barrier = threading.Barrier(count)

    def run(rank: int) -> Any:
        try:
            learners[rank].join(ThreadRanks(rank, count, table, barrier))
            return work(rank, learners[rank])
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(run, range(count)))


def make(
    network: dict[str, Any], kind: type[PolicyGradient] = PPO, **settings: Any
) -> PolicyGradient:
    torch.manual_seed(0)
    if issubclass(kind, PPO):
        settings = {"epochs": 2, "minibatches": 3, **settings}
    settings = {"rollout_length": 8, **settings}
    policy = ActorCritic(AGENT, ActorCriticConfig(hidden_sizes=(16,), **network))
    return kind(policy, kind.Config(**settings), seed=1)


def make_batches(
    algorithm: PolicyGradient, num_items: int, rows: int, updates: int
) -> list[SampleBatch]:
    """`rows` in each of `num_items` fragments."""
    return [
        random_batch(algorithm, seed, rows * num_items, num_items=num_items)
        for seed in range(updates)
    ]


def learn_all(algorithm: PolicyGradient, batches: list[SampleBatch]) -> list[dict[str, float]]:
    return [learn(algorithm, batch) for batch in batches]


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("count", [2, 3])
def test_any_number_of_trainers_learns_the_same(case: str, count: int) -> None:
    network, settings = CASES[case]
    alone = make(network, **settings)
    batches = make_batches(alone, num_items=6, rows=2, updates=5)

    def work(rank: int, algorithm: PolicyGradient) -> tuple[PolicyGradient, list[dict[str, float]]]:
        mine = [split_batch(batch, rank, count) for batch in batches]
        return algorithm, learn_all(algorithm, mine)

    results = together([make(network, **settings) for _ in range(count)], work)
    metrics = learn_all(alone, batches)
    assert any(m.get("epochs_done") == 1 for m in metrics) == (case == "early stop")
    for algorithm, found in results:
        for one, other in zip(metrics, found, strict=True):
            assert one.keys() == other.keys()
            for name, value in one.items():
                assert other[name] == pytest.approx(value, rel=1e-3, abs=1e-4), name
        for name, tensor in alone.policy.state_dict().items():
            torch.testing.assert_close(
                algorithm.policy.state_dict()[name], tensor, rtol=1e-5, atol=1e-5, msg=name
            )


def test_all_ranks_stay_equal_to_the_bit() -> None:
    batches = make_batches(make({}), num_items=4, rows=2, updates=4)

    def work(rank: int, algorithm: PolicyGradient) -> dict[str, torch.Tensor]:
        learn_all(algorithm, [split_batch(batch, rank, 2) for batch in batches])
        return algorithm.policy.state_dict()

    first, second = together([make({}), make({})], work)
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("kind", [PPO, A2C, IMPALA])
def test_a_rank_without_a_sample_joins_in(kind: type[PolicyGradient]) -> None:
    """Nobody acted in its fragments; the others' samples are all there is."""
    alone = make({}, kind)
    (batch,) = make_batches(alone, num_items=4, rows=1, updates=1)
    batch.data.acted[:, 1::2] = batch.data.truncated[:, 1::2] = False
    batch.data.obs[:, 1::2] = np.nan

    def work(rank: int, algorithm: PolicyGradient) -> tuple[float, dict[str, torch.Tensor]]:
        (metrics,) = learn_all(algorithm, [split_batch(batch, rank, 2)])
        return metrics["num_samples"], algorithm.policy.state_dict()

    (samples, weights), (others, same) = together([make({}, kind), make({}, kind)], work)
    learn_all(alone, [copy.deepcopy(batch)])
    assert samples == others == batch.num_steps
    for name, tensor in alone.policy.state_dict().items():
        torch.testing.assert_close(weights[name], tensor, rtol=1e-5, atol=1e-5)
        assert torch.equal(weights[name], same[name])


@pytest.mark.parametrize("where", ["obs", "reward"])
def test_nan_with_one_rank_stops_them_all(where: str) -> None:
    (batch,) = make_batches(make({}), num_items=2, rows=2, updates=1)
    array = batch.data.obs if where == "obs" else batch.data.reward
    array[2, 3] = np.nan

    def work(rank: int, algorithm: PolicyGradient) -> str:
        with pytest.raises(LearnError) as raised:
            learn_all(algorithm, [split_batch(batch, rank, 2)])
        return str(raised.value)

    learners = [make({"normalize_obs": True}) for _ in range(2)]
    first, second = together(learners, work)
    assert first == second


def test_buffers_of_other_kinds_follow_the_first_rank() -> None:
    class Counting(ActorCritic):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            self.register_buffer("seen", torch.zeros(1))

        def track_returns(self, returns: torch.Tensor) -> None:
            self.seen += returns.sum()

    def work(rank: int, algorithm: PolicyGradient) -> torch.Tensor:
        (batch,) = make_batches(algorithm, num_items=2, rows=2, updates=1)
        learn_all(algorithm, [split_batch(batch, rank, 2)])
        return algorithm.policy.get_buffer("seen")

    policies = [Counting(AGENT, ActorCriticConfig(hidden_sizes=(8,))) for _ in range(2)]
    config = PPOConfig(rollout_length=8)
    first, second = together([PPO(policy, config, seed=1) for policy in policies], work)
    assert torch.equal(first, second)
    assert float(first) != 0.0
