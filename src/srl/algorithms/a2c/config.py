"""Settings of A2C, each checked when it is set."""

from __future__ import annotations

from dataclasses import dataclass

from srl.algorithms.policy_gradient_config import OnePassConfig


@dataclass(frozen=True, kw_only=True)
class A2CConfig(OnePassConfig):
    """Settings of A2C, `--set algorithm.*`."""

    gae_lambda: float = 1.0
    """Decay of the advantage trace: 0 is one-step, 1 looks ahead to the end of the fragment."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_share("gae_lambda")
