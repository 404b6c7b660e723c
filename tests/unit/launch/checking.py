"""A policy and an algorithm that check what reaches them; found by import path in any process.

The policy's state counts a row's questions since its episode began and holds the last observation's
sum. Its replies carry what it saw, so that the trainer can tell whether a fragment tells the truth.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from srl.algorithms.config import AlgorithmConfig, Sampling
from srl.algorithms.protocol import Algorithm
from srl.data.records import SampleBatch, TrainResult
from srl.data.spec import AgentSpec, ArraySpec
from srl.data.tree import Tree, leaves
from srl.errors import LearnError
from srl.policies.protocol import Policy, PolicyOutput


@dataclass(frozen=True, kw_only=True)
class NothingToSet:
    """The network has no settings."""


class CheckedPolicy(Policy):
    """Plays at random, and says in its extras what it was fed."""

    Config = NothingToSet

    def __init__(self, agent: AgentSpec, config: NothingToSet) -> None:
        super().__init__(agent, config)
        self.extras_spec = {"seen": ArraySpec(), "count": ArraySpec(), "fed": ArraySpec(shape=(2,))}
        self.state_spec = {"h": ArraySpec(shape=(2,))}
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def act(
        self,
        obs: Tree,
        state: Tree,
        is_first: torch.Tensor,
        explore: torch.Tensor,
        action_mask: torch.Tensor | None,
        generator: torch.Generator,
    ) -> PolicyOutput:
        rows = len(is_first)
        seen = sum(leaf.reshape(rows, -1).double().sum(1).float() for leaf in leaves(obs))
        fed = state["h"]
        count = torch.where(is_first, 0.0, fed[:, 0]) + 1
        allowed = torch.ones(rows, 2) if action_mask is None else action_mask.float()
        action = torch.multinomial(allowed, 1, generator=generator)[:, 0]
        extras = {"seen": seen, "count": count, "fed": fed.clone()}
        return PolicyOutput(action, {"h": torch.stack([count, seen], 1)}, extras)


@dataclass(frozen=True, kw_only=True)
class CheckConfig(AlgorithmConfig):
    """Which fragments it wants."""

    length: int = 5
    burn_in: int = 0
    state_every: int = 1
    max_policy_age: int = 1
    cut: str = "fixed"
    accepted_age: int | None = None
    """The age that the check accepts; None is `max_policy_age`."""

    def sampling(self) -> Sampling:
        return Sampling(
            length=self.length,
            burn_in=self.burn_in,
            state_every=self.state_every,
            cut=self.cut,  # type: ignore[arg-type]
            max_policy_age=self.max_policy_age,
        )


class Checking(Algorithm):
    """Learns nothing, and raises if a batch breaks a rule of the journey."""

    Config = CheckConfig
    handles_stale_samples = True

    def __init__(self, policy: Policy, config: CheckConfig, *, device: str, seed: int) -> None:
        self.policy = policy
        self.config = config
        self._updates = 0

    def update(self, batch: SampleBatch, progress: float) -> Iterator[TrainResult | None]:
        self._check(batch)
        yield None
        self._updates += 1
        yield TrainResult(metrics={"checked": float(batch.num_steps)})

    def state(self) -> Tree:
        return {"updates": self._updates}

    def restore(self, state: Tree) -> None:
        self._updates = state["updates"]

    def _check(self, batch: SampleBatch) -> None:
        data = batch.data
        final = data.terminated | data.truncated
        asked = data.policy_version >= 0
        count, fed = data.extras["count"], data.extras["fed"]
        self._must("actions are never at an end", not (final & data.acted).any())
        self._must("what acts was asked", asked[data.acted].all())
        self._must("what was truncated has a value", asked[data.truncated].all())
        self._must("only actions earn", (data.reward[~data.acted] == 0).all())
        self._must("who acts is in the game", data.alive[data.acted].all())
        used = data.policy_version[batch.burn_in : -1][data.acted[batch.burn_in : -1]]
        lag = self._updates - used.min(initial=self._updates)
        config = self.config
        bound = config.max_policy_age if config.accepted_age is None else config.accepted_age
        self._must(f"age within the bound, got {lag}", lag <= bound)
        for row in range(final.shape[1]):
            alive = np.flatnonzero(data.alive[:, row])
            self._must(
                "an end, then a beginning",
                (final[alive[:-1], row] == data.is_first[alive[1:], row]).all(),
            )
            questions = np.flatnonzero(asked[:, row] & data.alive[:, row])
            for before, after in itertools.pairwise(questions):
                begins = data.is_first[before + 1 : after + 1, row].any()
                expected = 1 if begins else count[before, row] + 1
                self._must("the state is the last reply's", count[after, row] == expected)
        stored = data.policy_state["h"]
        for chunk in range(len(stored)):
            tick = chunk * batch.state_every
            rows = asked[tick] & data.alive[tick]
            self._must("states are as fed in", (stored[chunk][rows] == fed[tick][rows]).all())

    def _must(self, what: str, holds: bool | np.bool_) -> None:
        if not holds:
            raise LearnError(f"broken: {what}")
