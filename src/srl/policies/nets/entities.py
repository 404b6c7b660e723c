"""Observations of entities: embeddings by kind, masked self-attention between them, and a pool.

The network of hide-and-seek (Baker et al. 2019), for any environment whose observations follow
the convention: a part `KIND` [count, features] with the parts `KIND_visible` and `KIND_exist`
[count] is a kind of entities. Any other part [rays, channels] surrounds the agent, like a lidar.
All further parts are the agent's own numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch
import torch.nn.functional as F
from torch import nn

from srl.data.spec import ArraySpec
from srl.data.tree import Tree, flatten
from srl.errors import ConfigError
from srl.policies.nets.encoder import ObsNorm
from srl.policies.nets.mlp import orthogonal
from srl.policies.nets.norm import RunningNorm

FEW = 4
"""Most entities, the agent included, for which `attend_few` is the faster one."""
VISIBLE, EXIST = "_visible", "_exist"
"""Ends of the names of masks: what an agent sees, and what is in the game."""


@dataclass(frozen=True)
class EntityParts:
    """The parts of an observation, by what they are."""

    kinds: dict[str, ArraySpec]
    """Entities: [count, features], each with two masks [count]."""
    around: dict[str, ArraySpec]
    """Measurements in all directions: [rays, channels]."""
    own: dict[str, ArraySpec]
    """The agent's own numbers, of any shape."""


def entity_parts(obs: Tree) -> EntityParts:
    """Sorts the parts of an observation; without any entity it is a ConfigError."""
    specs = flatten(obs)
    kinds = {
        name: spec
        for name, spec in specs.items()
        if len(spec.shape) == 2 and all(name + end in specs for end in (VISIBLE, EXIST))
    }
    if not kinds:
        raise ConfigError(
            "network.encoder: expected parts KIND [count, features] with KIND_visible and "
            f"KIND_exist [count] in the observation, got {', '.join(specs) or 'one array'}."
        )
    masks = {name + end for name in kinds for end in (VISIBLE, EXIST)}
    rest = {name: spec for name, spec in specs.items() if name not in kinds and name not in masks}
    around = {name: spec for name, spec in rest.items() if len(spec.shape) == 2}
    own = {name: spec for name, spec in rest.items() if name not in around}
    return EntityParts(kinds, around, own)


class EntityNorm(ObsNorm):
    """Running statistics of each number of an entity, one for all entities of its kind.

    Rays share one statistic for each channel. Only entities that exist are counted, and masks are
    not normalised.
    """

    def statistics(self, obs: Tree) -> dict[str, tuple[int, ...]]:
        """As `ObsNorm.statistics`."""
        parts = entity_parts(obs)
        own = {name: spec.shape for name, spec in parts.own.items()}
        return own | {name: spec.shape[-1:] for name, spec in (parts.around | parts.kinds).items()}

    def track(self, flat_obs: dict[str, torch.Tensor], mask: torch.Tensor) -> None:
        """Updates the statistics with the parts [T, B, ...] where `mask` [T, B] is set."""
        for name, norm in zip(self.paths, self.norms, strict=True):
            assert isinstance(norm, RunningNorm)
            values = flat_obs[name][mask]
            if name + EXIST in flat_obs:
                values = values[flat_obs[name + EXIST][mask] != 0]
            norm.track(values.reshape(-1, *norm.shape), f"obs.{name}")


class Attention(nn.Module):
    """Residual self-attention between entities, over those that a mask shows."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.inputs = orthogonal(nn.Linear(width, 3 * width), 1.0)
        self.output = orthogonal(nn.Linear(width, width), 1.0)
        self.norm_after = nn.LayerNorm(width)

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Entities [N, n, width] and a mask [N, n], with an entity shown in every row."""
        inputs = self.inputs(self.norm(x)).unflatten(-1, (3, self.heads, -1))
        attend = attend_few if x.shape[1] <= FEW else attend_many
        out: torch.Tensor = self.norm_after(x + self.output(attend(inputs, mask)))
        return out


def attend_many(inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Attention by torch's own function: queries, keys and values [N, n, 3, heads, size] and a mask
    [N, n] to [N, n, heads * size]."""
    query, key, value = inputs.permute(2, 0, 3, 1, 4).unbind(0)
    found = F.scaled_dot_product_attention(query, key, value, attn_mask=mask[:, None, None])
    return found.transpose(1, 2).flatten(2)


def attend_few(inputs: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same with the rows as the last axis, over which a processor computes at once.

    Products of such small matrices, one for each row and head, would cost several times as much.
    """
    query, key, value = inputs.permute(1, 2, 3, 4, 0).contiguous().unbind(1)
    scores = (query[:, None] * key).sum(3) * query.shape[2] ** -0.5
    shares = scores.masked_fill(~mask.t()[:, None], -torch.inf).softmax(1)
    found: torch.Tensor = (shares.unsqueeze(3) * value).sum(1)
    return found.permute(3, 0, 1, 2).flatten(2)


class EntityEncoder(nn.Module):
    """Entities and the agent's own numbers to features.

    Each entity is embedded together with the agent's own numbers, with weights of its kind.
    Entities attend to each other and to the agent; a masked entity changes nothing.
    """

    Norm = EntityNorm
    """What normalises its observations, with `network.normalize_obs`."""

    def __init__(
        self,
        obs: Tree,
        *,
        embedding: int = 128,
        heads: int = 4,
        filters: int = 9,
        features: int = 256,
        omniscient: bool = False,
    ) -> None:
        """`embedding` is the width of an entity, `filters` those of the convolution over rays, and
        `features` the width of the output. If `omniscient`, it sees all entities that exist."""
        super().__init__()
        if embedding % heads:
            raise ConfigError(
                f"network.embedding: expected a multiple of the {heads} heads, got {embedding}."
            )
        parts = entity_parts(obs)
        self._kinds, self._own = list(parts.kinds), list(parts.own)
        self._mask = EXIST if omniscient else VISIBLE
        self._around = list(parts.around)
        self.rays = nn.ModuleList(
            nn.Conv1d(spec.shape[1], filters, 3, padding=1, padding_mode="circular")
            for spec in parts.around.values()
        )
        width = sum(prod(spec.shape) for spec in parts.own.values())
        width += sum(spec.shape[0] * filters for spec in parts.around.values())
        # One product embeds the agent's own numbers for itself and beside entities of each kind.
        self._embedding = embedding
        kinds = len(parts.kinds)
        self.own = _embed(width, embedding * (1 + kinds))
        self.entities = nn.ModuleList(
            _embed(spec.shape[1], embedding, bias=False) for spec in parts.kinds.values()
        )
        self.attention = Attention(embedding, heads)
        self.before = nn.LayerNorm(2 * embedding)
        self.dense = orthogonal(nn.Linear(2 * embedding, features))
        self.after = nn.LayerNorm(features)
        self.num_outputs = features

    def forward(self, flat_obs: dict[str, torch.Tensor]) -> torch.Tensor:
        """A flat dict of [N, ...] parts to [N, num_outputs]."""
        dtype = self.own.weight.dtype
        own = [flat_obs[name].to(dtype).flatten(1) for name in self._own]
        for name, layer in zip(self._around, self.rays, strict=True):
            rays = layer(flat_obs[name].to(dtype).transpose(1, 2))
            own.append(F.relu(rays).flatten(1))
        base = self.own(torch.cat(own, 1)).view(own[0].shape[0], -1, self._embedding)
        tokens, masks = [base[:, :1]], [torch.ones_like(base[:, :1, 0], dtype=torch.bool)]
        for index, (kind, layer) in enumerate(zip(self._kinds, self.entities, strict=True), 1):
            tokens.append(layer(flat_obs[kind].to(dtype)) + base[:, index : index + 1])
            masks.append(flat_obs[kind + self._mask] != 0)
        embedded, seen = F.relu(torch.cat(tokens, 1)), torch.cat(masks, 1)
        attended = self.attention(embedded, seen)
        weight = seen.unsqueeze(-1).to(dtype)
        pooled = (attended * weight).sum(1) / weight.sum(1)
        joined = torch.cat([pooled, embedded[:, 0]], 1)
        out: torch.Tensor = self.after(F.relu(self.dense(self.before(joined))))
        return out


def _embed(num_inputs: int, width: int, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(num_inputs, width, bias=bias)
    nn.init.xavier_uniform_(layer.weight)
    if bias:
        nn.init.zeros_(layer.bias)
    return layer
