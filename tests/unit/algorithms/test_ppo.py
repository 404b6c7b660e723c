"""The learner's promises: masked steps change nothing, resuming is exact, NaN stops in time."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ppo_data import AGENT, learn, random_batch, trajectory_spec

from srl.algorithms.appo.learner import APPO
from srl.algorithms.collective import Collective
from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.global_batch import GlobalBatch
from srl.algorithms.ppo.learner import PPO
from srl.algorithms.ppo.minibatches import minibatches
from srl.algorithms.ppo.rollout import Minibatch, Rollout
from srl.algorithms.ppo.surrogate import LossTerms, surrogate
from srl.algorithms.registry import find_algorithm
from srl.data.codec import load_state, save_state
from srl.data.records import SampleBatch, TrainResult
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.stacking import push_frame
from srl.data.tree import leaves, tree_map
from srl.errors import CheckpointError, ConfigError, LearnError
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.policies.distributions import Categorical
from srl.policies.protocol import TracksStatistics, Unroll
from srl.policies.random import RandomPolicy
from srl.settings import convert, describe

torch.set_num_threads(1)

NETWORKS = {
    "ff": {"normalize_returns": False},
    "normalised": {"normalize_obs": True, "normalize_returns": True},
    "lstm": {"recurrent": "lstm", "recurrent_size": 8},
    "two memories": {"recurrent": "lstm", "recurrent_size": 8, "shared": False},
}


def make(network: dict[str, Any], kind: type[PPO] = PPO, **settings: Any) -> tuple[PPO, PPOConfig]:
    torch.manual_seed(0)
    config = kind.Config(**{"rollout_length": 8, "chunk_length": 4, "epochs": 2, **settings})
    policy = ActorCritic(AGENT, ActorCriticConfig(hidden_sizes=(8,), **network))
    return kind(policy, config, seed=3), config


def weights(algorithm: PPO) -> dict[str, torch.Tensor]:
    return {key: x.clone() for key, x in algorithm.policy.state_dict().items()}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("kind", [PPO, APPO])
def test_what_is_masked_changes_nothing(name: str, kind: type[PPO]) -> None:
    """Not even NaN, or actions that do not exist."""
    outcomes = []
    for spoil in (False, True):
        algorithm, _ = make(NETWORKS[name], kind)
        for seed in range(2):
            batch = random_batch(algorithm, seed)
            data = batch.data
            if spoil:
                asked = (data.acted | data.truncated) & ~data.terminated
                data.obs[~asked] = np.nan
                data.extras["value"][~asked] = np.nan
                data.action[~data.acted] = np.iinfo(np.int64).min
                data.extras["log_prob"][~data.acted] = np.nan
                data.action_mask[~asked] = False
                data.reward[~data.acted] = np.nan
                data.reward[-1] = np.nan
                data.extras["log_prob"][-1] = np.nan if kind is PPO else 0.0
            metrics = learn(algorithm, batch)
        outcomes.append((metrics, weights(algorithm)))
    (metrics, plain), (spoiled_metrics, spoiled) = outcomes
    assert metrics == spoiled_metrics
    for key, weight in plain.items():
        assert torch.equal(weight, spoiled[key]), key


@pytest.mark.parametrize("name", NETWORKS)
def test_an_update_makes_its_numbers_where_its_data_is(name: str) -> None:
    """What is made on the default device would be on the wrong one beside a GPU."""
    algorithm, _ = make(NETWORKS[name])
    batch = random_batch(algorithm)
    with torch.device("meta"):
        metrics = learn(algorithm, batch)
    assert all(np.isfinite(value) for value in metrics.values()), metrics


@pytest.mark.parametrize("name", NETWORKS)
def test_samples_of_appo_are_bounded_by_the_policy_that_took_them(name: str) -> None:
    """However old: what an older policy took is no different from what this one did."""
    found = []
    for older in (False, True):
        algorithm, _ = make(NETWORKS[name], APPO, minibatches=3, clip=0.05)
        batch = random_batch(algorithm)
        if not older:
            batch.data.policy_version[batch.data.acted] = batch.learner_version
        found.append((learn(algorithm, batch), weights(algorithm)))
    (new, plain), (old, of_older) = found
    assert new == old
    assert all(torch.equal(plain[key], of_older[key]) for key in plain)


class Decoupled(PPO):
    """The objective for data of an older policy as its paper writes it, and its gradient by torch:
    the policy of a sample's first use bounds what can be learned from it."""

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        self.first_use: dict[int, torch.Tensor] = {}
        version = batch.data.policy_version[:-1].flatten()
        self.older = torch.from_numpy(version < batch.learner_version)
        behaviour_log_prob = batch.data.extras["log_prob"][:-1].flatten()
        self.behaviour_log_prob = torch.from_numpy(behaviour_log_prob.copy())
        yield from super().update(batch, progress)

    def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        log_prob, entropy, value = self.evaluate(minibatch)
        older, behaviour_log_prob = (
            self.older[minibatch.samples],
            self.behaviour_log_prob[minibatch.samples],
        )
        for key, now in zip(minibatch.samples.tolist(), log_prob.detach(), strict=True):
            self.first_use.setdefault(key, now)
        first = torch.stack([self.first_use[key] for key in minibatch.samples.tolist()])
        start = torch.where(older, first, behaviour_log_prob)
        advantage = minibatch.advantage * (start - behaviour_log_prob).exp().clamp(max=2.0)
        ratio, clip = (log_prob - start).exp(), self.config.clip
        gain = torch.min(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage)
        since = (log_prob - behaviour_log_prob).detach()
        kl = (since.exp() - 1 - since).mean()
        loss = (
            self.config.value_coefficient * self.value_loss(value, minibatch)
            - gain.mean()
            - self.config.entropy_coefficient * entropy.mean()
        )
        return loss, {"approx_kl": kl}


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("epochs", [1, 3])
def test_older_samples_are_bounded_by_the_policy_of_their_first_use(name: str, epochs: int) -> None:
    found = []
    for kind in (PPO, Decoupled):
        algorithm, config = make(NETWORKS[name], epochs=epochs, minibatches=3, clip=0.05)
        algorithm = kind(algorithm.policy, dataclasses.replace(config, learning_rate=1e-2), seed=3)
        batch = random_batch(algorithm)
        assert len(np.unique(batch.data.policy_version[batch.data.acted])) == 2
        metrics = learn(algorithm, batch)
        found.append((metrics["approx_kl"], weights(algorithm)))
    torch.testing.assert_close(found[0], found[1], rtol=1e-4, atol=1e-5)


def test_a_loss_of_ones_own_weights_stale_samples_as_ppo_does() -> None:
    algorithm, config = make(NETWORKS["ff"])
    batch = random_batch(algorithm)
    rollout = Rollout(batch, algorithm.policy, torch.device("cpu"))
    rollout.set_targets(*algorithm.targets(rollout))
    (minibatch,) = minibatches(
        rollout,
        GlobalBatch(rollout, 1, Collective()),
        1,
        config.chunk_ticks,
        torch.Generator(),
        True,
    )
    minibatch.set_proximal(algorithm.evaluate(minibatch).log_prob.detach(), minibatch.value)
    now = minibatch.log_prob.clone(), minibatch.value, minibatch.value
    _, terms = surrogate(*now, *algorithm._objective(minibatch))
    weighted = minibatch.weighted_advantage()
    torch.testing.assert_close(LossTerms(*terms).policy_loss, -weighted.mean())
    assert not torch.equal(weighted, minibatch.advantage)


def test_the_example_of_an_own_algorithm_treats_stale_samples_as_ppo_does() -> None:
    """At its first use, a stale sample has not moved from where its update begins."""
    kind = find_algorithm(f"{Path(__file__).parents[3]}/examples/04_own_algorithm.py:PenaltyPPO")
    moved = {}
    for older in (True, False):
        policy = make(NETWORKS["ff"])[0].policy
        algorithm = kind(policy, kind.Config(rollout_length=8, epochs=1, minibatches=1), seed=3)
        batch = random_batch(algorithm)
        batch.data.policy_version[batch.data.acted] = batch.learner_version - older
        moved[older] = learn(algorithm, batch)["log_ratio_squared"]
    assert moved[True] == 0.0 < moved[False]


def test_samples_of_the_policy_itself_are_bounded_by_what_it_was_when_it_took_them() -> None:
    algorithm, _ = make(NETWORKS["ff"])
    for age in (0, 1):
        batch = random_batch(algorithm)
        batch.data.policy_version[...] = 3
        batch.learner_version = 3 + age
        rollout = Rollout(batch, algorithm.policy, torch.device("cpu"))
        rollout.set_targets(rollout.value[:-1], rollout.value[:-1])
        minibatch = rollout.gather(torch.arange(6).unsqueeze(0), 0, False)
        behaviour_log_prob = minibatch.log_prob.clone()
        minibatch.set_proximal(behaviour_log_prob - 0.5, minibatch.value)
        torch.testing.assert_close(
            minibatch.log_prob, behaviour_log_prob - 0.5 * rollout.acted[0] * age
        )
        assert (
            minibatch.behaviour_log_prob is None
            if age == 0
            else torch.equal(minibatch.behaviour_log_prob, behaviour_log_prob)
        )


def test_burn_in_and_bootstrap_get_no_loss() -> None:
    algorithm, config = make(NETWORKS["lstm"], burn_in=4)
    batch = random_batch(algorithm, inert=False)
    rollout = Rollout(batch, algorithm.policy, torch.device("cpu"))
    assert batch.num_steps == int(rollout.counts.sum())
    assert not rollout.counts[:4].any()
    assert not rollout.counts[-1].any()
    metrics = learn(algorithm, batch)
    assert metrics["num_samples"] == batch.num_steps
    assert config.state_every == 4


def test_every_sample_is_seen_once_an_epoch() -> None:
    for network in (NETWORKS["ff"], NETWORKS["lstm"]):
        algorithm, config = make(network)
        batch = random_batch(algorithm)
        rollout = Rollout(batch, algorithm.policy, torch.device("cpu"))
        marks = torch.arange(8 * 6, dtype=torch.float32).reshape(8, 6)
        rollout.set_targets(marks, marks)
        generator = torch.Generator().manual_seed(0)
        whole = GlobalBatch(rollout, 1, Collective())
        parts = list(minibatches(rollout, whole, 4, config.chunk_ticks, generator, False))
        assert len(parts) == 4
        seen = torch.cat([part.target for part in parts])
        assert sorted(seen.tolist()) == sorted(rollout.select(marks).tolist())


def test_chunks_start_from_the_stored_state_after_their_burn_in() -> None:
    algorithm, config = make(NETWORKS["lstm"], burn_in=4)
    batch = random_batch(algorithm)
    batch.data.policy_state["h"][...] = np.arange(4)[:, None, None]
    rollout = Rollout(batch, algorithm.policy, torch.device("cpu"))
    ticks = torch.arange(8.0)[:, None].expand(8, 6) // 4
    # Targets are [12, 6] here: burn-in and loss ticks.
    rollout.set_targets(*[torch.cat([torch.full((4, 6), -1.0), ticks])] * 2)
    whole = GlobalBatch(rollout, 1, Collective())
    for part in minibatches(rollout, whole, 3, config.chunk_ticks, torch.Generator(), False):
        # Chunk c starts at loss tick 4 c and warms up from the state 4 ticks before that.
        chunk = part.policy_state["h"][:, 0]
        assert part.is_first.shape[0] == 8
        counted = part.select(chunk.expand(4, -1))
        assert torch.equal(part.target, counted)


def test_frames_are_stacked_as_the_actor_saw_them() -> None:
    agent = AgentSpec(obs={"f": ArraySpec(shape=(2,), stack=3)}, action=Discrete(2))
    policy = ActorCritic(agent, ActorCriticConfig(hidden_sizes=(4,)))
    config = PPOConfig(rollout_length=6)
    rows = 2
    spec = trajectory_spec(policy, config, rows)
    data, rng = spec.allocate(), np.random.default_rng(0)
    data.acted[...] = data.alive[...] = True
    data.is_first[0] = data.is_first[3, 0] = True
    live, seen = np.zeros((rows, 3, 2), np.float32), []
    for t in range(7):
        frame = rng.normal(size=(rows, 2)).astype(np.float32)
        if t == 0:
            data.obs["f"][:2] = frame
        data.obs["f"][t + 2] = frame
        push_frame(live, frame, data.is_first[t])
        seen.append(live.copy())
    batch = SampleBatch(data=data)
    rollout = Rollout(batch, policy, torch.device("cpu"))
    index = torch.arange(7)[:, None] * rows + torch.arange(rows)
    found = rollout.obs_at(index, None)["f"]
    np.testing.assert_array_equal(found, np.stack(seen))
    frames, mask = rollout.frames()
    np.testing.assert_array_equal(frames["f"], data.obs["f"][2:-1])
    assert mask.shape == (6, rows)
    learn(PPO(policy, config), batch)


@pytest.mark.parametrize("name", NETWORKS)
def test_resuming_is_exact(name: str, tmp_path: Path) -> None:
    algorithm, _ = make(NETWORKS[name], learning_rate_schedule="linear")
    for seed in range(3):
        learn(algorithm, random_batch(algorithm, seed), progress=seed / 6)
    save_state(tmp_path / "state", algorithm.state())
    saved = weights(algorithm)
    again, _ = make(NETWORKS[name], learning_rate_schedule="linear")
    again.policy.load_state_dict(saved)
    again.restore(load_state(tmp_path / "state"))
    for seed in range(3, 6):
        batch = random_batch(algorithm, seed)
        assert learn(algorithm, copy.deepcopy(batch), seed / 6) == learn(again, batch, seed / 6)
    for key, weight in weights(algorithm).items():
        assert torch.equal(weight, again.policy.state_dict()[key]), key


def test_an_abandoned_update_can_be_taken_back() -> None:
    algorithm, _ = make({})
    learn(algorithm, random_batch(algorithm, 0))
    state, before = algorithm.state(), weights(algorithm)
    next(iter(algorithm.update(random_batch(algorithm, 1), 0.5)))
    algorithm.restore(state)
    algorithm.policy.load_state_dict(before)
    expected = learn(algorithm, random_batch(algorithm, 1), 0.5)
    algorithm.restore(state)
    algorithm.policy.load_state_dict(before)
    assert learn(algorithm, random_batch(algorithm, 1), 0.5) == expected


@pytest.mark.parametrize("field", ["reward", "obs"])
@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("ff", r"update 0: expected a finite loss and gradient, got loss nan"),
        ("normalised", r"update 0: (obs|returns).*: expected finite numbers, got NaN or infinity"),
    ],
)
def test_nan_is_refused_before_the_weights_change(field: str, name: str, message: str) -> None:
    algorithm, _ = make(NETWORKS[name])
    batch, before = random_batch(algorithm), weights(algorithm)
    getattr(batch.data, field)[batch.data.acted] = np.nan
    with pytest.raises(LearnError, match=message):
        learn(algorithm, batch)
    for key, weight in weights(algorithm).items():
        if not key.startswith("obs_norm"):
            assert torch.equal(weight, before[key]), key
        assert torch.isfinite(weight).all()
    assert algorithm.optimizer.num_steps == 0


def test_first_minibatch_is_on_policy_with_normalised_observations() -> None:
    """Statistics move after training, so that the rollout's log_probs stay those of the policy."""
    algorithm, _ = make(NETWORKS["normalised"], epochs=1, minibatches=1)
    learn(algorithm, random_batch(algorithm, 0))
    batch = random_batch(algorithm, 1)
    data, policy = batch.data, algorithm.policy
    assert isinstance(policy, ActorCritic)
    with torch.no_grad():
        flags = [torch.from_numpy(x) for x in (data.is_first, data.acted)]
        found = policy.unroll(torch.from_numpy(data.obs), None, *flags)
        data.extras["log_prob"][...] = found.distribution.log_prob(torch.from_numpy(data.action))
    assert learn(algorithm, batch)["approx_kl"] == pytest.approx(0.0, abs=1e-6)


def test_metrics_and_minibatch_count() -> None:
    algorithm, _ = make({})
    *steps, result = algorithm.update(random_batch(algorithm), 0.25)
    assert steps == [None] * 8
    assert result is not None
    expected = (
        "policy_loss value_loss entropy approx_kl clip_fraction explained_variance grad_norm loss "
        "learning_rate entropy_coefficient advantage_mean advantage_std return_mean epochs_done "
        "num_samples"
    )
    assert set(result.metrics) == set(expected.split())
    assert all(isinstance(value, float) and np.isfinite(value) for value in result.metrics.values())
    assert result.metrics["epochs_done"] == 2


def test_target_kl_stops_early() -> None:
    algorithm, _ = make({}, target_kl=1e-9, learning_rate=1e-2)
    assert learn(algorithm, random_batch(algorithm))["epochs_done"] == 1


def test_schedules() -> None:
    algorithm, _ = make(
        {}, learning_rate_schedule="linear", learning_rate=0.1, entropy_coefficient_end=0.0
    )
    metrics = learn(algorithm, random_batch(algorithm), progress=0.75)
    assert metrics["learning_rate"] == pytest.approx(0.025)
    assert metrics["entropy_coefficient"] == pytest.approx(0.0025)


def test_rewards_are_clipped_as_asked() -> None:
    reward = torch.tensor([-3.0, 0.5, 0.0])
    for bound, expected in ((None, [-3.0, 0.5, 0.0]), ("sign", [-1, 1, 0]), (1.5, [-1.5, 0.5, 0])):
        algorithm, _ = make({}, clip_reward=bound)
        assert algorithm.clipped_reward(reward).tolist() == expected


def test_a_batch_without_actions_changes_nothing() -> None:
    for network in NETWORKS.values():
        algorithm, _ = make(network)
        batch, before = random_batch(algorithm), weights(algorithm)
        for flags in (batch.data.acted, batch.data.terminated, batch.data.truncated):
            flags[...] = False
        metrics = learn(algorithm, batch)
        assert metrics["num_samples"] == 0
        for key, weight in weights(algorithm).items():
            assert torch.equal(weight, before[key]), key


@pytest.mark.parametrize("name", NETWORKS)
def test_an_update_can_be_undone(name: str) -> None:
    algorithm, _ = make(NETWORKS[name])
    learn(algorithm, random_batch(algorithm, 0))
    before, state = weights(algorithm), algorithm.state()
    algorithm.backup()
    expected = learn(algorithm, random_batch(algorithm, 1))
    algorithm.rollback()
    assert all(torch.equal(x, before[key]) for key, x in algorithm.policy.state_dict().items())
    for mine, saved in zip(leaves(algorithm.state()), leaves(state), strict=True):
        np.testing.assert_array_equal(mine, saved)
    assert learn(algorithm, random_batch(algorithm, 1)) == expected


def test_value_clip_and_no_gradient_bound_run() -> None:
    algorithm, _ = make(NETWORKS["normalised"], value_clip=0.2, max_grad_norm=None)
    assert np.isfinite(learn(algorithm, random_batch(algorithm))["value_loss"])


class WithGraph(PPO):
    """The same objective, with its gradient by torch."""

    def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        return super().loss(minibatch)


@pytest.mark.parametrize("kind", [PPO, WithGraph])
@pytest.mark.parametrize(
    ("network", "version", "clipped"),
    [
        ({"normalize_returns": True}, 0, False),
        ({"normalize_returns": False, "normalize_obs": True}, 0, False),
        ({"normalize_returns": True, "recurrent": "lstm", "recurrent_size": 8}, 0, False),
        ({"normalize_returns": True}, 1, True),
        ({"normalize_returns": False}, 0, True),
    ],
)
def test_values_from_before_the_statistics_are_not_clipped(
    kind: type[PPO], network: dict[str, Any], version: int, clipped: bool
) -> None:
    """Statistics move values of a fresh critic far, without a gradient. Data of version 0 may be
    that of the second batch, too."""
    found = []
    for value_clip in (None, 1e-3):
        made, config = make(network, value_clip=value_clip, normalize_advantages=False)
        algorithm = kind(made.policy, config, seed=3)
        for seed in range(2):
            batch = random_batch(algorithm, seed)
            batch.data.reward *= 100.0
            batch.data.policy_version[batch.data.acted] = version
            learn(algorithm, batch)
        found.append(weights(algorithm))
    free, bound = found
    assert any(not torch.equal(free[key], bound[key]) for key in free) is clipped


class Reinforce(PPO):
    """An algorithm of one's own: another loss, and nothing else."""

    def loss(self, minibatch: Minibatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        now = self.evaluate(minibatch)
        policy_loss = -(now.log_prob * minibatch.advantage).mean()
        value_loss = self.value_loss(now.value, minibatch)
        return policy_loss + value_loss, {"policy_loss": policy_loss.detach()}


def test_an_own_loss_is_a_few_lines() -> None:
    _, config = make({})
    algorithm = Reinforce(make({})[0].policy, config)
    metrics = learn(algorithm, random_batch(algorithm))
    assert algorithm._manual is None
    assert "policy_loss" in metrics
    assert "approx_kl" not in metrics


def test_policies_that_cannot_be_trained_are_refused() -> None:
    policy = RandomPolicy(AGENT, RandomPolicy.Config())
    with pytest.raises(
        ConfigError, match="expects a policy with extras log_prob and value, got Random"
    ):
        PPO.check(PPOConfig(), policy)
    policy.extras_spec = {"log_prob": ArraySpec(), "value": ArraySpec()}
    with pytest.raises(ConfigError, match=r"a policy with unroll \(srl\.policies\.protocol\.Unro"):
        PPO.check(PPOConfig(), policy)


class Minimal(RandomPolicy):
    """What PPO asks for, and no more."""

    def __init__(self, agent: AgentSpec, config: Any) -> None:
        super().__init__(agent, config)
        self.extras_spec = {"log_prob": ArraySpec(), "value": ArraySpec()}
        self.linear = torch.nn.Linear(3, 5)

    def unroll(
        self,
        obs: Any,
        policy_state: Any,
        is_first: torch.Tensor,
        active: torch.Tensor,
        action_mask: torch.Tensor | None = None,
    ) -> Unroll:
        out = self.linear(obs)
        return Unroll(Categorical(out[..., :4], action_mask), out[..., 4], None)


class WithoutStatistics(Minimal, TracksStatistics):
    """Its statistics are those of the protocol: none."""


def test_a_policy_without_statistics_says_so() -> None:
    policy = Minimal(AGENT, Minimal.Config())
    with pytest.raises(ConfigError) as caught:
        PPO.check(PPOConfig(), policy)
    assert str(caught.value) == (
        "algorithm: PPO expects a policy with value_scale, track_obs, track_returns "
        f"(srl.policies.protocol.TracksStatistics), got {Minimal.__module__}.Minimal without "
        "value_scale and track_obs and track_returns. If it has no running statistics, inherit "
        "TracksStatistics, which does nothing."
    )
    policy = WithoutStatistics(AGENT, Minimal.Config())
    algorithm = PPO(policy, PPOConfig(rollout_length=8))
    before = weights(algorithm)
    *_, result = algorithm.update(random_batch(make({})[0]), 0.0)
    assert result is not None
    assert np.isfinite(result.metrics["loss"])
    assert not torch.equal(before["linear.weight"], policy.linear.weight)


def test_a_checkpoint_of_another_network_is_refused() -> None:
    algorithm, _ = make({})
    learn(algorithm, random_batch(algorithm))
    with pytest.raises(CheckpointError, match=r"Was network\.\* changed"):
        make({"shared": True})[0].restore(algorithm.state())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rollout_length", 0),
        ("epochs", 0),
        ("minibatches", 0),
        ("learning_rate", 0.0),
        ("gamma", 1.5),
        ("gae_lambda", -0.1),
        ("clip", 0.0),
        ("value_clip", 0.0),
        ("max_grad_norm", -1.0),
        ("target_kl", 0.0),
        ("learning_rate_schedule", "cosine"),
        ("clip_reward", "tanh"),
        ("clip_reward", -1.0),
        ("burn_in", -1),
        ("chunk_length", 7),
        ("chunk_length", -1),
        ("max_policy_age", -1),
        ("entropy_coefficient", -0.1),
        ("entropy_coefficient_end", -1.0),
        ("value_coefficient", -1.0),
        ("adam_eps", 0.0),
    ],
)
def test_wrong_settings_are_named(name: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=rf"^algorithm\.{name}: expected .*, got {value!r}\.$"):
        PPOConfig(**{name: value})


def test_sampling_follows_the_settings() -> None:
    settings = PPOConfig(rollout_length=32, chunk_length=8, burn_in=4, max_policy_age=None)
    wanted = settings.sampling()
    assert (wanted.length, wanted.burn_in, wanted.state_every, wanted.max_policy_age) == (
        32,
        4,
        4,
        None,
    )
    assert PPOConfig().chunk_ticks == 16
    assert PPOConfig(rollout_length=20).chunk_ticks == 20


def test_algorithms_are_found_by_name_and_path() -> None:
    assert find_algorithm("ppo") is PPO
    assert find_algorithm("srl.algorithms.ppo.learner:PPO") is PPO
    with pytest.raises(ConfigError, match="did you mean 'ppo'"):
        find_algorithm("pppo")
    with pytest.raises(ConfigError, match="expected a subclass"):
        find_algorithm("srl.algorithms.registry:find_algorithm")


def test_state_is_plain() -> None:
    algorithm, _ = make({})
    learn(algorithm, random_batch(algorithm))
    kinds = {type(leaf) for leaf in leaves(tree_map(lambda x: x, algorithm.state()))}
    assert kinds <= {np.ndarray, float, int}


def test_settings_are_read_from_plain_values() -> None:
    found = convert({"clip_reward": "sign", "target_kl": 0.1, "gamma": 1}, PPOConfig, "algorithm")
    assert (found.clip_reward, found.target_kl, found.gamma) == ("sign", 0.1, 1.0)
    assert convert({"clip_reward": 5}, PPOConfig, "algorithm").clip_reward == 5.0
    assert all(docs for *_, docs in describe(PPOConfig))
    network = convert({"hidden_sizes": [32], "shared": True}, ActorCriticConfig, "network")
    assert (network.hidden_sizes, network.shared) == ((32,), True)
    assert all(docs for *_, docs in describe(ActorCriticConfig))
    with pytest.raises(ConfigError, match=r"algorithm\.gamma: expected .* from 0 to 1, got 2"):
        convert({"gamma": 2}, PPOConfig, "algorithm")
