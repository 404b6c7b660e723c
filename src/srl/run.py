"""Training from Python, and a run afterwards: its policies, evaluation, videos and plots.

run = srl.train("CartPole-v1", steps=200_000)
run.evaluate(episodes=20).mean
run.policy.act(obs)
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srl.errors import ConfigError, RunError
from srl.experiment import Experiment, Launcher, Layout
from srl.launch.run_dir import RunDir, new_run_dir
from srl.launch.slurm_job import inside_job, wait_for_job
from srl.overrides import override
from srl.recipes.target import DEFAULT_STEPS, absolute, find_experiment
from srl.services.summary import Summary, read_summary

if TYPE_CHECKING:
    from srl.playing import ActingPolicy, Score

PLOT_FILE = "plot.png"


def train(
    target: Any,
    *,
    algorithm: str | None = None,
    layout: Layout | None = None,
    launcher: Launcher | None = None,
    listen: str | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    until: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    env_args: dict[str, Any] | None = None,
    init_from: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
    run_dir: str | Path | None = None,
    fresh: bool = False,
    quiet: bool = False,
) -> Run:
    """Trains to the end and returns the run; a `run_dir` that has one goes on from its checkpoint.

    `target` is a recipe's name, an environment's id or class, or an `Experiment`. `set` takes every
    other setting by dotted key, like `{"actor.envs": 8}` (`srl settings` lists them).
    """
    begun = time.monotonic()
    experiment = assemble(
        target,
        algorithm=algorithm,
        layout=layout,
        launcher=launcher,
        listen=listen,
        steps=steps,
        seconds=seconds,
        until=until,
        seed=seed,
        device=device,
        env_args=env_args,
        init_from=init_from,
        set=set,
    )
    path = Path(run_dir) if run_dir else new_run_dir(experiment.name, experiment.seed)
    return start(experiment, path, fresh=fresh, quiet=quiet, begun=begun)


def load(run_dir: str | Path) -> Run:
    """A run that was trained before."""
    RunDir(Path(run_dir)).read_config()
    return Run(Path(run_dir))


def assemble(
    target: Any,
    *,
    algorithm: str | None = None,
    layout: str | None = None,
    launcher: str | None = None,
    listen: str | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    until: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    env_args: dict[str, Any] | None = None,
    init_from: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
) -> Experiment:
    """The experiment that the arguments of `train` describe, checked."""
    settings: dict[str, Any] = dict(set or {})
    given = {
        "algorithm.name": None if algorithm is None else absolute(algorithm),
        "layout": layout,
        "launcher": launcher,
        "listen": listen,
        "steps": steps,
        "seconds": seconds,
        "until": until,
        "seed": seed,
        "trainer.device": device,
    }
    settings |= {key: value for key, value in given.items() if value is not None}
    if settings.get("until") == "none":
        settings["until"] = ""
    experiment = override(find_experiment(target, env_args), settings)
    if init_from is not None:
        experiment = _starting_from(experiment, str(init_from))
    if not (experiment.steps or experiment.seconds or experiment.until):
        experiment = dataclasses.replace(experiment, steps=DEFAULT_STEPS)
    _check_until(experiment)
    return experiment


def start(
    experiment: Experiment,
    path: Path,
    *,
    fresh: bool = False,
    quiet: bool = False,
    begun: float | None = None,
) -> Run:
    """Trains an experiment in a folder, going on from what is there unless `fresh`.

    `begun` is the `time.monotonic()` at which the user asked for it, now if left out.
    """
    from srl.launch.launch import launch

    if is_for_slurm(experiment):
        return when_done(hand_in(experiment, path, fresh=fresh), path)
    _make_way(experiment, path, fresh)
    launch(experiment, path, quiet=quiet, begun=begun)
    return Run(path)


def is_for_slurm(experiment: Experiment) -> bool:
    """Whether a run is to be handed in as a Slurm job, and this is not yet the job."""
    return experiment.launcher == "slurm" and not inside_job()


def hand_in(experiment: Experiment, path: Path, *, fresh: bool = False) -> str:
    """Hands in a run as a Slurm job and returns the job's number."""
    from srl.launch.slurm_submit import submit_run

    _make_way(experiment, path, fresh)
    return submit_run(_filled_in(experiment), RunDir(path))


def when_done(job: str, path: Path) -> Run:
    """The run that a Slurm job was handed in for, once the job has ended; raises if it failed."""
    wait_for_job(job)
    run = Run(path)
    if run.summary.status == "failed":
        raise RunError(run.summary.error or f"job {job} failed.")
    return run


def _make_way(experiment: Experiment, path: Path, fresh: bool) -> None:
    """Removes the run that is there if `fresh`; otherwise this one must be able to go on in it."""
    directory = RunDir(path)
    if fresh:
        directory.clear()
    elif directory.exists:
        directory.check_resumable(_filled_in(experiment))


def resume(
    run_dir: str | Path,
    *,
    set: Mapping[str, Any] | None = None,
    quiet: bool = False,
    begun: float | None = None,
) -> Run:
    """Goes on with a run where its last checkpoint left off."""
    begun = time.monotonic() if begun is None else begun
    experiment = resumed(run_dir, set)
    return start(experiment, Path(run_dir), quiet=quiet, begun=begun)


def resumed(run_dir: str | Path, set: Mapping[str, Any] | None = None) -> Experiment:
    """The experiment that a run is, with some settings changed."""
    settings = dict(set or {})
    if settings.get("until") == "none":
        settings["until"] = ""
    experiment = override(RunDir(Path(run_dir)).read_config(), settings)
    _check_until(experiment)
    return experiment


class Run:
    """One run: what it was, how it went, and the policies that came out of it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.experiment: Experiment = RunDir(path).read_config()
        self._policies: Policies | None = None

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def summary(self) -> Summary:
        """How it went: what is in summary.json."""
        return read_summary(self.path)

    @property
    def policies(self) -> Policies:
        """The policies by name, with the weights of the last checkpoint."""
        if self._policies is None:
            self._policies = Policies(self, "latest")
        return self._policies

    @property
    def policy(self) -> ActingPolicy:
        """The only policy of the run."""
        if len(self.policies) != 1:
            names = ", ".join(self.policies)
            raise ConfigError(
                f"run.policy: expected a run with one policy, got {names}. Use run.policies[name]."
            )
        return self.policies[next(iter(self.policies))]

    def at(self, checkpoint: str) -> Policies:
        """The policies as they were in a checkpoint: `latest`, `best`, a number, a version."""
        return Policies(self, checkpoint)

    def evaluate(
        self,
        episodes: int = 20,
        *,
        checkpoint: str = "latest",
        policies: Mapping[str, str] | None = None,
        seed: int = 1_000_000,
        explore: bool = False,
    ) -> Score:
        """Plays whole episodes, greedily unless `explore`, and says how they went, by policy.

        `policies` puts others in their place: `{"hider": "RUN@best", "seeker": "random"}`.
        """
        from srl.playing import evaluate

        return evaluate(
            self.path,
            self.experiment,
            episodes=episodes,
            checkpoint=checkpoint,
            replaced=policies or {},
            seed=seed,
            explore=explore,
        )

    def play(
        self,
        video: str | Path,
        *,
        episodes: int = 1,
        checkpoint: str = "latest",
        policies: Mapping[str, str] | None = None,
        seed: int = 1_000_000,
        explore: bool = False,
        fps: int = 30,
    ) -> Path:
        """Films episodes, as a GIF where no encoder is at hand; returns the written file."""
        from srl.playing import film

        return film(
            self.path,
            self.experiment,
            Path(video),
            episodes=episodes,
            checkpoint=checkpoint,
            replaced=policies or {},
            seed=seed,
            explore=explore,
            fps=fps,
        )

    def plot(self, output: str | Path | None = None) -> Path:
        """Draws return, throughput and policy age over steps into a PNG, `plot.png` in the run."""
        from srl.services.plotting import plot_runs

        return plot_runs([self.path], Path(output) if output else self.path / PLOT_FILE)


class Policies(Mapping[str, "ActingPolicy"]):
    """A run's policies by name, loaded when they are asked for."""

    def __init__(self, run: Run, checkpoint: str) -> None:
        self._run = run
        self._checkpoint = checkpoint
        self._loaded: dict[str, ActingPolicy] = {}

    def __getitem__(self, name: str) -> ActingPolicy:
        if name not in self._run.experiment.policies:
            raise KeyError(name)
        if name not in self._loaded:
            from srl.playing import acting_policy

            self._loaded[name] = acting_policy(
                self._run.path, self._run.experiment, name, self._checkpoint
            )
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._run.experiment.policies)

    def __len__(self) -> int:
        return len(self._run.experiment.policies)


def _starting_from(experiment: Experiment, source: str) -> Experiment:
    """Every policy that is trained starts with the weights that a run ended with."""
    path, at, checkpoint = source.partition("@")
    RunDir(Path(path)).read_config()
    source = f"{Path(path).resolve()}{at}{checkpoint}"
    policies = {
        name: dataclasses.replace(policy, source=source) if policy.mode == "train" else policy
        for name, policy in experiment.policies.items()
    }
    return dataclasses.replace(experiment, policies=policies)


def _filled_in(experiment: Experiment) -> Experiment:
    """The experiment with all defaults spelt out, as config.yaml has it."""
    from srl.launch.plan import algorithm_settings, network_settings

    return dataclasses.replace(
        experiment,
        algorithm=algorithm_settings(experiment),
        network=network_settings(experiment),
    )


def _check_until(experiment: Experiment) -> None:
    if experiment.until:
        from srl.services.until import parse_until

        parse_until(experiment.until)
