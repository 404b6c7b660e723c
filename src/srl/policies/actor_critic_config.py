"""Settings of the actor-critic; apart from it, so that reading settings does not import torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from srl.errors import ConfigError

Activation = Literal["tanh", "relu", "elu"]


@dataclass(frozen=True, kw_only=True)
class ActorCriticConfig:
    """Settings of the networks, `--set network.*`."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the fully connected layers. Observations that are only images have none."""
    activation: Activation = "tanh"
    """Between fully connected layers: tanh, relu or elu."""
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """Of images: [channels, kernel, stride] of each layer. Empty: those of Mnih et al. 2015 where
    they fit, two smaller ones where not."""
    image_features: int = 512
    """Width of the layer after the convolutions of an image."""
    shared: bool | None = None
    """Actor and critic share all but their last layers. Unset: yes for images and memory, no
    otherwise."""
    recurrent: Literal["none", "lstm", "gru"] = "none"
    """Memory over the ticks of an episode."""
    recurrent_size: int = 128
    """Width of the memory."""
    normalize_obs: bool = False
    """Observations of plain numbers in units of their running standard deviation, clipped at 10."""
    normalize_returns: bool = True
    """The critic predicts in units of the running standard deviation of returns. Without it, large
    returns make the value loss drown the policy's gradient when both are shortened together."""
    initial_log_std: float = 0.0
    """Of real-valued actions: log of the standard deviation at the start."""
    policy_gain: float = 0.01
    """Scale of the actor's last layer at the start; small means that all actions start about
    equally likely."""
    value_gain: float = 1.0
    """Scale of the critic's last layer at the start."""

    def __post_init__(self) -> None:
        if any(size < 1 for size in self.hidden_sizes):
            raise ConfigError(
                f"network.hidden_sizes: expected sizes of at least 1, got {self.hidden_sizes}."
            )
        if any(number < 1 for layer in self.convolutions for number in layer):
            raise ConfigError(
                "network.convolutions: expected [channels, kernel, stride] of at least 1 each, "
                f"got {self.convolutions}."
            )
        if self.activation not in get_args(Activation):
            raise ConfigError(
                f"network.activation: expected one of {', '.join(get_args(Activation))}, "
                f"got {self.activation!r}."
            )
        if self.recurrent not in ("none", "lstm", "gru"):
            raise ConfigError(
                f"network.recurrent: expected none, lstm or gru, got {self.recurrent!r}."
            )
        for name in ("image_features", "recurrent_size"):
            if getattr(self, name) < 1:
                raise ConfigError(
                    f"network.{name}: expected at least 1, got {getattr(self, name)}."
                )
        if self.shared is False and self.recurrent != "none":
            raise ConfigError(
                "network.shared: expected true or unset with network.recurrent (actor "
                "and critic read one memory), got false."
            )
