"""Collects the steps of one policy's agents into episodes, while they are played.

Each row (one agent in one environment) has episodes of its own. A tick in which the agent does not
act is no step: its reward belongs to the agent's last action, as in the fragments of actors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from srl.data.records import EnvStep
from srl.data.tree import Tree, leaves, tree_map
from srl.datasets.convert import to_space
from srl.datasets.episode import Episode
from srl.envs.spaces import ActionAdapter, AgentSpaces


class _Open:
    """The steps of an episode that has not ended."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.seen: list[tuple[Tree, int]] = []
        """The observation of each step: those of all rows at that tick, and the row."""
        self.actions: list[np.ndarray] = []
        self.rewards: list[float] = []
        self.masks: list[np.ndarray] = []


class Recorder:
    """Hands whole episodes to `add`; the caller says which of them count."""

    def __init__(
        self, spaces: AgentSpaces, rows: int, agents: int, seed: int, add: Callable[[Episode], Any]
    ) -> None:
        """There are `rows` rows, `agents` in each environment; environment i was reset with `seed`
        + i."""
        self._spaces, self._add = spaces, add
        self._actions = ActionAdapter(spaces.action)
        self._open = [_Open(seed + row // agents) for row in range(rows)]
        self._acts = np.zeros(rows, bool)

    def observe(self, step: EnvStep) -> None:
        """Takes what a tick shows; call it before `act`."""
        obs = tree_map(np.copy, step.obs)
        mask = None if step.action_mask is None else step.action_mask.copy()
        final = step.terminated | step.truncated
        self._acts = step.turn.copy()
        for row in np.flatnonzero(step.is_first).tolist():
            if self._open[row].seen:
                self._open[row] = _Open(None)
        for row, episode in enumerate(self._open):
            if episode.rewards:
                episode.rewards[-1] += float(step.reward[row])
            if self._acts[row] or final[row]:
                episode.seen.append((obs, row))
                if mask is not None:
                    episode.masks.append(mask[row])

    def act(self, action: np.ndarray) -> None:
        """Takes the stored actions [rows, ...] that answer the last tick."""
        chosen = self._actions.batch(action)
        for row in np.flatnonzero(self._acts).tolist():
            self._open[row].actions.append(chosen[row])
            self._open[row].rewards.append(0.0)

    def end(self, row: int, terminated: bool) -> None:
        """Completes the episode of a row, whose final observation was the last tick."""
        episode, self._open[row] = self._open[row], _Open(None)
        if not episode.rewards:
            return
        count = len(episode.rewards)
        last = np.zeros(count, bool)
        last[-1] = True
        stored = _stack(episode.seen)
        self._add(
            Episode(
                observations=to_space(stored, self._spaces.observation),
                actions=np.stack(episode.actions),
                rewards=np.array(episode.rewards),
                terminations=last & terminated,
                truncations=last & (not terminated),
                action_masks=np.stack(episode.masks) if episode.masks else None,
                seed=episode.seed,
            )
        )


def _stack(seen: list[tuple[Tree, int]]) -> Tree:
    """The rows of several ticks as arrays over time."""
    columns = [leaves(obs) for obs, _ in seen]
    rows = [row for _, row in seen]
    stacked = iter(
        [
            np.stack([found[row] for found, row in zip(ticks, rows, strict=True)])
            for ticks in zip(*columns, strict=True)
        ]
    )
    return tree_map(lambda leaf: next(stacked), seen[0][0])
