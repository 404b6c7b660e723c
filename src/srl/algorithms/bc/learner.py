"""Behaviour cloning (Pomerleau 1989): supervised learning of recorded actions."""

from __future__ import annotations

from pathlib import Path

from srl.algorithms.bc.config import BCConfig
from srl.algorithms.learning.imitation import ImitationLearner
from srl.datasets.reader import Dataset
from srl.datasets.steps import check_spaces
from srl.policies.protocol import Policy


class BC(ImitationLearner):
    """Learns from the episodes of a dataset."""

    Config = BCConfig
    config: BCConfig

    @classmethod
    def check(cls, config: BCConfig, policy: Policy) -> None:  # type: ignore[override]
        """The dataset must have the policy's observations and actions."""
        super().check(config, policy)
        setting = "algorithm.dataset"
        check_spaces(Dataset(Path(config.dataset), setting), policy.agent, setting)
