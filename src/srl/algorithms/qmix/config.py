"""Settings of QMIX, each checked when it is set."""

from __future__ import annotations

from dataclasses import dataclass

from srl.algorithms.team_config import TeamView
from srl.algorithms.vdn.config import VDNConfig


@dataclass(frozen=True, kw_only=True)
class QMIXConfig(VDNConfig):
    """Settings of QMIX, `--set algorithm.*`: those of VDN, and of the mixing network."""

    mixing_input: TeamView = "auto"
    """What the mixing network depends on: the environment's global `state`, or the `observations`
    of all agents; `auto` is the state where there is one."""
    mixing_units: int = 32
    """Units of the mixing network's hidden layer."""
    hypernetwork_size: int = 64
    """Width of the hidden layer of the networks that make its weights; 0: these are linear."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_one_of("mixing_input", TeamView)
        self._expect_count("mixing_units")
        self._expect("hypernetwork_size", self.hypernetwork_size >= 0, "at least 0")
