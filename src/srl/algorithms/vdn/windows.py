"""The windows of teams: each has the rows of all agents of one environment."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property

import torch

from srl.algorithms.config import RewardClip
from srl.algorithms.dqn.windows import ActionOutcome, WindowBatch, WindowPart
from srl.algorithms.learning.sequences import at
from srl.algorithms.learning.team import Teams
from srl.algorithms.team_config import TeamReward
from srl.data.records import SampleBatch
from srl.policies.protocol import ActionValues, Policy

Mix = Callable[[torch.Tensor, torch.Tensor, Teams, torch.Tensor], torch.Tensor]
"""Mixes values of agents [T, e, agents], of which some are present (bool, same shape), to values of
joint actions [T, e]; a flat index [T, e] says where their teams are."""


class TeamWindowBatch(WindowBatch):
    """A batch of windows whose ticks, rewards and values are those of whole teams."""

    def __init__(
        self,
        batch: SampleBatch,
        policy: Policy,
        device: torch.device,
        *,
        mix: Mix,
        mix_target: Mix,
        join: TeamReward,
        gamma: float,
        n: int,
        reward_clip: RewardClip = None,
    ) -> None:
        """`mix` mixes the values of the online network, `mix_target` those of the target
        network."""
        self.width = batch.num_agents
        self._mix, self._mix_target, self._join = mix, mix_target, join
        super().__init__(batch, policy, device, gamma=gamma, n=n, reward_clip=reward_clip)

    @cached_property
    def teams(self) -> Teams:
        """The teams of the batch."""
        return Teams(self.sequences, self.reward, self._join)

    def game(self, first: int) -> dict[str, torch.Tensor]:
        """What teams did and earned."""
        return {name: x[first:] for name, x in self.teams.ticks._asdict().items()}

    def outcome(
        self, windows: WindowPart, online: ActionValues, target: ActionValues, *, double: bool
    ) -> ActionOutcome:
        """Values of the joint actions that were taken, and of those that follow. Each agent chooses
        alone: what is best for all follows from that."""
        teams, envs = self.teams, windows.columns
        agents = torch.arange(self.width, device=envs.device)
        of_rows = dataclasses.replace(
            windows,
            columns=(envs.unsqueeze(1) * self.width + agents).flatten(),
            bootstrap=windows.bootstrap.repeat_interleave(self.width, 1),
        )
        found = super().outcome(of_rows, online, target, double=double)
        ticks = torch.arange(self.ticks, device=envs.device).unsqueeze(1) + self.sequences.burn_in
        predicted = self._mixed(self._mix, found.predicted, ticks * teams.envs + envs)
        with torch.no_grad():
            later = windows.bootstrap * teams.envs + envs
            return ActionOutcome(predicted, self._mixed(self._mix_target, found.future, later))

    def _mixed(self, mix: Mix, value: torch.Tensor, where: torch.Tensor) -> torch.Tensor:
        """Values of rows [T, e * agents] to those of teams [T, e]."""
        present = at(self.teams.present.flatten(0, 1), where)
        return mix(value.view(*where.shape, self.width), present, self.teams, where)
