"""Settings of PPO, each checked when it is set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from srl.algorithms.config import Sampling
from srl.algorithms.policy_gradient_config import PolicyGradientConfig
from srl.algorithms.suggestion import Suggestion, fit_to_memory, has_images
from srl.data.spec import Box, EnvSpec


@dataclass(frozen=True, kw_only=True)
class PPOConfig(PolicyGradientConfig):
    """Settings of PPO, `--set algorithm.*`."""

    epochs: int = 4
    """Times that each sample is used in one update."""
    minibatches: int = 4
    """Parts that each epoch is split into, with one optimizer step for each."""
    gae_lambda: float = 0.95
    """Decay of the advantage trace: 0 is one-step, 1 is Monte Carlo."""
    clip: float = 0.2
    """How far the probability of an action may move in one update before its gradient stops."""
    value_clip: float | None = None
    """How far (in units of reward) a value may move in one update before its gradient stops; unset:
    no limit."""
    normalize_advantages: bool = True
    """Advantages of each minibatch get mean 0 and standard deviation 1."""
    target_kl: float | None = None
    """No further epoch once the mean KL divergence of one is above this; unset: all epochs."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    chunk_length: int = 0
    """Ticks that a policy with memory is trained through at once; must divide rollout_length. 0: 16
    if that divides it, else the whole rollout."""
    burn_in: int = 0
    """Ticks that warm up the memory before each chunk, without gradient."""
    max_policy_age: int | None = 1
    """Policy versions that data may lag when it is consumed; 0 is synchronous, unset unbounded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("epochs", "minibatches"):
            self._expect(name, getattr(self, name) >= 1, "at least 1")
        self._expect_positive("clip", "adam_eps")
        self._expect_positive_or_nothing("value_clip", "target_kl")
        self._expect_share("gae_lambda")
        divides = self.chunk_length >= 0 and self.rollout_length % self.chunk_ticks == 0
        self._expect(
            "chunk_length", divides, f"a divisor of rollout_length {self.rollout_length}, or 0"
        )
        self._expect("burn_in", self.burn_in >= 0, "at least 0")
        self._expect_age("max_policy_age")

    @classmethod
    def suggest(cls, spec: EnvSpec) -> Suggestion:
        """The settings of Mnih et al. (2015) and the PPO paper for images; normalised observations
        and returns for everything else."""
        network: dict[str, Any] = {}
        if has_images(spec):
            envs = 8
            algorithm: dict[str, Any] = {
                "clip": 0.1,
                "learning_rate": 2.5e-4,
                "clip_reward": "sign",
            }
        else:
            envs = 16
            network = {"normalize_obs": True, "normalize_returns": True}
            # Small networks learn fast, and data one version old then teaches less.
            algorithm = {"max_policy_age": 0}
            if isinstance(spec.first_agent.action, Box):
                algorithm |= {
                    "epochs": 10,
                    "minibatches": 16,
                    "learning_rate": 3e-4,
                    "entropy_coefficient": 0.0,
                }
            else:
                algorithm |= {"learning_rate": 1e-3}
        envs, ticks = fit_to_memory(spec, envs, cls.rollout_length)
        if ticks != cls.rollout_length:
            algorithm["rollout_length"] = ticks
        return Suggestion(envs=envs, algorithm=algorithm, network=network)

    def reuse(self) -> float:
        """The passes over each batch."""
        return float(self.epochs)

    def sampling(self) -> Sampling:
        """Fragments of the rollout length, with policy state where chunks start."""
        return Sampling(
            length=self.rollout_length,
            burn_in=self.burn_in,
            state_every=self.state_every,
            max_policy_age=self.max_policy_age,
        )

    @property
    def chunk_ticks(self) -> int:
        """`chunk_length`, or its default."""
        if self.chunk_length:
            return self.chunk_length
        return 16 if self.rollout_length % 16 == 0 else self.rollout_length

    @property
    def state_every(self) -> int:
        """Ticks between two stored policy states: one at the start of every chunk and of its
        burn-in."""
        return math.gcd(self.chunk_ticks, self.burn_in)
