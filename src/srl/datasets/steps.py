"""The steps of a dataset in memory, and windows of consecutive ticks that are cut out of them.

Episodes lie one after another, each with its final observation as a tick of its own, as in the
fragments of actors. The last tick is followed by the first one. So a window may begin anywhere.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from srl.data.records import NO_VERSION, Trajectory
from srl.data.spec import AgentSpec, ArraySpec, action_array
from srl.data.tree import Tree, leaves, tree_map
from srl.datasets.convert import EpisodeSpaces
from srl.datasets.episode import Episode
from srl.datasets.reader import Dataset
from srl.errors import ConfigError, SpecError
from srl.resources import machine_memory


def check_spaces(dataset: Dataset, agent: AgentSpec, setting: str) -> EpisodeSpaces:
    """The spaces of a dataset; raises unless they are those of an agent."""
    try:
        return EpisodeSpaces(dataset.observation_space, dataset.action_space, agent)
    except ConfigError as error:
        raise ConfigError(
            f"{setting}: expected a dataset with the environment's {error}, in {dataset.path}. "
            "Choose the environment in which it was recorded, or another dataset."
        ) from None


class RecordedSteps:
    """All ticks of a dataset, [ticks, ...], as an agent's fragments store them."""

    def __init__(self, path: Path, agent: AgentSpec, setting: str = "dataset") -> None:
        """Reads the whole dataset; raises if it does not fit the agent, or into memory."""
        dataset = Dataset(path, setting)
        self.agent = agent
        self.num_ticks = count = dataset.num_steps + dataset.num_episodes
        self._check_memory(dataset, setting)

        def column(spec: ArraySpec) -> np.ndarray:
            return np.zeros((count, *spec.shape), spec.dtype)

        self._obs: Tree = tree_map(column, agent.obs)
        self._mask = None if agent.action_mask is None else column(agent.action_mask)
        self._action = column(action_array(agent.action))
        self._reward = np.zeros(count, np.float32)
        flags = np.zeros((4, count), bool)
        self._is_first, self._terminated, self._truncated, self._acted = flags
        self._episode_start = np.zeros(count, np.int64)
        """The first tick of each tick's episode."""
        self._stacks = [leaf.stack for leaf in leaves(agent.obs)]
        end = 0
        spaces = check_spaces(dataset, agent, setting)
        for number, episode in enumerate(_within(dataset.episodes(), count)):
            try:
                end = self._add(episode, spaces, end)
            except (SpecError, ValueError) as error:
                raise ConfigError(
                    f"{setting}: {dataset.path}: episode {number}: {error} Record it again."
                ) from None
        self.num_ticks = end
        self.num_steps = int(self._acted.sum())
        """Recorded steps: ticks with an action."""

    def _check_memory(self, dataset: Dataset, setting: str) -> None:
        specs = [*leaves(self.agent.obs), action_array(self.agent.action)]
        if self.agent.action_mask is not None:
            specs.append(self.agent.action_mask)
        each = sum(np.dtype(s.dtype).itemsize * int(np.prod(s.shape)) for s in specs) + 16
        needed, memory = self.num_ticks * each, machine_memory()
        if needed > memory:
            raise ConfigError(
                f"{setting}: expected a dataset that fits into this machine's memory ({memory:,} "
                f"bytes), got one of {needed:,} bytes: {dataset.path}. Split it."
            )

    def _add(self, episode: Episode, spaces: EpisodeSpaces, start: int) -> int:
        """Writes an episode from a tick on; returns the tick after it."""
        end = start + episode.num_steps
        at, every = slice(start, end), slice(start, end + 1)
        obs, mask = spaces.observations(episode.observations, episode.action_masks)
        for kept, new in zip(leaves(self._obs), leaves(obs), strict=True):
            kept[every] = new
        if self._mask is not None:
            self._mask[every] = mask
        self._action[at] = spaces.actions(episode.actions)
        self._reward[at] = episode.rewards
        self._acted[at] = True
        self._is_first[start] = True
        # An episode that ends without a reason was cut off by whoever recorded it.
        self._terminated[end] = episode.terminations[-1]
        self._truncated[end] = not episode.terminations[-1]
        self._episode_start[every] = start
        return end + 1

    def read(self, start: np.ndarray, into: Trajectory) -> int:
        """Fills a fragment with windows, one for each row; returns the number of steps in it.

        `start` [rows] is the first tick of each window. What the dataset does not have (what a
        policy replied, its state, the environment's state) becomes 0.
        """
        ticks = len(into.acted)
        index = (start + np.arange(ticks)[:, None]) % self.num_ticks
        for stack, kept, out in zip(self._stacks, leaves(self._obs), leaves(into.obs), strict=True):
            np.take(kept, self._with_frames(index, stack), axis=0, out=out, mode="clip")
        for name in ("is_first", "terminated", "truncated", "acted", "action", "reward"):
            np.take(getattr(self, f"_{name}"), index, axis=0, out=getattr(into, name), mode="clip")
        if self._mask is not None and into.action_mask is not None:
            np.take(self._mask, index, axis=0, out=into.action_mask, mode="clip")
        into.alive.fill(True)
        into.policy_version.fill(NO_VERSION)
        for tree in (into.extras, into.policy_state, into.env_state, into.row):
            for leaf in leaves(tree):
                leaf.fill(0)
        return int(into.acted.sum())

    def _with_frames(self, index: np.ndarray, stack: int) -> np.ndarray:
        """The ticks of windows, with those of earlier frames in front."""
        if stack == 1:
            return index
        first = index[0]
        before = np.maximum(
            first - np.arange(stack - 1, 0, -1)[:, None], self._episode_start[first]
        )
        return np.concatenate([before, index])


def _within(episodes: Iterator[Episode], ticks: int) -> Iterator[Episode]:
    """The episodes; raises if they have more ticks than the metadata says."""
    for episode in episodes:
        ticks -= episode.num_steps + 1
        if ticks < 0:
            raise ConfigError(
                "dataset: expected as many steps as its metadata says, got more. Record it again."
            )
        yield episode
