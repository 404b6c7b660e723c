"""Settings of IMPALA, each checked when it is set."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from srl.algorithms.config import Sampling
from srl.algorithms.policy_gradient_config import OnePassConfig


@dataclass(frozen=True, kw_only=True)
class IMPALAConfig(OnePassConfig):
    """Settings of IMPALA, `--set algorithm.*`."""

    rollout_length: int = 32
    """Ticks of a fragment: targets look ahead that far, and a policy with memory is trained through
    all of them."""
    vtrace_lambda: float = 1.0
    """Decay of V-trace's trace: 0 is one-step, 1 looks ahead to the end of the fragment."""
    vtrace_rho_clip: float = 1.0
    """Largest importance weight of a temporal difference, and of the policy gradient."""
    vtrace_c_clip: float = 1.0
    """Largest importance weight of the trace."""
    max_policy_age: int | None = None
    """Policy versions that data may lag when it is consumed; 0 is synchronous, unset unbounded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_share("vtrace_lambda")
        self._expect_positive("vtrace_rho_clip", "vtrace_c_clip")
        self._expect_age("max_policy_age")

    def sampling(self) -> Sampling:
        """Fragments of the rollout length, of any age."""
        return dataclasses.replace(super().sampling(), max_policy_age=self.max_policy_age)
