"""Settings that networks share: reading them does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from srl.errors import ConfigError
from srl.kernels.switch import Kernels
from srl.policies.registry import ENCODERS
from srl.settings import check_types

Activation = Literal["tanh", "relu", "elu"]


@dataclass(frozen=True, kw_only=True)
class NetworkConfig:
    """Base class of the settings of networks: layers for observations, and a memory."""

    hidden_sizes: tuple[int, ...] = (64, 64)
    """Widths of the fully connected layers. Observations that are only images have none."""
    activation: Activation = "tanh"
    """Activation between fully connected layers: tanh, relu or elu."""
    convolutions: tuple[tuple[int, int, int], ...] = ()
    """Layers for images: [channels, kernel, stride] of each. Empty: those of Mnih et al. 2015 where
    they fit, two smaller ones where not."""
    image_features: int = 512
    """Width of the layer after the convolutions of an image."""
    encoder: str = "auto"
    """What makes features of observations: `auto` (by their kinds), `entities` (self-attention over
    entities that masks show, `EntityEncoder`), or the import path of a class of yours: a torch
    module `Class(obs, **encoder_args)`, where `obs` is the tree of ArraySpec. It maps a flat dict
    of observations ([N, ...] by path) to [N, num_outputs], and has an attribute `num_outputs`."""
    encoder_args: dict[str, Any] = field(default_factory=dict)
    """Keyword arguments of that class."""
    recurrent: Literal["none", "lstm", "gru"] = "none"
    """Memory of the policy over the ticks of an episode."""
    recurrent_size: int = 128
    """Width of the memory."""
    normalize_obs: bool = False
    """Normalise observations of plain numbers: units of their running standard deviation, clipped
    at 10."""
    kernels: Kernels = "auto"
    """What computes: `auto` uses kernels that are written by hand where there are some, `reference`
    only modules of torch and autograd. `fast` refuses a network without kernels. They learn the
    same but for rounding."""

    def __post_init__(self) -> None:
        check_types(self, "network")
        self._expect_sizes("hidden_sizes")
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
        self._expect_encoder("encoder", self.encoder, self.encoder_args)

    def _expect_sizes(self, name: str) -> None:
        """Raises unless all widths in a setting are at least 1."""
        sizes = getattr(self, name)
        if any(size < 1 for size in sizes):
            raise ConfigError(f"network.{name}: expected sizes of at least 1, got {sizes}.")

    def _expect_encoder(self, name: str, encoder: str, args: dict[str, Any]) -> None:
        """Raises unless a setting names an encoder, and gives arguments only to one that has
        some."""
        if encoder not in ENCODERS and ":" not in encoder:
            raise ConfigError(
                f"network.{name}: expected {', '.join(ENCODERS)} or an import path "
                f"(module:Class, file.py:Class), got {encoder!r}."
            )
        if encoder == "auto" and args:
            raise ConfigError(
                f"network.{name}_args: expected none for the encoder auto, got {args!r:.100}. "
                f"Name a class by network.{name}, or use network.hidden_sizes and others."
            )
