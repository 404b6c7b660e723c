"""The teams of a batch: its rows as [envs, agents], and what a whole team sees."""

from __future__ import annotations

import torch
from torch import nn

from srl.algorithms.learning.buffers import track
from srl.algorithms.learning.sequences import Sequences, at
from srl.algorithms.ops.team import TeamTicks, team_ticks
from srl.algorithms.team_config import TeamReward, TeamView
from srl.data.spec import AgentSpec, TeamSpec
from srl.data.tree import Tree, flatten, tree_map
from srl.errors import ConfigError
from srl.policies.nets.encoder import ObsNorm, flat_obs
from srl.policies.protocol import Policy


class Teams:
    """The teams of a batch, one for each environment."""

    def __init__(self, sequences: Sequences, reward: torch.Tensor, join: TeamReward) -> None:
        """`reward` [T, B] are the rewards of agents."""
        self.sequences = sequences
        self.num_agents = sequences.num_agents
        self.envs = sequences.rows // self.num_agents
        acted, terminated, truncated, reward = map(
            self.by_agent, (sequences.acted, sequences.terminated, sequences.truncated, reward)
        )
        self.ticks: TeamTicks = team_ticks(
            acted=acted, terminated=terminated, truncated=truncated, reward=reward, join=join
        )
        """What each team did and earned, [T, envs]."""
        self.acting = acted & ~(terminated | truncated)
        """bool [T, envs, agents]: the agent acts."""
        self.present = self.acting | (truncated & self.ticks.truncated.unsqueeze(-1))
        """bool [T, envs, agents]: the agent is a part of the team. It acts, or its final
        observation is what the team's value bootstraps from."""

    def by_agent(self, x: torch.Tensor) -> torch.Tensor:
        """[T, B, ...] as [T, envs, agents, ...]."""
        return x.view(x.shape[0], self.envs, self.num_agents, *x.shape[2:])


class CentralInput(nn.Module):
    """What a whole team sees: the environment's global state, or the observations of all agents.

    Of an agent that is not present, all numbers are zero (Yu et al. 2022, "death masking").
    """

    def __init__(
        self,
        agent: AgentSpec,
        team: TeamSpec,
        view: TeamView,
        normalize: bool,
        clip: float = 10.0,
    ) -> None:
        """`clip` bounds what is normalised, in standard deviations."""
        super().__init__()
        if view == "auto":
            view = "observations" if team.env_state is None else "state"
        self.view = view
        self.num_agents = team.num_agents
        self.obs_norm = ObsNorm(agent.obs, clip) if normalize else None
        self.state_norm: ObsNorm | None = None
        if view == "state":
            self.spec: Tree = {"state": team.env_state}
            self.state_norm = ObsNorm(self.spec, clip) if normalize else None
        else:
            self.spec = {"team": {str(number): agent.obs for number in range(team.num_agents)}}

    def leaves(self, teams: Teams, where: torch.Tensor) -> dict[str, torch.Tensor]:
        """What teams see at a flat index [ticks, n] (tick * envs + environment), by path: [ticks *
        n, ...]."""
        if self.view == "state":
            state = {"state": teams.sequences.env_state}
            found = flatten(tree_map(lambda x: at(x.flatten(0, 1), where.flatten()), state))
            return found if self.state_norm is None else self.state_norm(found)
        agents = torch.arange(self.num_agents, device=where.device)
        rows = where.unsqueeze(-1) * self.num_agents + agents
        seen = self.seen_by_agents(teams, rows.flatten(1))
        return {
            f"team.{number}{path and f'.{path}'}": leaf
            for path, x in seen.items()
            for number, leaf in enumerate(x.view(-1, self.num_agents, *x.shape[1:]).unbind(1))
        }

    def seen_by_agents(self, teams: Teams, index: torch.Tensor) -> dict[str, torch.Tensor]:
        """What agents see at a flat index [ticks, n] of the batch, by path: [ticks * n, ...]; zeros
        where they are not present."""
        present = at(teams.present.flatten(), index)
        obs = teams.sequences.obs_at(index, present)
        found = {path: leaf.flatten(0, 1) for path, leaf in flat_obs(obs).items()}
        if self.obs_norm is None:
            return found
        absent = ~present.flatten()
        return {
            # Zeros that were normalised are others.
            path: leaf.masked_fill(absent.reshape(-1, *(1,) * (leaf.dim() - 1)), 0)
            for path, leaf in self.obs_norm(found).items()
        }

    def track(self, sequences: Sequences, update: int) -> None:
        """Updates the statistics with the single frames of a batch."""
        frames, active = sequences.frames()
        if self.obs_norm is not None:
            track(self.obs_norm.track, flat_obs(frames), active, update=update)
        if self.state_norm is not None:
            own = slice(sequences.burn_in, sequences.ticks - sequences.bootstrap)
            state = flatten(tree_map(lambda x: x[own], {"state": sequences.env_state}))
            some = active.view(len(active), -1, sequences.num_agents).any(-1)
            track(self.state_norm.track, state, some, update=update)


def require_same_ticks(policy: Policy, asked_by: str) -> None:
    """Raises a ConfigError unless all agents of the policy act at the same ticks."""
    if policy.team.turn_based:
        raise ConfigError(
            f"algorithm: {asked_by} expects agents that act at the same ticks, got a turn-based "
            "environment. Use ppo, or a parallel environment."
        )


def require_view(policy: Policy, view: TeamView, setting: str) -> None:
    """Raises a ConfigError unless the environment shows what a setting says."""
    if view == "state" and policy.team.env_state is None:
        raise ConfigError(
            f"algorithm.{setting}: for `state` expected an environment with a global state "
            "(PettingZoo: `state_space` and `state()`), got one without. Set "
            f"algorithm.{setting}=observations."
        )
