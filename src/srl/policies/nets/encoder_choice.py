"""The encoder that a user names, and the part of the observation that it reads."""

from __future__ import annotations

from numbers import Integral
from typing import Any

from torch import nn

from srl.data.tree import Tree, flatten, unflatten
from srl.errors import ConfigError
from srl.policies.nets.config import NetworkConfig
from srl.policies.nets.encoder import Encoder, ObsNorm
from srl.policies.registry import ENCODERS
from srl.resolve import resolve
from srl.tracebacks import user_code


def choose_encoder(
    obs: Tree,
    config: NetworkConfig,
    name: str,
    args: dict[str, Any],
    setting: str = "network.encoder",
) -> nn.Module:
    """The encoder with a name or an import path, over a tree of ArraySpec.

    `auto` is an `Encoder` with the layers of the settings, any other is made as `Class(obs,
    **args)`. `setting` is what the user has set, for errors.
    """
    if name == "auto":
        return Encoder(
            obs,
            config.hidden_sizes,
            config.activation,
            config.image_features,
            config.convolutions,
        )
    kind = resolve(ENCODERS.get(name, name))
    if not (isinstance(kind, type) and issubclass(kind, nn.Module)):
        raise ConfigError(f"{setting}: expected a subclass of torch.nn.Module, got {kind!r}.")
    with user_code(f"{setting} {name}"):
        made: nn.Module = kind(obs, **args)
    num_outputs(made)
    return made


def num_outputs(encoder: nn.Module) -> int:
    """The width of an encoder's features."""
    width = getattr(encoder, "num_outputs", None)
    if not isinstance(width, Integral) or width < 1:
        raise ConfigError(
            f"network.encoder: expected {type(encoder).__name__} with an attribute `num_outputs` "
            f"(the width of its features, at least 1), got {width!r}."
        )
    return int(width)


def make_obs_norm(encoder: nn.Module, obs: Tree) -> ObsNorm:
    """What normalises observations: the encoder's own class `Norm`, if it has one."""
    kind: type[ObsNorm] = getattr(encoder, "Norm", ObsNorm)
    return kind(obs)


def select_obs(obs: Tree, paths: tuple[str, ...], setting: str) -> Tree:
    """The parts of a tree of observations at some paths, or all of it for none."""
    if not paths:
        return obs
    known = flatten(obs)
    found = {}
    for path in paths:
        below = {p: leaf for p, leaf in known.items() if p == path or p.startswith(f"{path}.")}
        if not path or not below:
            raise ConfigError(
                f"{setting}: expected paths in the observation "
                f"({', '.join(known) if '' not in known else 'which is a single array'}), "
                f"got {path!r}."
            )
        found.update(below)
    return unflatten(found)
