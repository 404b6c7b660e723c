"""Evaluates the policies of runs, makes videos of them, and records their episodes.

Each policy, or the policy of the agents whose names match a pattern, can be replaced by `RUN`,
`RUN@CHECKPOINT`, `RUN@CHECKPOINT:POLICY`, or `random`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from srl.acting import ActingPolicy
from srl.casting import assign_agents, cast_policies
from srl.data.spec import EnvSpec
from srl.datasets.recorder import Recorder
from srl.datasets.writer import DatasetWriter
from srl.envs.protocol import EnvGroup
from srl.envs.registry import gymnasium_spec, make_group, probe, probe_spaces
from srl.errors import ConfigError, RunError
from srl.experiment import SEEDS, Experiment, PolicyConfig
from srl.launch.directory.run_dir import RunDir, split_source, weights_of
from srl.launch.plan.build import learning_policies, metric_names, plan_policies
from srl.launch.plan.sources import plan_source
from srl.services.metric_names import MetricNames
from srl.services.score import Score
from srl.workers.episode_player import EpisodeObserver, PlayedEpisodes, Player
from srl.workers.wiring import build_policy, needed_shapes

if TYPE_CHECKING:
    from srl.policies.protocol import Policy

OnProgress = Callable[[int, int], None]
"""Called after every step with the number of ended episodes and the number of steps."""

EVAL_ENVS = 8
"""Environments of an evaluation, which are played side by side."""


def evaluate(
    path: Path,
    *,
    trust: bool,
    episodes: int,
    checkpoint: str,
    replaced: Mapping[str, str],
    seed: int,
    explore: bool,
    env_args: Mapping[str, Any],
    on_progress: OnProgress | None = None,
) -> Score:
    """Plays episodes with a run's policies, some of which may be replaced."""
    experiment = _experiment(path, env_args, trust)
    cast = _cast(path, experiment, checkpoint, replaced, trust)
    result = _play(
        experiment,
        cast,
        episodes=episodes,
        seed=seed,
        explore=explore,
        envs=EVAL_ENVS,
        on_progress=on_progress,
    )
    return Score(result.returns, result.lengths, result.agents, cast.names, result.metrics)


def record_video(
    path: Path,
    video: Path,
    *,
    trust: bool,
    episodes: int,
    checkpoint: str,
    replaced: Mapping[str, str],
    seed: int,
    explore: bool,
    env_args: Mapping[str, Any],
    fps: int,
    on_progress: OnProgress | None = None,
) -> Path:
    """Plays episodes into a video file and returns the file, a GIF if there is no encoder."""
    import imageio

    if video.suffix.lower() not in (".mp4", ".gif"):
        raise ConfigError(f"video: expected a name that ends in .mp4 or .gif, got {video.name!r}.")
    if not 1 <= fps <= 1000:
        raise ConfigError(f"fps: expected a number from 1 to 1000, got {fps}.")
    options: dict[str, Any] = {"duration": 1000 / fps, "loop": 0}
    if video.suffix.lower() == ".mp4":
        if _has_encoder():
            options = {"fps": fps, "macro_block_size": 2}
        else:
            video = video.with_suffix(".gif")
    experiment = _experiment(path, env_args, trust)
    cast = _cast(path, experiment, checkpoint, replaced, trust)
    try:
        video.parent.mkdir(parents=True, exist_ok=True)
        with imageio.get_writer(video, **options) as writer:
            _play(
                experiment,
                cast,
                episodes=episodes,
                seed=seed,
                explore=explore,
                envs=1,
                on_tick=lambda envs: writer.append_data(_pad_to_even(envs.render(0))),
                on_progress=on_progress,
            )
    except OSError as error:
        raise RunError(f"{video}: cannot write the video ({error.strerror or error}).") from error
    return video


def record_dataset(
    path: Path,
    folder: Path,
    *,
    trust: bool,
    episodes: int,
    of: str,
    checkpoint: str,
    replaced: Mapping[str, str],
    seed: int,
    explore: bool,
    on_progress: OnProgress | None = None,
) -> Path:
    """Plays episodes and writes those of one policy's agents into a dataset; returns its folder.

    Each agent's episodes are episodes of the dataset.
    """
    experiment = RunDir(path).read_trusted(trust=trust)
    cast = _cast(path, experiment, checkpoint, replaced, trust)
    of = _recorded_policy(of, cast)
    agents = cast.policy_agents[of]
    spaces = probe_spaces(experiment.env)[agents[0]]
    writer = DatasetWriter(
        folder,
        observation_space=spaces.observation,
        action_space=getattr(spaces.action, "parts", spaces.action),
        env_spec=gymnasium_spec(experiment.env),
        algorithm_name=str(experiment.algorithm["name"]),
        description=f"Episodes of policy {of!r} of the run {path.name} in {experiment.env.id}, "
        f"{'sampled' if explore else 'greedy'}, seed {seed}.",
    )
    envs = min(EVAL_ENVS, max(1, episodes))
    recorder = Recorder(spaces, envs * len(agents), len(agents), seed, writer.add)
    with writer:
        _play(
            experiment,
            cast,
            episodes=episodes,
            seed=seed,
            explore=explore,
            envs=envs,
            observers={of: recorder},
            on_progress=on_progress,
        )
        return writer.finish()


def _recorded_policy(of: str, cast: _Cast) -> str:
    if not of and len(cast.policies) == 1:
        return next(iter(cast.policies))
    if of in cast.policies:
        return of
    raise ConfigError(
        f"--of: expected the policy whose agents are recorded ({', '.join(cast.policies)}), got "
        f"{of!r}."
        if of
        else f"--of: expected a policy, because this run has several "
        f"({', '.join(cast.policies)}), got none. Name the one whose agents are recorded."
    )


def acting_policy(
    path: Path, name: str, checkpoint: str = "latest", *, trust: bool
) -> ActingPolicy:
    """One policy of a run, ready to choose actions."""
    experiment = RunDir(path).read_trusted(trust=trust)
    spec = probe(experiment.env)
    casts = cast_policies(experiment, list(spec.agents))
    agent = next(cast[name][0] for cast in casts.values() if name in cast)
    at = RunDir(path).store().find(checkpoint).number
    policy = _load(f"{path}@{at}:{name}", name, spec, experiment, trust=trust)
    return ActingPolicy(policy, name, probe_spaces(experiment.env)[agent])


def _experiment(path: Path, env_args: Mapping[str, Any], trust: bool) -> Experiment:
    """The experiment of a run, with some arguments of its environment changed."""
    experiment = RunDir(path).read_trusted(trust=trust)
    if not env_args:
        return experiment
    args = {**experiment.env.args, **env_args}
    return dataclasses.replace(experiment, env=dataclasses.replace(experiment.env, args=args))


# -- policies and their agents ---------------------------------------------------------------------


@dataclass(frozen=True)
class _Cast:
    """Policies and the agents that each of them plays."""

    policies: dict[str, Policy]
    policy_agents: dict[str, tuple[str, ...]]
    names: MetricNames


def _cast(
    path: Path, experiment: Experiment, checkpoint: str, replaced: Mapping[str, str], trust: bool
) -> _Cast:
    spec = probe(experiment.env)
    roles = dict(experiment.policies)
    for name in replaced:
        if name not in roles:
            if not fnmatch.filter(spec.agents, name):
                raise ConfigError(
                    f"--policy {name}: expected a policy ({', '.join(experiment.policies)}), or a "
                    f"name or pattern of agents ({', '.join(spec.agents)}), got neither."
                )
            # The agents get their own policy, in front of the policy whose pattern matches them.
            roles = {name: PolicyConfig(agents=(name,)), **roles}
    policy_agents = assign_agents(roles, list(spec.agents), idle=True)
    sources = dict(replaced)
    if own := [name for name in policy_agents if name not in replaced]:
        at = RunDir(path).store().find(checkpoint).number
        sources |= {name: f"{path}@{at}:{name}" for name in own}
    policies = {
        name: _load(sources[name], name, spec, experiment, agents[0], trust=trust)
        for name, agents in policy_agents.items()
    }
    learning = learning_policies(experiment.policies)
    return _Cast(policies, policy_agents, MetricNames(metric_names(roles, spec).policies, learning))


def _load(
    source: str,
    role: str,
    spec: EnvSpec,
    experiment: Experiment,
    agent: str = "",
    *,
    trust: bool,
) -> Policy:
    """The policy that `RUN@CHECKPOINT:POLICY` or `random` names, for one of the run's agents."""
    if source == "random":
        alone = msgspec.structs.replace(spec, agents={agent: spec.agents[agent]})
        random = {"random": PolicyConfig(mode="random")}
        (plan,) = plan_policies(dataclasses.replace(experiment, policies=random), alone).values()
        # The role may be an agent's name, which need not be a valid policy name.
        return build_policy(msgspec.structs.replace(plan, name=role), experiment.seed)
    plan = plan_source(source, role, spec.agents[agent] if agent else None, trust=trust)
    weights = ""
    if plan.mode != "random":
        run, checkpoint, _ = split_source(source)
        shapes = needed_shapes(plan, experiment.seed)
        weights = str(weights_of(f"{run}@{checkpoint}", shapes, plan.name))
    return build_policy(msgspec.structs.replace(plan, weights=weights), experiment.seed)


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
    observers: Mapping[str, EpisodeObserver] | None = None,
    on_progress: OnProgress | None = None,
) -> PlayedEpisodes:
    if episodes < 1:
        raise ConfigError(f"episodes: expected at least 1, got {episodes}.")
    if not 0 <= seed < SEEDS:
        raise ConfigError(f"seed: expected a number from 0 to {SEEDS - 1}, got {seed}.")
    group = make_group(
        experiment.env,
        num_envs=min(envs, episodes),
        policy_agents=cast.policy_agents,
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
            observers=observers,
        )
        steps = 0
        with _one_thread():
            while not player.done:
                player.tick()
                steps += group.num_envs
                if on_progress is not None:
                    on_progress(episodes - player.episodes_left, steps)
        return player.result
    finally:
        group.close()


@contextmanager
def _one_thread() -> Iterator[None]:
    """Lets torch use one thread: batches of a few rows are too small for several."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _has_encoder() -> bool:
    try:
        import imageio_ffmpeg

        imageio_ffmpeg.get_ffmpeg_exe()
    except (ImportError, RuntimeError):
        return False
    return True


def _pad_to_even(picture: np.ndarray) -> np.ndarray:
    """A picture with even sides, as video encoders need: odd sides get a repeated line."""
    height, width = picture.shape[:2]
    return np.pad(picture, ((0, height % 2), (0, width % 2), (0, 0)), mode="edge")
