"""The central critic of MAPPO: what an agent may expect, given what its whole team sees."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from srl.algorithms.learning.outputs import TICKS_AT_ONCE
from srl.algorithms.learning.sequences import at
from srl.algorithms.learning.team import CentralInput, Teams
from srl.data.spec import ArraySpec
from srl.data.tree import Tree, tree_map
from srl.policies.actor_critic_config import ActorCriticConfig
from srl.policies.nets.encoder import Encoder
from srl.policies.nets.mlp import MLP, orthogonal
from srl.policies.nets.norm import RunningNorm, track_returns
from srl.policies.nets.recurrent import RecurrentCore
from srl.policies.protocol import Policy, TracksStatistics


class CentralCritic(nn.Module, TracksStatistics):
    """Values of agents by what their team sees, what they see, and their number in the team.

    It has layers as the policy has them, and a memory of its own if the policy has one. A fragment
    begins without memory.
    """

    def __init__(self, policy: Policy, central: CentralInput, *, with_memory: bool) -> None:
        super().__init__()
        network = policy.config
        if not isinstance(network, ActorCriticConfig):
            network = ActorCriticConfig()
        self.central = central
        self.num_agents = central.num_agents
        number = ArraySpec(shape=(1,), dtype="int64", categories=(self.num_agents,))
        self.encoder = Encoder(
            {**central.spec, "own": policy.agent.obs, "number": number},
            network.hidden_sizes,
            network.activation,
            network.image_features,
            network.convolutions,
        )
        width = self.encoder.num_outputs
        self.core: RecurrentCore | None = None
        if with_memory:
            kind = network.recurrent
            self.core = RecurrentCore(
                width, network.recurrent_size, "lstm" if kind == "none" else kind
            )
            width = network.recurrent_size
        self.head = orthogonal(nn.Linear(width, 1), network.value_gain)
        self.return_scale = RunningNorm(()) if network.normalize_returns else None
        for module in self.modules():
            if isinstance(module, MLP | RecurrentCore):
                module.use_kernels = network.kernels != "reference"

    def values(
        self, teams: Teams, index: torch.Tensor, state: Tree = None
    ) -> tuple[torch.Tensor, Tree]:
        """Values [ticks, n] at a flat index of the batch, in units of reward, and the memory behind
        them. `state` [n, ...] is the memory before the first tick."""
        features = self.encoder.forward(self._seen(teams, index))
        if self.core is not None:
            features = features.view(*index.shape, -1)
            is_first = at(teams.sequences.is_first.flatten(), index)
            present = at(teams.present.flatten(), index)
            features, state = self.core.unroll(features, state, is_first, present)
            features = features.flatten(0, 1)
        value = F.linear(features, self.head.weight, self.head.bias).view(index.shape)
        return value * self.value_scale, state

    @torch.no_grad()
    def values_everywhere(self, teams: Teams) -> tuple[torch.Tensor, Tree]:
        """Values at all ticks of a batch, [T, B], and the memory [chunks, B, ...] at the ticks at
        which policy state is stored. A few rows are computed at a time."""
        seen = teams.sequences
        every = seen.ticks if self.core is None else seen.state_every
        ticks = torch.arange(seen.ticks, device=seen.device)
        rows_at_once = max(1, TICKS_AT_ONCE // seen.ticks)
        values, states = [], []
        for rows in torch.split(torch.arange(seen.rows, device=seen.device), rows_at_once):
            state, before, found = self._first_state(len(rows)), [], []
            for chunk in torch.split(ticks, every):
                before.append(state)
                value, state = self.values(teams, chunk.unsqueeze(1) * seen.rows + rows, state)
                found.append(value)
            values.append(torch.cat(found))
            states.append(tree_map(lambda *x: torch.stack(x), *before))
        return torch.cat(values, 1), tree_map(lambda *x: torch.cat(x, 1), *states)

    def _first_state(self, rows: int) -> Tree:
        """The memory [rows, ...] at the start of a fragment."""
        if self.core is None:
            return None
        like = self.head.weight
        return {
            key: like.new_zeros(rows, *spec.shape) for key, spec in self.core.state_spec.items()
        }

    @property
    def value_scale(self) -> torch.Tensor | float:
        """As `TracksStatistics.value_scale`."""
        return 1.0 if self.return_scale is None else self.return_scale.std

    def track_returns(self, returns: torch.Tensor) -> None:
        """As `TracksStatistics.track_returns`."""
        if self.return_scale is not None:
            track_returns(self.return_scale, self.head, returns)

    def _seen(self, teams: Teams, index: torch.Tensor) -> dict[str, torch.Tensor]:
        """The input of the encoder at a flat index of the batch."""
        of_team = self.central.leaves(teams, index // self.num_agents)
        of_agent = self.central.seen_by_agents(teams, index)
        own = {f"own.{path}" if path else "own": leaf for path, leaf in of_agent.items()}
        return {**of_team, **own, "number": (index % self.num_agents).reshape(-1, 1)}
