"""Trains from Python, and opens runs: their policies, evaluation, videos, datasets and plots.

run = srl.train("CartPole-v1", steps=200_000)
run.evaluate(episodes=20).mean
run.policy.act(obs)
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from srl.arguments import assemble, resumed
from srl.errors import ConfigError, RunError
from srl.experiment import Experiment, Launcher, Layout
from srl.launch.backends.slurm_job import inside_job, wait_for_job
from srl.launch.directory.notebook_code import notebook_code, write_notebook_code
from srl.launch.directory.run_dir import RunDir, new_run_dir
from srl.reporting.summary import Summary, read_summary
from srl.resolve import refuse_while_importing

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from srl.acting import ActingPolicy, Policies
    from srl.evaluation import OnProgress
    from srl.reporting.frames import Columns, Frame
    from srl.services.score import Score

PLOT_FILE = "plot.png"


def train(
    target: Any,
    *,
    algorithm: str | dict[str, Any] | DataclassInstance | None = None,
    network: str | dict[str, Any] | DataclassInstance | None = None,
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
    callbacks: Sequence[Any] = (),
) -> Run:
    """Trains to the end and returns the run; a run in `run_dir` continues from its checkpoint.

    `target` is a recipe's name, an environment's id or class, or an `Experiment`. `algorithm` and
    `network` are a name, a dict of settings that change, or a settings object with all of them,
    like `PPOConfig(epochs=8)` and `ActorCriticConfig(recurrent="lstm")`. `set` takes every other
    setting by dotted key, like `{"actor.envs": 8}` (`srl settings` lists them). `callbacks` are
    objects with methods of `srl.Callback`, which the controller calls in this process.
    """
    begun = time.monotonic()
    experiment = assemble(
        target,
        algorithm=algorithm,
        network=network,
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
    path = run_path(experiment, run_dir)
    run = start(experiment, path, fresh=fresh, quiet=quiet, begun=begun, callbacks=callbacks)
    if not quiet:
        print(run.report(), flush=True)
    return run


def load(run_dir: str | Path, *, trust: bool = False) -> Run:
    """Opens a run that was trained before.

    The first use of its policies imports the code that the run names. If this user did not make the
    run on this machine, that needs `trust`, unless all of the code is SRL's own.
    """
    return Run(Path(run_dir), trust=trust)


def run_path(experiment: Experiment, run_dir: str | Path | None) -> Path:
    """The folder of a run, a new one if none is given; raises if a device is missing here."""
    from srl.launch.plan.build import check_devices

    check_devices(experiment)
    return Path(run_dir) if run_dir else new_run_dir(experiment.name, experiment.seed)


def start(
    experiment: Experiment,
    path: Path,
    *,
    fresh: bool = False,
    quiet: bool = False,
    begun: float | None = None,
    callbacks: Sequence[Any] = (),
) -> Run:
    """Trains an experiment in a folder; continues the run that is there, unless `fresh`.

    `begun` is the `time.monotonic()` at which the user's command began; the default is now.
    """
    from srl.launch.run.launch import launch

    if is_for_slurm(experiment):
        if callbacks:
            raise ConfigError(
                "callbacks: expected none with launcher slurm, got objects of this process, which "
                "a job cannot call. Name their classes in the setting logging.callbacks."
            )
        return wait_for_run(submit_job(experiment, path, fresh=fresh), path)
    experiment = _prepare_folder(experiment, path, fresh)
    launch(experiment, path, quiet=quiet, begun=begun, callbacks=callbacks)
    return Run(path)


def is_for_slurm(experiment: Experiment) -> bool:
    """Whether a run must be submitted as a Slurm job, and this process is not in the job."""
    return experiment.launcher == "slurm" and not inside_job()


def submit_job(experiment: Experiment, path: Path, *, fresh: bool = False) -> str:
    """Submits a run as a Slurm job and returns the job's number."""
    from srl.launch.backends.slurm_submit import submit_run

    experiment = _prepare_folder(experiment, path, fresh)
    return submit_run(experiment, RunDir(path))


def wait_for_run(job: str, path: Path) -> Run:
    """Waits until a Slurm job has ended and returns its run; raises if the run failed."""
    wait_for_job(job)
    run = Run(path)
    if run.summary.status == "failed":
        raise RunError(run.summary.error or f"job {job} failed.")
    return run


def _prepare_folder(experiment: Experiment, path: Path, fresh: bool) -> Experiment:
    """Removes the run in the folder if `fresh`; otherwise raises if it cannot be continued.

    Returns the experiment, with names in the folder for code of a notebook.
    """
    directory = RunDir(path)
    if directory.exists:
        directory.check_links()
    if fresh:
        directory.clear()
    experiment, code = notebook_code(experiment, path)
    if directory.has_checkpoints:
        # Only training needs this import, because it loads what makes a plan.
        from srl.launch.directory.checkpoint_sizes import check_sizes

        directory.check_resumable(experiment)
        check_sizes(directory)
    else:
        # The folder has no learned state yet, so any settings are fine.
        directory.check_free()
    if code:
        with directory.locked():
            write_notebook_code(code, path)
    return experiment


def resume(
    run_dir: str | Path,
    *,
    layout: Layout | None = None,
    launcher: Launcher | None = None,
    listen: str | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    until: str | None = None,
    device: str | None = None,
    set: Mapping[str, Any] | None = None,
    quiet: bool = False,
    trust: bool = False,
    callbacks: Sequence[Any] = (),
) -> Run:
    """Continues a run from its last checkpoint; arguments are as for `train`, and `trust` is as for
    `load`.

    A run that has reached its limits is not trained further: raise `steps`, `seconds` or `until`.
    """
    begun = time.monotonic()
    experiment = resumed(
        run_dir,
        layout=layout,
        launcher=launcher,
        listen=listen,
        steps=steps,
        seconds=seconds,
        until=until,
        device=device,
        set=set,
        trust=trust,
    )
    path = run_path(experiment, run_dir)
    run = start(experiment, path, quiet=quiet, begun=begun, callbacks=callbacks)
    if not quiet:
        print(run.report(), flush=True)
    return run


class Run:
    """One run: its experiment, its results and its policies."""

    def __init__(self, path: Path, *, trust: bool = False) -> None:
        self.path = path
        self.trust = trust
        """Whether SRL imports code that the run names, even if this user did not make the run."""
        self.experiment: Experiment = RunDir(path).read_config()
        self._policies: Policies | None = None

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r})"

    @property
    def summary(self) -> Summary:
        """The results of the run, from summary.json."""
        return read_summary(self.path)

    def report(self, plot: Path | None = None) -> str:
        """The results as text, as printed at the end of a run; `plot` is a picture to mention."""
        from srl.reporting.console import final_report

        return final_report(self.summary, self.path, plot)

    @property
    def policies(self) -> Policies:
        """The policies by name, with the weights of the last checkpoint."""
        if self._policies is None:
            self._policies = self.at("latest")
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
        """The policies as they were in a checkpoint: `latest`, `best` (`best:POLICY` where several
        learn), a checkpoint's number like `12`, or a policy version like `v340`."""
        from srl.acting import Policies

        return Policies(self.path, list(self.experiment.policies), checkpoint, trust=self.trust)

    def evaluate(
        self,
        episodes: int = 20,
        *,
        checkpoint: str = "latest",
        policies: Mapping[str, str] | None = None,
        seed: int = 1_000_000,
        explore: bool = False,
        trust: bool = False,
        env_args: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
    ) -> Score:
        """Plays whole episodes, greedily unless `explore`, and returns the scores by policy.

        `policies` replaces policies, or the policies of agents by name or pattern:
        `{"hider": "RUN@best", "seeker_*": "random"}`. `trust` is as for `load`, for all of these
        runs. `checkpoint` may be `best`, or `best:POLICY` where several policies learn.
        `env_args` replaces arguments of the run's environment. `on_progress(episodes, steps)` is
        called after each step.
        """
        refuse_while_importing("run.evaluate")
        from srl.evaluation import evaluate

        return evaluate(
            self.path,
            trust=self.trust or trust,
            episodes=episodes,
            checkpoint=checkpoint,
            replaced=policies or {},
            seed=seed,
            explore=explore,
            env_args=env_args or {},
            on_progress=on_progress,
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
        trust: bool = False,
        env_args: Mapping[str, Any] | None = None,
        on_progress: OnProgress | None = None,
    ) -> Path:
        """Makes a video of episodes and returns its file, a GIF if there is no encoder.

        `policies`, `trust` and `env_args` are as for `evaluate`.
        """
        refuse_while_importing("run.play")
        from srl.evaluation import record_video

        return record_video(
            self.path,
            Path(video),
            trust=self.trust or trust,
            episodes=episodes,
            checkpoint=checkpoint,
            replaced=policies or {},
            seed=seed,
            explore=explore,
            env_args=env_args or {},
            fps=fps,
            on_progress=on_progress,
        )

    def record(
        self,
        folder: str | Path | None = None,
        *,
        episodes: int,
        of: str = "",
        checkpoint: str = "latest",
        policies: Mapping[str, str] | None = None,
        seed: int = 1_000_000,
        explore: bool = False,
        trust: bool = False,
        on_progress: OnProgress | None = None,
    ) -> Path:
        """Plays episodes into a new dataset in Minari's format, and returns its folder.

        The default folder is `datasets/RUN-v0`. Where a run has several policies, `of` is the one
        whose agents are recorded. `policies` and `trust` are as for `evaluate`.
        """
        refuse_while_importing("run.record")
        from srl.evaluation import record_dataset

        return record_dataset(
            self.path,
            Path(folder) if folder else Path("datasets") / f"{self.path.resolve().name}-v0",
            trust=self.trust or trust,
            episodes=episodes,
            of=of,
            checkpoint=checkpoint,
            replaced=policies or {},
            seed=seed,
            explore=explore,
            on_progress=on_progress,
        )

    def export(
        self,
        output: str | Path,
        *,
        of: str = "",
        checkpoint: str = "latest",
        explore: bool = False,
        trust: bool = False,
    ) -> Path:
        """Writes a policy into one file that runs without SRL, and a page beside it that says how.

        `output` ends in `.onnx`, or in `.pt2` for `torch.export`. Actions are greedy unless
        `explore`; then random numbers are inputs. `of` names the policy if the run has several.
        `trust` is as for `load`; the run's environment is not needed.
        """
        refuse_while_importing("run.export")
        from srl.acting import load_policy
        from srl.export.files import check_output, export_policy

        path = Path(output)
        check_output(path)
        policy = load_policy(self.path, of, checkpoint=checkpoint, trust=self.trust or trust)
        source = f"policy {policy.name!r} of the run {self.path.resolve().name} ({checkpoint})"
        return export_policy(policy, path, explore=explore, source=source)

    @overload
    def metrics(self) -> Columns: ...
    @overload
    def metrics(self, frame: Frame) -> Any: ...

    def metrics(self, frame: Frame | None = None) -> Any:
        """The lines of metrics.jsonl as one array for each metric, by name.

        `frame` is `pandas` or `polars`, for a DataFrame of that package.
        """
        from srl.reporting.frames import columns_of, frame_of
        from srl.services.metrics import read_metrics

        columns = columns_of(read_metrics(self.path))
        return columns if frame is None else frame_of(columns, frame)

    def plot(self, output: str | Path | None = None) -> Path:
        """Draws return, throughput and policy age over steps; returns the PNG file."""
        from srl.reporting.plotting import plot_runs

        return plot_runs([self.path], Path(output) if output else self.path / PLOT_FILE)
