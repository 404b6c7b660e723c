"""Settings that policy-gradient algorithms share.

Nothing here imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from srl.algorithms.config import RewardClip, Sampling
from srl.algorithms.gradient_config import GradientConfig
from srl.algorithms.suggestion import Suggestion, fit_to_memory, has_images
from srl.data.spec import Box, EnvSpec

Optimizer = Literal["rmsprop", "adam"]


@dataclass(frozen=True, kw_only=True)
class PolicyGradientConfig(GradientConfig):
    """Base class of the settings of algorithms that train an actor and a critic on fragments."""

    rollout_length: int = 128
    """Ticks of a fragment that the loss sees."""
    gamma: float = 0.99
    """Discount per action."""
    value_coefficient: float = 0.5
    """Weight of the value loss."""
    entropy_coefficient: float = 0.01
    """Weight of the entropy bonus at the start."""
    entropy_coefficient_end: float | None = None
    """Its weight at the end of the experiment, reached linearly; unset: constant."""
    clip_reward: RewardClip = None
    """`sign` learns from the sign of rewards, a number bounds them; unset: rewards as they are."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect("rollout_length", self.rollout_length >= 1, "at least 1")
        for name in ("value_coefficient", "entropy_coefficient"):
            self._expect(name, 0 <= getattr(self, name) < math.inf, "a number of at least 0")
        end = self.entropy_coefficient_end
        self._expect("entropy_coefficient_end", end is None or end >= 0, "at least 0 or nothing")
        self._expect_share("gamma")
        self._expect_reward_clip("clip_reward")

    def entropy_coefficient_at(self, progress: float) -> float:
        """The weight of the entropy bonus after this share of the experiment."""
        start, end = self.entropy_coefficient, self.entropy_coefficient_end
        return start if end is None else start + (end - start) * min(1.0, progress)


@dataclass(frozen=True, kw_only=True)
class OnePassConfig(PolicyGradientConfig):
    """Base class of the settings of algorithms that use each fragment once, and as a whole."""

    rollout_length: int = 16
    """Ticks of a fragment: targets look ahead that far, and a policy with memory is trained through
    all of them."""
    minibatches: int = 1
    """Parts that the rows of a batch are split into, with one optimizer step for each."""
    learning_rate: float = 7e-4
    """The optimizer's step size at the start."""
    optimizer: Optimizer = "rmsprop"
    """`rmsprop`, with which these algorithms were published, or `adam`."""
    optimizer_eps: float = 1e-5
    """The optimizer's epsilon."""
    rmsprop_decay: float = 0.99
    """Decay of RMSProp's mean square."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect("minibatches", self.minibatches >= 1, "at least 1")
        self._expect("optimizer", self.optimizer in get_args(Optimizer), "rmsprop or adam")
        self._expect_positive("optimizer_eps")
        self._expect_share("rmsprop_decay")

    @classmethod
    def suggest(cls, spec: EnvSpec) -> Suggestion:
        """The sign of rewards for images; normalised observations and returns for others."""
        envs, ticks = fit_to_memory(spec, 16, cls.rollout_length)
        algorithm: dict[str, Any] = {}
        if ticks != cls.rollout_length:
            algorithm["rollout_length"] = ticks
        if has_images(spec):
            return Suggestion(envs=envs, algorithm={**algorithm, "clip_reward": "sign"})
        if isinstance(spec.first_agent.action, Box):
            algorithm["entropy_coefficient"] = 0.0
        network = {"normalize_obs": True, "normalize_returns": True}
        return Suggestion(envs=envs, algorithm=algorithm, network=network)

    def sampling(self) -> Sampling:
        """Fragments of the rollout length, with the policy state at their start."""
        return Sampling(length=self.rollout_length, state_every=self.rollout_length)
