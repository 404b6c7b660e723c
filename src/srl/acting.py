"""A trained policy that returns actions for single observations or batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from srl.data.spec import ArraySpec
from srl.data.tree import Tree, leaves, tree_map
from srl.envs.spaces import ActionAdapter, AgentSpaces, obs_starts
from srl.errors import ConfigError, SpecError
from srl.workers.episode_player import PolicyRunner

if TYPE_CHECKING:
    from srl.policies.protocol import Policy


def load_policy(
    run_dir: str | Path, name: str = "", *, checkpoint: str = "latest", trust: bool = False
) -> ActingPolicy:
    """Loads a trained policy from a run's folder; needs neither the run's environment nor what that
    needs.

    `name` is the policy's, if the run has several. `trust` is as for `srl.load`.
    """
    # Imported here: they load what makes plans, which acting does not need.
    from srl.casting import cast_policies
    from srl.launch.directory.run_dir import RunDir, weights_of
    from srl.launch.plan.build import plan_policies
    from srl.workers.wiring import build_policy, needed_shapes

    directory = RunDir(Path(run_dir))
    experiment = directory.read_trusted_policies(trust=trust)
    if not name and len(experiment.policies) == 1:
        name = next(iter(experiment.policies))
    if name not in experiment.policies:
        known = ", ".join(experiment.policies)
        raise ConfigError(f"policy: expected the name of one ({known}), got {name!r}.")
    saved = directory.read_spaces()
    plan = plan_policies(experiment, saved.spec)[name]
    if plan.mode != "random":
        shapes = needed_shapes(plan, experiment.seed)
        weights = weights_of(f"{run_dir}@{checkpoint}", shapes, plan.name)
        plan = msgspec.structs.replace(plan, weights=str(weights))
    casts = cast_policies(experiment, list(saved.spec.agents))
    agent = next(cast[name][0] for cast in casts.values() if name in cast)
    return ActingPolicy(build_policy(plan, experiment.seed), name, saved.agent(agent))


class ActingPolicy:
    """A trained policy that chooses actions for your observations.

    It keeps frame stacks and policy state from call to call; `reset()` starts a new episode. Its
    observations and actions are values of the environment's own spaces.
    """

    def __init__(self, policy: Policy, name: str, spaces: AgentSpaces) -> None:
        self.module = policy
        """The torch module."""
        self.name = name
        self.agent = policy.agent
        self._runner: PolicyRunner | None = None
        self._rows = 0
        self._first = True
        self.spaces = spaces
        """The environment's spaces."""
        self._starts = obs_starts(spaces.observation)
        self._actions = ActionAdapter(spaces.action)

    def reset(self) -> None:
        """Starts a new episode with the next observation."""
        self._first = True

    def act(
        self,
        obs: Any,
        *,
        action_mask: Any = None,
        is_first: Any = None,
        explore: bool = False,
    ) -> Any:
        """The action for one observation, or actions for a batch of them (greedy unless `explore`).

        `action_mask` replaces a mask that comes with the observation. In a batch, `is_first` may
        mark the rows that start an episode. Real numbers are clipped to the bounds of the action
        space, as in training.
        """
        obs, own_mask = self.spaces.take_mask(obs, {})
        action_mask = own_mask if action_mask is None else action_mask
        tree = _as_tree(obs, self.agent.obs)
        batched = self._is_batched(tree)
        batch = tree_map(lambda leaf: leaf if batched else leaf[None], tree)
        rows = len(leaves(batch)[0])
        if self._runner is None or rows != self._rows:
            if self._has_memory and not self._first and rows != self._rows:
                raise SpecError(
                    f"act: expected {self._rows} observations as before, got {rows}. "
                    "Call reset() first: each row has a memory of its own."
                )
            self._start(rows)
        assert self._runner is not None
        self._runner.explore(float(explore))
        first = np.full(rows, self._first)
        if is_first is not None:
            first |= np.asarray(is_first, bool)
        mask = None if action_mask is None else np.asarray(action_mask, bool).reshape(rows, -1)
        if mask is None and self.agent.action_mask is not None:
            mask = np.ones((rows, *self.agent.action_mask.shape), bool)
        action = self._runner.act(
            _cast_leaves(batch, self.agent.obs, self._starts), first, mask, np.ones(rows, bool)
        )
        self._first = False
        chosen = self._actions.batch(action)
        return chosen if batched else chosen[0]

    @property
    def _has_memory(self) -> bool:
        """Whether earlier observations matter: it has policy state, or a stack of frames."""
        stacked = any(leaf.stack > 1 for leaf in leaves(self.agent.obs))
        return self.module.state_spec is not None or stacked

    def _start(self, rows: int) -> None:
        self._runner = PolicyRunner(self.module, rows, explore=0.0, seed=0)
        self._rows, self._first = rows, True

    def _is_batched(self, tree: Tree) -> bool:
        found = set()
        for leaf, spec in zip(leaves(tree), leaves(self.agent.obs), strict=True):
            if leaf.shape == spec.shape:
                found.add(False)
            elif leaf.shape[1:] == spec.shape and leaf.ndim == len(spec.shape) + 1:
                found.add(True)
            else:
                raise SpecError(
                    f"act: expected an observation {spec} or a batch of them, got "
                    f"{leaf.dtype}{list(leaf.shape)}."
                )
        if len(found) != 1:
            raise SpecError("act: expected only single parts or only batches, got both.")
        return found.pop()


class Policies(Mapping[str, ActingPolicy]):
    """A run's policies by name; each is loaded at its first use."""

    def __init__(self, path: Path, names: list[str], checkpoint: str, *, trust: bool) -> None:
        self._path = path
        self._names = names
        self._checkpoint = checkpoint
        self._trust = trust
        self._loaded: dict[str, ActingPolicy] = {}

    def __getitem__(self, name: str) -> ActingPolicy:
        if name not in self._names:
            raise KeyError(name)
        if name not in self._loaded:
            from srl.evaluation import acting_policy

            self._loaded[name] = acting_policy(
                self._path, name, self._checkpoint, trust=self._trust
            )
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def _as_tree(obs: Any, spec: Tree) -> Tree:
    """A tree of arrays in the order of the spec; the parts of a tuple get the keys "0", "1", ..."""
    if not isinstance(spec, dict):
        return np.asarray(obs)
    if isinstance(obs, tuple | list):
        obs = {str(index): part for index, part in enumerate(obs)}
    if not isinstance(obs, dict) or set(obs) != set(spec):
        got = sorted(obs) if isinstance(obs, dict) else type(obs).__name__
        raise SpecError(f"act: expected an observation with {sorted(spec)}, got {got}.")
    return {key: _as_tree(obs[key], spec[key]) for key in spec}


def _cast_leaves(tree: Tree, spec: Tree, starts: Tree) -> Tree:
    """Observations as SRL stores them: in the declared dtype, with categories from 0 on."""
    if isinstance(spec, ArraySpec):
        counted = np.asarray(tree - starts if starts.any() else tree)
        counted = counted.astype(spec.dtype, copy=False)
        if spec.categories:
            sizes = np.reshape(spec.categories, spec.shape)
            if not ((counted >= 0) & (counted < sizes)).all():
                raise SpecError(
                    f"act: expected numbers from {starts.tolist()} on, {sizes.tolist()} of them, "
                    f"got {np.asarray(tree).tolist()!s:.80}."
                )
        return counted
    return {key: _cast_leaves(tree[key], spec[key], starts[key]) for key in spec}
