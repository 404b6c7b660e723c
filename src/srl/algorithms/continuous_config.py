"""Settings that SAC and TD3 share. Nothing here imports torch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from srl.algorithms.off_policy_config import OffPolicyConfig
from srl.algorithms.suggestion import Suggestion, has_images
from srl.data.spec import EnvSpec
from srl.graph import FragmentShape


@dataclass(frozen=True, kw_only=True)
class ContinuousConfig(OffPolicyConfig):
    """Base class of the settings of off-policy algorithms over real-valued actions."""

    buffer_size: int = 1_000_000
    """Environment steps that the replay keeps; the oldest go first."""
    learning_starts: int = 1000
    """Environment steps before the first gradient step. In these, actions are uniform."""
    updates_per_step: float = 1.0
    """Gradient steps for each environment step (update-to-data ratio). Whichever side is slower,
    the other one waits."""
    batch_size: int = 256
    """Transitions of a gradient step."""
    gradient_steps: int = 8
    """Gradient steps of a learner step. Then the weights are published, once."""
    learning_rate: float = 3e-4
    """Adam's step size."""
    critic_learning_rate: float | None = None
    """Adam's step size for the critics; unset: learning_rate."""
    gamma: float = 0.99
    """Discount per action."""
    tau: float = 0.005
    """Share of the difference by which target networks follow their networks."""
    n_steps: int = 1
    """Rewards in a target, before it bootstraps from a value."""
    critic_hidden_sizes: tuple[int, ...] = (256, 256)
    """Widths of the fully connected layers of each critic."""
    max_grad_norm: float | None = None
    """Longer gradients are shortened to this norm; unset: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect("n_steps", self.n_steps >= 1, "at least 1")
        for name in ("learning_rate", "critic_learning_rate", "max_grad_norm"):
            value = getattr(self, name)
            self._expect(name, value is None or 0 < value < math.inf, "a positive number")
        self._expect("gamma", 0 <= self.gamma <= 1, "a number from 0 to 1")
        self._expect("tau", 0 < self.tau <= 1, "a number above 0 and up to 1")
        sizes = all(size >= 1 for size in self.critic_hidden_sizes)
        self._expect("critic_hidden_sizes", sizes, "sizes of at least 1")

    @classmethod
    def suggest(cls, spec: EnvSpec) -> Suggestion:
        """A few environments, and a smaller replay for images."""
        return Suggestion(envs=4, algorithm={"buffer_size": 100_000} if has_images(spec) else {})

    def windows(self) -> FragmentShape:
        """One action, and the ticks to bootstrap from."""
        return FragmentShape(length=1, bootstrap=self.n_steps)

    @property
    def rate_of_critics(self) -> float:
        """`critic_learning_rate`, or its default."""
        given = self.critic_learning_rate
        return self.learning_rate if given is None else given
