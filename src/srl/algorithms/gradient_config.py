"""Settings that algorithms with one loss and one optimizer share.

Nothing here imports torch.
"""

from __future__ import annotations

from dataclasses import dataclass

from srl.algorithms.config import AlgorithmConfig, Schedule, scheduled


@dataclass(frozen=True, kw_only=True)
class GradientConfig(AlgorithmConfig):
    """Base class of the settings of algorithms that follow the gradient of one loss."""

    learning_rate: float = 2.5e-4
    """The optimizer's step size at the start."""
    learning_rate_schedule: Schedule = "constant"
    """`linear` goes to 0 at the end of the experiment."""
    max_grad_norm: float | None = 0.5
    """Longer gradients are shortened to this norm; unset: never."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_positive("learning_rate")
        self._expect_positive_or_nothing("max_grad_norm")
        self._expect_one_of("learning_rate_schedule", Schedule)

    def learning_rate_at(self, progress: float) -> float:
        """The learning rate after this share of the experiment."""
        return scheduled(self.learning_rate, self.learning_rate_schedule, progress)

    def _expect_age(self, name: str) -> None:
        age = getattr(self, name)
        self._expect(name, age is None or age >= 0, "at least 0 or nothing")
