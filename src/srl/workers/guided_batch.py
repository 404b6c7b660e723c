"""Agent batches in which another policy acts in some of the episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from srl.data.flags import any_true
from srl.data.records import EnvStep
from srl.data.tree import Tree, leaves
from srl.graph import Guide
from srl.streams.inference import InferenceClient
from srl.workers.agent_batch import AgentBatch


class GuidedAgentBatch(AgentBatch):
    """Asks its own policy and a guide, and takes the guide's actions in episodes that are drawn.

    The fragment has the actions that were taken, with what its own policy replied beside them.
    """

    def __init__(self, *, guide: InferenceClient, config: Guide, seed: int, **rest: Any) -> None:
        super().__init__(**rest)
        self.guide = GuideEnd(self, guide, config.policy)
        self._config = config
        self._rng = np.random.default_rng(seed)
        self._guided = np.zeros(self._turn.size, bool)
        """Rows in whose episode the guide acts."""
        self._own_is_here = False
        request, own = guide.request(self.index), self.request
        # The guide acts as well as it can.
        request.explore.fill(0.0)
        self._copied = [
            (copy, array)
            for name in ("obs", "is_first", "action_mask")
            for copy, array in zip(
                leaves(getattr(request, name)), leaves(getattr(own, name)), strict=True
            )
        ]

    def observe(self, step: EnvStep) -> None:
        """Draws who acts in the episodes that begin."""
        if any_true(step.is_first):
            version = self.parameters.version if self.parameters is not None else 0
            drawn = self._rng.random(self._guided.size) < self._config.share_at(version)
            self._guided[step.is_first] = drawn[step.is_first]
        super().observe(step)

    def submit(self) -> None:
        """Sends the request to both."""
        self._own_is_here = self.guide.is_here = False
        for copy, array in self._copied:
            copy[...] = array
        super().submit()
        self.guide.client.submit(self.index, self.num_needed)

    def receive(self) -> None:
        """Takes the reply of its own policy, and goes on when both are here."""
        self.client.take(self.index)
        self._own_is_here = True
        self.go_on()

    def go_on(self) -> None:
        """Goes on with the actions of both, if both replies are here."""
        if not (self._own_is_here and self.guide.is_here):
            return
        guided = self._guided if self.needs is None else self._guided[self.needs]
        replied = self.guide.client.reply(self.index).action[: guided.size]
        self.reply.action[: guided.size][guided] = replied[guided]
        super().receive()

    def restart(self) -> None:
        """Drops the unfinished episodes, and who acts in them."""
        super().restart()
        self._guided.fill(False)

    def state(self) -> dict[str, Tree]:
        """Also who acts in each row's episode, and which replies are here."""
        return {
            **super().state(),
            "guided": self._guided.copy(),
            "rng": self._rng.bit_generator.state,
            "here": [self._own_is_here, self.guide.is_here],
        }

    def restore(self, state: dict[str, Tree]) -> None:
        """Continues from `state`."""
        super().restore(state)
        self._guided[...] = state["guided"]
        self._rng.bit_generator.state = state["rng"]
        self._own_is_here, self.guide.is_here = state["here"]


class GuideEnd:
    """The client of a guide's inference stream, as a guided agent batch uses it."""

    def __init__(self, batch: GuidedAgentBatch, client: InferenceClient, policy: str) -> None:
        self._batch, self.client = batch, client
        self.policy = policy
        self.is_here = False
        """Whether the reply to the open request is here."""

    def receive(self) -> None:
        """Takes the guide's reply."""
        self.client.take(self._batch.index)
        self.is_here = True
        self._batch.go_on()
