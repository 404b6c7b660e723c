"""Settings of the Q-network, in a module of their own: reading them does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from srl.errors import ConfigError
from srl.policies.nets.config import Activation, NetworkConfig


@dataclass(frozen=True, kw_only=True)
class QNetworkConfig(NetworkConfig):
    """Settings of the network of action values, `--set network.*`."""

    hidden_sizes: tuple[int, ...] = (128, 128)
    """Widths of the fully connected layers. Observations that are only images have none."""
    activation: Activation = "relu"
    """Activation between fully connected layers: tanh, relu or elu."""
    dueling: bool = False
    """Two heads, one for the value of the situation, and one for the advantage of each action
    (Wang et al. 2016)."""
    head_sizes: tuple[int, ...] = ()
    """Widths of the hidden layers of each head. Empty: heads are one linear layer. The dueling
    paper has (512,)."""
    num_quantiles: int = 0
    """Quantiles of the return that each action has (Dabney et al. 2018: 200). 0: only its mean."""
    value_gain: float = 1.0
    """Initial scale of the last layer."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._expect_sizes("head_sizes")
        if self.num_quantiles < 0:
            raise ConfigError(
                f"network.num_quantiles: expected at least 0, got {self.num_quantiles}."
            )
