"""Train with an algorithm from scratch.

    python examples/08_algorithm_from_scratch.py [FOLDER]

An algorithm is a subclass of `Algorithm`. Its settings say which fragments it wants (`sampling`);
`update` makes one learner step of each batch. It knows nothing of processes, streams or versions,
so it runs in every layout. Below is advantage actor-critic (A2C, Mnih et al. 2016): one gradient
step for each batch, which is then thrown away. It shares nothing with PPO.

A2C is only right for samples of the current policy, so each batch is collected with the newest
weights. (An algorithm that is right for older samples declares `handles_stale_samples = True`.)
"""

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

import srl
from srl.algorithms.learning.adam import Adam
from srl.algorithms.ops.gae import gae
from srl.algorithms.protocol import Algorithm
from srl.data.records import SampleBatch, TrainResult
from srl.data.tree import tree_map
from srl.policies.protocol import Policy, Unrolls, require_protocol


@dataclass(frozen=True, kw_only=True)
class A2CConfig(srl.AlgorithmConfig):
    """Settings of A2C."""

    fragment_length: int = 32
    """Ticks of a fragment: a batch has one fragment of each environment."""
    learning_rate: float = 5e-3
    """Adam's step size at the start; it falls to 0."""
    gamma: float = 0.99
    """Discount per action."""
    gae_lambda: float = 0.95
    """Decay of the advantage trace."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus."""

    def sampling(self) -> srl.Sampling:
        """Which fragments it wants: policy state is stored once in each, at its first tick."""
        return srl.Sampling(length=self.fragment_length, state_every=self.fragment_length)


def zero_outside(used: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """`x` [T, B, ...] with zeros where it is not used: memory there may hold anything, like NaN."""
    return torch.where(used.reshape(used.shape + (1,) * (x.dim() - 2)), x, torch.zeros_like(x))


class A2C(Algorithm):
    """Advantage actor-critic, for any policy with `unroll`."""

    Config = A2CConfig

    def __init__(self, policy: Policy, config: A2CConfig, *, device: str = "cpu", seed: int = 0):
        self.policy, self.config, self.device = policy.to(device), config, device
        self.optimizer = Adam(policy.parameters(), lr=config.learning_rate)

    @classmethod
    def check(cls, config: A2CConfig, policy: Policy) -> None:
        require_protocol(policy, Unrolls, cls.__name__, "Write it, as ActorCritic does.")

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        config, data = self.config, batch.data

        def load(tree: Any) -> Any:
            return tree_map(lambda array: torch.tensor(array, device=self.device), tree)

        ticks = ("reward", "acted", "terminated", "truncated")
        steps = {name: load(getattr(data, name)) for name in ticks}
        acted = steps["acted"]
        # The policy is asked where it acts, and for the value where time ran out.
        asked = (acted | steps["truncated"]) & ~steps["terminated"]
        now = self.policy.unroll(
            tree_map(lambda leaf: zero_outside(asked, leaf), load(data.obs)),
            tree_map(lambda state: state[0], load(data.policy_state)),
            load(data.is_first),
            asked,
            load(data.action_mask),
        )
        # Knows about episode ends and ticks without an action; the last tick only bootstraps.
        value = now.value.detach()
        traced = gae(value=value, gamma=config.gamma, lam=config.gae_lambda, **steps)
        used = acted[:-1]
        log_prob = now.distribution.log_prob(zero_outside(acted, load(data.action)))[:-1][used]
        entropy = now.distribution.entropy()[:-1][used].mean()
        advantage = traced.advantage_t[used]
        policy_loss = -(log_prob * advantage / (advantage.std() + 1e-8)).mean()
        value_loss = 0.5 * (now.value[:-1] - traced.return_t)[used].square().mean()
        self.optimizer.lr = config.learning_rate * (1.0 - progress)
        self.optimizer.zero_grad()
        (policy_loss + value_loss - config.entropy_coefficient * entropy).backward()
        self.optimizer.step()
        metrics = {"policy_loss": policy_loss, "value_loss": value_loss, "entropy": entropy}
        yield TrainResult({name: value.item() for name, value in metrics.items()})

    def state(self) -> Any:
        return {"optimizer": self.optimizer.state(self.policy)}

    def restore(self, state: Any) -> None:
        self.optimizer.restore(self.policy, state["optimizer"])


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else "runs/example_08"
    run = srl.train(
        "CartPole-v1",
        algorithm=A2CConfig(),
        network=srl.ActorCriticConfig(normalize_returns=False),
        steps=150_000,
        run_dir=folder,
    )
    print(f"return: {run.evaluate(episodes=20).mean:.0f}, of at most 500; at random: about 22")
