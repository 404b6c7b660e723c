"""`srl train` and `srl resume`: run an experiment to its end and report the result."""

from __future__ import annotations

import argparse
import shlex
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srl.cli.options import (
    Verbs,
    add_env_args,
    add_limits,
    add_quiet,
    add_settings,
    add_trust,
    add_verb,
    number,
)

if TYPE_CHECKING:
    from srl.experiment import Experiment
    from srl.reporting.summary import Summary
    from srl.run import Run

_TRAIN_EXAMPLES = """
srl train cartpole
srl train CartPole-v1 --steps 200_000 --layout serial
srl train LunarLander-v3 --until 'return>=200' --set actor.envs=32
srl train simple_tag --until 'return/chaser>=30'
srl train envpool:Pong-v5 --steps 2M --set algorithm.learning_rate=5e-4
srl train my_env.py:MyEnv --env-arg size=8 --seconds 60
srl train cartpole --seeds 5 --run-dir runs/cartpole
srl train cartpole --layout remote      (several hosts; here with host agents on this machine)
srl train pong --launcher ray --address auto --set 'hosts={a: [actor], b: [actor]}'
srl train pong --launcher slurm --set slurm.partition=gpu --set slurm.time_minutes=720
srl train cartpole --run-dir runs/a     (twice: the second goes on; --fresh: starts over)
"""

_RESUME_EXAMPLES = """
srl resume runs/cartpole-20250101-120000-seed1
srl resume runs/pong --steps 5M --layout shared     (a finished run: raise its limit)
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl train` and `srl resume`."""
    parser = add_verb(verbs, "train", "train a recipe or an environment", _TRAIN_EXAMPLES)
    parser.add_argument(
        "target",
        metavar="RECIPE_OR_ENV_ID",
        help="a recipe (`srl list`), a Gymnasium id, envpool:ID, pettingzoo:module, module:Class "
        "or file.py:Class",
    )
    parser.add_argument(
        "--algorithm", metavar="NAME", help="a name (`srl list`) or an import path (default: ppo)"
    )
    add_limits(parser)
    parser.add_argument("--seed", type=int, metavar="N", help="seed of all random numbers")
    parser.add_argument(
        "--seeds", type=number, metavar="N", help="train N seeds, one after another"
    )
    add_env_args(parser)
    parser.add_argument(
        "--init-from",
        metavar="RUN",
        help="start with a run's weights: RUN, RUN@best, or RUN@best:POLICY where several learn",
    )
    add_settings(parser)
    parser.add_argument(
        "--run-dir",
        metavar="DIR",
        help="the folder of the run; a run that is already there goes on",
    )
    parser.add_argument(
        "--fresh",
        action="store_true",
        help="first remove the run in that folder, but nothing else that is in the folder",
    )
    add_quiet(parser)
    parser.set_defaults(run=_train)

    parser = add_verb(verbs, "resume", "continue a run from its checkpoint", _RESUME_EXAMPLES)
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    add_limits(parser)
    add_settings(parser)
    add_quiet(parser)
    add_trust(parser)
    parser.set_defaults(run=_resume)


def _train(args: argparse.Namespace) -> int:
    from srl.arguments import assemble
    from srl.errors import ConfigError
    from srl.overrides import parse_pairs
    from srl.run import is_for_slurm, run_path, start

    if args.seeds is not None and args.seeds < 1:
        raise ConfigError(f"--seeds: expected at least 1, got {args.seeds}.")
    experiment = assemble(
        args.target,
        algorithm=args.algorithm,
        seed=args.seed,
        env_args=parse_pairs(args.env_arg, "--env-arg"),
        init_from=args.init_from,
        **_shared(args),
    )
    path = run_path(experiment, args.run_dir)
    if args.seeds:
        return _train_seeds(experiment, path, args)
    if is_for_slurm(experiment):
        return _submit(experiment, path, args, fresh=args.fresh)
    run = start(experiment, path, fresh=args.fresh, quiet=args.quiet, begun=args.begun)
    return _report(run, args.quiet)


def _train_seeds(experiment: Experiment, path: Path, args: argparse.Namespace) -> int:
    """Trains one seed after another, then shows a table and one plot of all runs."""
    import dataclasses

    from srl.reporting.plotting import plot_runs
    from srl.run import PLOT_FILE, start

    runs: list[Run] = []
    for seed in range(experiment.seed, experiment.seed + args.seeds):
        if not args.quiet:
            print(f"seed {seed}", flush=True)
        seeded = dataclasses.replace(experiment, seed=seed)
        runs.append(start(seeded, path / f"seed{seed}", fresh=args.fresh, quiet=args.quiet))
        _plot(runs[-1])
        if runs[-1].summary.status == "stopped":
            break
    print(seeds_table([(run.experiment.seed, run.summary) for run in runs]))
    if any(value is not None for run in runs for value in _returns(run.summary).values()):
        print(f"plot  {plot_runs([run.path for run in runs], path / PLOT_FILE)}")
    if runs[-1].summary.status == "stopped":
        print(f"go on  the same command with --run-dir {shlex.quote(str(path))}")
    return _exit_code(runs[-1].summary)


def seeds_table(rows: list[tuple[int, Summary]]) -> str:
    """A table with the result of each seed, and the mean over all seeds."""
    import statistics

    each = [_returns(summary) for _, summary in rows]
    # The summary of a run that ended before its first measurement names no policies.
    names = max(each, key=len)

    def line(name: str, status: str, returns: list[str], more: list[str]) -> str:
        wide = [f"{text:>{max(9, len(key))}}" for key, text in zip(names, returns, strict=True)]
        return "  ".join([f"{name:>4}  {status:<8}", *wide, *more])

    def numbers(steps: float, seconds: float) -> list[str]:
        speed = steps / seconds if seconds else 0.0
        return [f"{steps:>11,.0f}", f"{seconds:>8.1f}", f"{speed:>7,.0f}"]

    def shown(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f}"

    lines = [line("seed", "status", [*names], [f"{'steps':>11}", f"{'seconds':>8}", "steps/s"])]
    for (seed, s), returns in zip(rows, each, strict=True):
        texts = [shown(returns.get(name)) for name in names]
        lines.append(line(str(seed), s.status, texts, numbers(s.env_steps, s.seconds)))
    known = [[value for r in each if (value := r.get(name)) is not None] for name in names]
    means = [shown(statistics.fmean(found) if found else None) for found in known]
    steps = statistics.fmean(s.env_steps for _, s in rows)
    seconds = statistics.fmean(s.seconds for _, s in rows)
    lines.append(line("mean", "", means, numbers(steps, seconds)))
    return "\n".join(lines)


def _returns(summary: Summary) -> dict[str, float | None]:
    """The mean return; one for each policy where several learn."""
    learning = {name: result for name, result in summary.policies.items() if result.learns}
    if len(learning) < 2:
        return {"return": summary.episode_return_mean}
    return {f"return/{name}": result.episode_return_mean for name, result in learning.items()}


def _resume(args: argparse.Namespace) -> int:
    from srl.arguments import resumed
    from srl.run import is_for_slurm, run_path, start

    experiment = resumed(args.directory, trust=args.trust, **_shared(args))
    path = run_path(experiment, args.directory)
    if is_for_slurm(experiment):
        return _submit(experiment, path, args, fresh=False)
    run = start(experiment, path, quiet=args.quiet, begun=args.begun)
    return _report(run, args.quiet)


def _shared(args: argparse.Namespace) -> dict[str, Any]:
    """The options that `srl train` and `srl resume` share, as arguments of `srl.arguments`."""
    from srl.overrides import parse_pairs

    settings = parse_pairs(args.set, "--set")
    if args.address is not None:
        settings["ray.address"] = args.address
    names = ("layout", "launcher", "listen", "steps", "seconds", "until", "device")
    return {**{name: getattr(args, name) for name in names}, "set": settings}


def _submit(experiment: Experiment, path: Path, args: argparse.Namespace, *, fresh: bool) -> int:
    """Submits a Slurm job. With `--wait` it waits for the job and reports the result."""
    from srl.run import submit_job, wait_for_run

    job = submit_job(experiment, path, fresh=fresh)
    if not args.quiet:
        print(
            f"job {job} is submitted\nfollow  srl status {path}\nend     scancel {job}", flush=True
        )
    if not args.wait:
        return 0
    return _report(wait_for_run(job, path), args.quiet)


def _report(run: Run, quiet: bool) -> int:
    summary = run.summary
    # A stopped run is not plotted, so that the command ends at once. `srl plot` draws it later.
    plot = _plot(run) if summary.status != "stopped" else None
    if not quiet:
        print(run.report(plot))
    return _exit_code(summary)


def _plot(run: Run) -> Path | None:
    """Draws the plot of a run; None if the run ended before its first measurement."""
    from srl.errors import RunError

    try:
        return run.plot()
    except RunError:
        return None


def _exit_code(summary: Summary) -> int:
    """0, or for a stopped run 128 plus the signal's number, as in a shell."""
    if summary.status != "stopped":
        return 0
    number = getattr(signal, summary.reason, signal.SIGINT)
    return 128 + int(number)
