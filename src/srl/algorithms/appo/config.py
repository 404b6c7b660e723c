"""Settings of APPO, each checked when it is set."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.suggestion import Suggestion
from srl.data.spec import EnvSpec


@dataclass(frozen=True, kw_only=True)
class APPOConfig(PPOConfig):
    """Settings of APPO, `--set algorithm.*`: those of PPO, and V-trace."""

    epochs: int = 1
    """Times that each sample is used in one update."""
    vtrace_rho_clip: float = 1.0
    """Largest importance weight of a temporal difference."""
    vtrace_c_clip: float = 1.0
    """Largest importance weight of the trace."""
    max_policy_age: int | None = None
    """Policy versions that data may lag when it is consumed; 0 is synchronous, unset unbounded."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_positive("vtrace_rho_clip", "vtrace_c_clip")

    @classmethod
    def suggest(cls, spec: EnvSpec) -> Suggestion:
        """The settings of PPO, for data of any age and in one epoch."""
        suggestion = super().suggest(spec)
        others = ("max_policy_age", "epochs")
        algorithm = {k: value for k, value in suggestion.algorithm.items() if k not in others}
        return dataclasses.replace(suggestion, algorithm=algorithm)
