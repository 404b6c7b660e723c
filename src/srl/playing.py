"""Policies of finished runs at play: evaluation, videos, and single actions.

Any policy may be put in another's place: `RUN`, `RUN@CHECKPOINT`, `RUN@CHECKPOINT:POLICY`, or
`random`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from srl.data.spec import ArraySpec, EnvSpec
from srl.data.tree import Tree, leaves, tree_map
from srl.envs.protocol import EnvGroup
from srl.envs.registry import make_group, probe, probe_spaces
from srl.envs.spaces import ActionAdapter, AgentSpaces, obs_starts
from srl.errors import ConfigError, SpecError
from srl.experiment import Experiment, PolicyConfig, assign_agents
from srl.launch.plan import plan_policies
from srl.launch.run_dir import RunDir, weights_of
from srl.workers.player import Player, PolicyRunner, Result
from srl.workers.wiring import build_policy

if TYPE_CHECKING:
    from srl.policies.protocol import Policy

EVAL_ENVS = 8
"""Environments that an evaluation plays side by side."""


@dataclass(frozen=True)
class Score:
    """How episodes went, by policy."""

    returns: dict[str, list[float]]
    lengths: dict[str, list[int]]

    @property
    def mean(self) -> float:
        """The mean return over all policies' episodes."""
        return float(np.mean([value for found in self.returns.values() for value in found]))

    def table(self) -> dict[str, dict[str, float]]:
        """Mean, standard deviation, extremes, mean length and number of returns, by policy."""
        return {
            name: {
                "mean": float(np.mean(found)),
                "std": float(np.std(found)),
                "min": float(np.min(found)),
                "max": float(np.max(found)),
                "length_mean": float(np.mean(self.lengths[name])),
                "episodes": len(found),
            }
            for name, found in self.returns.items()
        }

    def __str__(self) -> str:
        lines = [
            f"{name}: {row['mean']:.1f} ± {row['std']:.1f} "
            f"(from {row['min']:.1f} to {row['max']:.1f}, {row['episodes']:.0f} episodes, "
            f"mean length {row['length_mean']:.1f})"
            for name, row in self.table().items()
        ]
        return "\n".join(lines)


def evaluate(
    path: Path,
    experiment: Experiment,
    *,
    episodes: int,
    checkpoint: str,
    replaced: Mapping[str, str],
    seed: int,
    explore: bool,
) -> Score:
    """Plays episodes with a run's policies, some perhaps replaced."""
    cast = _cast(path, experiment, checkpoint, replaced)
    result = _play(experiment, cast, episodes=episodes, seed=seed, explore=explore, envs=EVAL_ENVS)
    return Score(result.returns, result.lengths)


def film(
    path: Path,
    experiment: Experiment,
    video: Path,
    *,
    episodes: int,
    checkpoint: str,
    replaced: Mapping[str, str],
    seed: int,
    explore: bool,
    fps: int,
) -> Path:
    """Plays episodes into a video file; returns the file, a GIF where no encoder is at hand."""
    import imageio

    if video.suffix.lower() not in (".mp4", ".gif"):
        raise ConfigError(f"video: expected a name that ends in .mp4 or .gif, got {video.name!r}.")
    options: dict[str, Any] = {"duration": 1000 / fps, "loop": 0}
    if video.suffix.lower() == ".mp4":
        if _has_encoder():
            options = {"fps": fps, "macro_block_size": 2}
        else:
            video = video.with_suffix(".gif")
    cast = _cast(path, experiment, checkpoint, replaced)
    video.parent.mkdir(parents=True, exist_ok=True)
    with imageio.get_writer(video, **options) as writer:
        _play(
            experiment,
            cast,
            episodes=episodes,
            seed=seed,
            explore=explore,
            envs=1,
            on_tick=lambda envs: writer.append_data(_even(envs.render(0))),
        )
    return video


def acting_policy(
    path: Path, experiment: Experiment, name: str, checkpoint: str = "latest"
) -> ActingPolicy:
    """One policy of a run, to be asked for actions."""
    spec = probe(experiment.env)
    agent = assign_agents(experiment.policies, list(spec.agents))[name][0]
    policy = _load(f"{path}@{checkpoint}:{name}", name, spec, experiment)
    return ActingPolicy(policy, name, probe_spaces(experiment.env)[agent])


class ActingPolicy:
    """A trained policy that acts on what you show it, and remembers what it has seen.

    Frame stacks and memory are kept from call to call; `reset()` starts a new episode. It takes and
    returns what the environment's own spaces contain.
    """

    def __init__(self, policy: Policy, name: str, spaces: AgentSpaces) -> None:
        self.module = policy
        """The torch module."""
        self.name = name
        self.agent = policy.agent
        self._runner: PolicyRunner | None = None
        self._rows = 0
        self._first = True
        self._starts = obs_starts(spaces.observation)
        self._actions = ActionAdapter(spaces.action)

    def reset(self) -> None:
        """The next observation is the first of an episode."""
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

        In a batch, `is_first` may say which rows start an episode. Real numbers are clipped to the
        bounds of the action space, as in training.
        """
        tree = _as_tree(obs, self.agent.obs)
        batched = self._is_batched(tree)
        batch = tree_map(lambda leaf: leaf if batched else leaf[None], tree)
        rows = len(leaves(batch)[0])
        if self._runner is None or rows != self._rows:
            if self._remembers and not self._first and rows != self._rows:
                raise SpecError(
                    f"act: expected {self._rows} observations as before, got {rows}. "
                    "Call reset() first: memory belongs to rows."
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
    def _remembers(self) -> bool:
        """Whether what it saw before matters: policy state, or a stack of frames."""
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
            raise SpecError("act: expected all parts to be single or all to be batches, got both.")
        return found.pop()


def _as_tree(obs: Any, spec: Tree) -> Tree:
    """Arrays (lists become such), a Tuple by our keys "0", "1", ..., a Dict in the spec's order."""
    if not isinstance(spec, dict):
        return np.asarray(obs)
    if isinstance(obs, tuple | list):
        obs = {str(index): part for index, part in enumerate(obs)}
    if not isinstance(obs, dict) or set(obs) != set(spec):
        got = sorted(obs) if isinstance(obs, dict) else type(obs).__name__
        raise SpecError(f"act: expected an observation with {sorted(spec)}, got {got}.")
    return {key: _as_tree(obs[key], spec[key]) for key in spec}


def _cast_leaves(tree: Tree, spec: Tree, starts: Tree) -> Tree:
    """Observations as they are stored: in the declared dtype, categories counted from 0."""
    if isinstance(spec, ArraySpec):
        counted = tree - starts if starts.any() else tree
        return np.asarray(counted).astype(spec.dtype, copy=False)
    return {key: _cast_leaves(tree[key], spec[key], starts[key]) for key in spec}


# -- who plays -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Cast:
    """Policies and the agents that each of them plays."""

    policies: dict[str, Policy]
    lanes: dict[str, tuple[str, ...]]


def _cast(
    path: Path, experiment: Experiment, checkpoint: str, replaced: Mapping[str, str]
) -> _Cast:
    spec = probe(experiment.env)
    roles = dict(experiment.policies)
    for name in replaced:
        if name not in roles:
            if name not in spec.agents:
                raise ConfigError(
                    f"--policy {name}: expected a policy ({', '.join(experiment.policies)}) or an "
                    f"agent ({', '.join(spec.agents)}), got neither."
                )
            # An agent gets a policy of its own, before the pattern that it would fall under.
            roles = {name: PolicyConfig(agents=(name,)), **roles}
    lanes = assign_agents(roles, list(spec.agents), idle=True)
    policies = {
        name: _load(
            replaced.get(name, f"{path}@{checkpoint}:{name}"), name, spec, experiment, agents[0]
        )
        for name, agents in lanes.items()
    }
    return _Cast(policies, lanes)


def _load(source: str, role: str, spec: EnvSpec, experiment: Experiment, agent: str = "") -> Policy:
    """The policy that `RUN@CHECKPOINT:POLICY` or `random` names, for one of our agents."""
    if source == "random":
        alone = msgspec.structs.replace(spec, agents={agent: spec.agents[agent]})
        random = {role: PolicyConfig(mode="random")}
        plan = plan_policies(dataclasses.replace(experiment, policies=random), alone)[role]
        return build_policy(plan, experiment.seed)
    run, _, rest = source.partition("@")
    checkpoint, _, name = rest.partition(":")
    theirs = RunDir(Path(run)).read_config()
    name = name or (role if role in theirs.policies else _only(theirs, run))
    if name not in theirs.policies:
        known = ", ".join(theirs.policies)
        raise ConfigError(f"{source}: no policy {name!r} in that run; it has {known}.")
    plans = plan_policies(theirs, probe(theirs.env))
    plan = plans[name]
    if agent and plan.agent != spec.agents[agent]:
        raise ConfigError(
            f"{source}: policy {name!r} expects {plan.agent.obs} and {plan.agent.action}, but "
            f"{agent!r} has {spec.agents[agent].obs} and {spec.agents[agent].action}."
        )
    weights = ""
    if plan.mode != "random":
        weights = str(weights_of(f"{run}@{checkpoint or 'latest'}", name))
    return build_policy(msgspec.structs.replace(plan, weights=weights), theirs.seed)


def _only(experiment: Experiment, run: str) -> str:
    if len(experiment.policies) != 1:
        known = ", ".join(experiment.policies)
        raise ConfigError(
            f"{run}: it has several policies ({known}). Say which: {run}@latest:NAME."
        )
    return next(iter(experiment.policies))


# -- play --------------------------------------------------------------------------------------


def _play(
    experiment: Experiment,
    cast: _Cast,
    *,
    episodes: int,
    seed: int,
    explore: bool,
    envs: int,
    on_tick: Callable[[EnvGroup], None] | None = None,
) -> Result:
    if episodes < 1:
        raise ConfigError(f"episodes: expected at least 1, got {episodes}.")
    group = make_group(
        experiment.env,
        num_envs=min(envs, episodes),
        lanes=cast.lanes,
        on_call=lambda call, index: None,
        render=on_tick is not None,
    )
    try:
        player = Player(
            group,
            cast.policies,
            episodes=episodes,
            seed=seed,
            explore=float(explore),
            on_tick=on_tick,
        )
        return player.play()
    finally:
        group.close()


def _has_encoder() -> bool:
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return False
    return True


def _even(picture: np.ndarray) -> np.ndarray:
    """Video encoders want even sides; a line is repeated where one is odd."""
    height, width = picture.shape[:2]
    return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
