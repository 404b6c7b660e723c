"""Observations to one flat feature vector: each leaf has an encoder, and their outputs are
concatenated."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import nn

from srl.data.spec import ArraySpec
from srl.data.tree import Tree, flatten
from srl.policies.nets.cnn import CNN, Convolutions, image_layout
from srl.policies.nets.config import Activation
from srl.policies.nets.mlp import MLP
from srl.policies.nets.norm import RunningNorm


class Vector(nn.Module):
    """Flattens numbers; uint8 is scaled to 0..1."""

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        self.num_outputs = prod(spec.seen_shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, ...] to [N, num_outputs]."""
        dtype = torch.get_default_dtype()
        if x.dim() == 2 and x.dtype == dtype:  # The usual case needs no change.
            return x
        numbers = x.reshape(x.shape[0], -1).to(dtype)
        # Bytes that were normalised arrive as floats.
        return numbers / 255.0 if x.dtype == torch.uint8 else numbers


class OneHot(nn.Module):
    """Category numbers as one-hot vectors, concatenated."""

    offsets: torch.Tensor

    def __init__(self, spec: ArraySpec) -> None:
        super().__init__()
        sizes = list(spec.categories) * spec.stack
        starts = torch.tensor([0, *sizes]).cumsum(0)[:-1]
        self.register_buffer("offsets", starts, persistent=False)
        self.num_outputs = sum(sizes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, ...] to [N, num_outputs]."""
        index = x.reshape(x.shape[0], -1).long() + self.offsets
        out = torch.zeros(x.shape[0], self.num_outputs, device=x.device)
        return out.scatter_(1, index, 1.0)


class Encoder(nn.Module):
    """A tree of leaves to features. An MLP follows, unless all leaves are images: their CNN has its
    own layer."""

    def __init__(
        self,
        obs: Tree,
        hidden_sizes: Sequence[int],
        activation: Activation,
        image_features: int,
        convolutions: Convolutions = (),
    ) -> None:
        super().__init__()
        specs = flatten(obs)
        leaves = [_make_leaf(spec, image_features, convolutions) for spec in specs.values()]
        self.leaves = nn.ModuleList(leaves)
        self._calls = [(path, leaf.forward) for path, leaf in zip(specs, leaves, strict=True)]
        width = sum(leaf.num_outputs for leaf in leaves)
        only_images = all(isinstance(leaf, CNN) for leaf in self.leaves)
        self.mlp = MLP(width, () if only_images else hidden_sizes, activation)
        self.num_outputs = self.mlp.num_outputs

    @property
    def plain(self) -> bool:
        """Whether no layer before the MLP has parameters."""
        return not list(self.leaves.parameters())

    def forward(self, flat_obs: dict[str, torch.Tensor]) -> torch.Tensor:
        """A flat dict of [N, ...] leaves to [N, num_outputs]."""
        return self.mlp.forward(self.side_by_side(flat_obs))

    def side_by_side(self, flat_obs: dict[str, torch.Tensor]) -> torch.Tensor:
        """The input of the MLP: all leaves, encoded and concatenated, [N, n]."""
        # Calls `forward` directly: at a few rows, a call of a module costs as much as its
        # arithmetic.
        parts = [leaf(flat_obs[path]) for path, leaf in self._calls]
        return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


class ObsNorm(nn.Module):
    """A RunningNorm for every leaf of plain numbers; images, categories and bools pass through."""

    def __init__(self, obs: Tree, clip: float = 10.0) -> None:
        """`clip` bounds what comes out, in standard deviations."""
        super().__init__()
        shapes = self.statistics(obs)
        self.paths = list(shapes)
        self.norms = nn.ModuleList(RunningNorm(shape, clip) for shape in shapes.values())

    def statistics(self, obs: Tree) -> dict[str, tuple[int, ...]]:
        """The shape of the statistics of each leaf that is normalised, by its path."""
        leaves = flatten(obs).items()
        return {path: spec.shape for path, spec in leaves if _is_plain_numbers(spec)}

    def forward(self, flat_obs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Returns the same leaves, with numbers normalised."""
        dtype = torch.get_default_dtype()
        norms = zip(self.paths, self.norms, strict=True)
        return {**flat_obs, **{path: norm(flat_obs[path].to(dtype)) for path, norm in norms}}

    def track(self, flat_obs: dict[str, torch.Tensor], mask: torch.Tensor) -> None:
        """Updates the statistics with the single frames [T, B, ...] where `mask` [T, B] is set."""
        for path, norm in zip(self.paths, self.norms, strict=True):
            assert isinstance(norm, RunningNorm)
            norm.track(flat_obs[path][mask], f"obs.{path}" if path else "obs")


def flat_obs(obs: Tree) -> dict[str, torch.Tensor]:
    """Observations by path; those that are one array have the path ""."""
    return {"": obs} if isinstance(obs, torch.Tensor) else flatten(obs)


def has_image(obs: Tree) -> bool:
    """Whether any leaf is an image."""
    return any(image_layout(spec) is not None for spec in flatten(obs).values())


def _make_leaf(
    spec: ArraySpec, image_features: int, convolutions: Convolutions
) -> OneHot | CNN | Vector:
    if spec.categories:
        return OneHot(spec)
    if image_layout(spec) is not None:
        return CNN(spec, image_features, convolutions)
    return Vector(spec)


def _is_plain_numbers(spec: ArraySpec) -> bool:
    return not spec.categories and image_layout(spec) is None and spec.dtype != "bool"
