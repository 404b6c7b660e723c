"""Settings of algorithms that learn to act as somebody else did.

Nothing here imports torch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from srl.algorithms.gradient_config import GradientConfig
from srl.algorithms.suggestion import Suggestion, has_images
from srl.data.spec import EnvSpec
from srl.graph import FragmentShape

Loss = Literal["log_prob", "mse"]


@dataclass(frozen=True, kw_only=True)
class ImitationConfig(GradientConfig):
    """Base class of the settings of algorithms that learn from an expert's actions."""

    learning_rate: float = 1e-3
    """The optimizer's step size at the start."""
    loss: Loss = "log_prob"
    """`log_prob`: the negative log-likelihood of the expert's action (for choices the
    cross-entropy). `mse`, for real-valued actions only: the squared distance of the policy's mean
    from it. The policy's deviation then stays as it is."""
    entropy_coefficient: float = 1e-3
    """Weight of an entropy bonus beside `log_prob`."""
    batch_size: int = 16
    """Windows of a gradient step."""
    gradient_steps: int = 8
    """Gradient steps of a learner step. Then the weights are published, once."""
    sequence_length: int = 16
    """Consecutive ticks of a window; a policy with memory is trained through all of them."""
    burn_in: int = 0
    """Ticks before them that warm up a policy's memory, without gradient."""
    adam_eps: float = 1e-8
    """Adam's epsilon."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect("loss", self.loss in get_args(Loss), "log_prob or mse")
        for name in ("batch_size", "gradient_steps", "sequence_length"):
            self._expect(name, getattr(self, name) >= 1, "at least 1")
        self._expect("burn_in", self.burn_in >= 0, "at least 0")
        self._expect_positive("adam_eps")
        bonus = self.entropy_coefficient
        self._expect("entropy_coefficient", 0 <= bonus < math.inf, "a number of at least 0")

    @classmethod
    def suggest(cls, spec: EnvSpec) -> Suggestion:
        """Normalised observations where they are plain numbers, and an evaluator: nothing else
        shows how well the policy acts."""
        network = {} if has_images(spec) else {"normalize_obs": True}
        return Suggestion(evaluators=1, network=network)

    def windows(self) -> FragmentShape:
        """The windows that a gradient step learns from."""
        state_every = math.gcd(self.sequence_length, self.burn_in)
        return FragmentShape(
            length=self.sequence_length, burn_in=self.burn_in, state_every=state_every
        )
