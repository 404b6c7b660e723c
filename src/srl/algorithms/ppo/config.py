"""Settings of PPO, each checked when it is set."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from srl.algorithms.config import AlgorithmConfig, Sampling
from srl.algorithms.suggestion import Suggestion, fit_to_memory, has_images
from srl.data.spec import Box, EnvSpec
from srl.settings import check_types


@dataclass(frozen=True, kw_only=True)
class PPOConfig(AlgorithmConfig):
    """Settings of PPO, `--set algorithm.*`."""

    rollout_length: int = 128
    """Ticks of a fragment that the loss sees."""
    epochs: int = 4
    """Times that each sample is used in one update."""
    minibatches: int = 4
    """Parts that each epoch is split into, with one optimizer step for each."""
    learning_rate: float = 2.5e-4
    """Adam's step size at the start."""
    learning_rate_schedule: Literal["constant", "linear"] = "constant"
    """`linear` goes to 0 at the end of the experiment."""
    gamma: float = 0.99
    """Discount per action."""
    gae_lambda: float = 0.95
    """Decay of the advantage trace: 0 is one-step, 1 is Monte Carlo."""
    clip: float = 0.2
    """How far the probability of an action may move in one update before its gradient stops."""
    value_clip: float | None = None
    """How far (in units of reward) a value may move in one update before its gradient stops; unset:
    no limit."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus at the start."""
    entropy_coefficient_end: float | None = None
    """Its weight at the end of the experiment, reached linearly; unset: constant."""
    normalize_advantages: bool = True
    """Advantages of each minibatch get mean 0 and standard deviation 1."""
    max_grad_norm: float | None = 0.5
    """Longer gradients are shortened to this norm; unset: never."""
    target_kl: float | None = None
    """No further epoch once the mean KL divergence of one is above this; unset: all epochs."""
    adam_eps: float = 1e-5
    """Adam's epsilon."""
    clip_reward: Literal["sign"] | float | None = None
    """`sign` learns from the sign of rewards, a number bounds them; unset: rewards as they are."""
    use_vtrace: bool = False
    """V-trace targets instead of GAE: for data that is several policy versions old."""
    vtrace_rho_clip: float = 1.0
    """V-trace: largest importance weight of a temporal difference."""
    vtrace_c_clip: float = 1.0
    """V-trace: largest importance weight of the trace."""
    chunk_length: int = 0
    """Ticks that a policy with memory is trained through at once; must divide rollout_length. 0: 16
    if that divides it, else the whole rollout."""
    burn_in: int = 0
    """Ticks that warm up the memory before each chunk, without gradient."""
    max_policy_age: int | None = 1
    """Policy versions that data may lag when it is consumed; 0 is synchronous, unset unbounded."""

    def __post_init__(self) -> None:
        check_types(self, "algorithm")
        for name in ("rollout_length", "epochs", "minibatches"):
            self._expect(name, getattr(self, name) >= 1, "at least 1")
        for name in ("learning_rate", "clip", "adam_eps", "vtrace_rho_clip", "vtrace_c_clip"):
            self._expect(name, 0 < getattr(self, name) < math.inf, "a positive number")
        for name in ("value_clip", "max_grad_norm", "target_kl"):
            value = getattr(self, name)
            self._expect(name, value is None or value > 0, "a positive number or nothing")
        for name in ("value_coefficient", "entropy_coefficient"):
            self._expect(name, 0 <= getattr(self, name) < math.inf, "a number of at least 0")
        end = self.entropy_coefficient_end
        self._expect("entropy_coefficient_end", end is None or end >= 0, "at least 0 or nothing")
        for name in ("gamma", "gae_lambda"):
            self._expect(name, 0 <= getattr(self, name) <= 1, "a number from 0 to 1")
        schedules = ("constant", "linear")
        self._expect(
            "learning_rate_schedule", self.learning_rate_schedule in schedules, "constant or linear"
        )
        bound = self.clip_reward
        positive = not isinstance(bound, str) and (bound is None or bound > 0)
        self._expect(
            "clip_reward", bound == "sign" or positive, "sign, a positive number or nothing"
        )
        divides = self.chunk_length >= 0 and self.rollout_length % self.chunk_ticks == 0
        self._expect(
            "chunk_length", divides, f"a divisor of rollout_length {self.rollout_length}, or 0"
        )
        self._expect("burn_in", self.burn_in >= 0, "at least 0")
        age = self.max_policy_age
        self._expect("max_policy_age", age is None or age >= 0, "at least 0 or nothing")

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

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate after this share of the experiment."""
        if self.learning_rate_schedule == "constant":
            return self.learning_rate
        return self.learning_rate * max(0.0, 1.0 - progress)

    def entropy_coefficient_at(self, progress: float) -> float:
        """The weight of the entropy bonus after this share of the experiment."""
        start, end = self.entropy_coefficient, self.entropy_coefficient_end
        return start if end is None else start + (end - start) * min(1.0, progress)
