"""`srl train` and `srl resume`: run an experiment to its end and say what came of it."""

from __future__ import annotations

import argparse
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from srl.cli.options import Verbs, add_limits, add_quiet, add_settings, add_verb, number

if TYPE_CHECKING:
    from srl.experiment import Experiment
    from srl.run import Run
    from srl.services.summary import Summary

_TRAIN_EXAMPLES = """
srl train cartpole
srl train CartPole-v1 --steps 200_000 --layout serial
srl train LunarLander-v3 --until 'return>=200' --set actor.envs=32
srl train envpool:Pong-v5 --steps 2M --set algorithm.learning_rate=5e-4
srl train my_env.py:MyEnv --env-arg size=8 --seconds 60
srl train cartpole --seeds 5 --run-dir runs/cartpole
srl train cartpole --layout remote      (the same on several hosts; here: agents on this machine)
srl train pong --launcher ray --address auto --set 'hosts={a: [actor], b: [actor]}'
srl train pong --launcher slurm --set slurm.partition=gpu --set slurm.time_minutes=720
srl train cartpole --run-dir runs/a     (again: goes on; --fresh: starts over)
"""

_RESUME_EXAMPLES = """
srl resume runs/cartpole-20250101-120000-seed1
srl resume runs/pong --steps 5M --layout shared
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds both verbs."""
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
    parser.add_argument("--seed", type=int, metavar="N", help="what all randomness starts from")
    parser.add_argument(
        "--seeds", type=number, metavar="N", help="train N seeds, one after another"
    )
    parser.add_argument("--device", metavar="D", help="cpu, cuda, cuda:1, auto")
    parser.add_argument(
        "--env-arg",
        action="append",
        default=[],
        metavar="K=V",
        help="an argument for the environment's constructor",
    )
    parser.add_argument(
        "--init-from", metavar="RUN", help="start with a run's weights (RUN or RUN@best)"
    )
    add_settings(parser)
    parser.add_argument(
        "--run-dir", metavar="DIR", help="where the run is kept; one that is there goes on"
    )
    parser.add_argument("--fresh", action="store_true", help="remove the run that is there first")
    add_quiet(parser)
    parser.set_defaults(run=_train)

    parser = add_verb(verbs, "resume", "go on with a run from its checkpoint", _RESUME_EXAMPLES)
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    add_limits(parser)
    add_settings(parser)
    add_quiet(parser)
    parser.set_defaults(run=_resume)


def _train(args: argparse.Namespace) -> int:
    from srl.errors import ConfigError
    from srl.launch.run_dir import new_run_dir
    from srl.overrides import parse_pairs
    from srl.run import assemble, is_for_slurm, start

    if args.seeds is not None and args.seeds < 1:
        raise ConfigError(f"--seeds: expected at least 1, got {args.seeds}.")
    settings = parse_pairs(args.set, "--set")
    if args.address is not None:
        settings["ray.address"] = args.address
    experiment = assemble(
        args.target,
        algorithm=args.algorithm,
        layout=args.layout,
        launcher=args.launcher,
        listen=args.listen,
        steps=args.steps,
        seconds=args.seconds,
        until=args.until,
        seed=args.seed,
        device=args.device,
        env_args=parse_pairs(args.env_arg, "--env-arg"),
        init_from=args.init_from,
        set=settings,
    )
    path = Path(args.run_dir) if args.run_dir else new_run_dir(experiment.name, experiment.seed)
    if args.seeds:
        return _train_seeds(experiment, path, args)
    if is_for_slurm(experiment):
        return _hand_in(experiment, path, args, fresh=args.fresh)
    run = start(experiment, path, fresh=args.fresh, quiet=args.quiet, begun=args.begun)
    return _report(run, args.quiet)


def _train_seeds(experiment: Experiment, path: Path, args: argparse.Namespace) -> int:
    """One run after another, then a table and one plot of all."""
    import dataclasses

    from srl.run import PLOT_FILE, start
    from srl.services.plotting import plot_runs

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
    if any(run.summary.episode_return_mean is not None for run in runs):
        print(f"plot  {plot_runs([run.path for run in runs], path / PLOT_FILE)}")
    return _exit_code(runs[-1].summary)


def seeds_table(rows: list[tuple[int, Summary]]) -> str:
    """How each seed went, and the mean over them."""
    import statistics

    lines = [f"{'seed':>4}  {'status':<8}  {'return':>9}  {'steps':>11}  {'seconds':>8}  steps/s"]

    def line(name: str, status: str, value: float | None, steps: float, seconds: float) -> str:
        shown = "-" if value is None else f"{value:.1f}"
        speed = steps / seconds if seconds else 0.0
        return (
            f"{name:>4}  {status:<8}  {shown:>9}  {steps:>11,.0f}  {seconds:>8.1f}  {speed:>7,.0f}"
        )

    for seed, s in rows:
        lines.append(line(str(seed), s.status, s.episode_return_mean, s.env_steps, s.seconds))
    known = [s.episode_return_mean for _, s in rows if s.episode_return_mean is not None]
    mean = statistics.fmean(known) if known else None
    steps = statistics.fmean(s.env_steps for _, s in rows)
    seconds = statistics.fmean(s.seconds for _, s in rows)
    lines.append(line("mean", "", mean, steps, seconds))
    return "\n".join(lines)


def _resume(args: argparse.Namespace) -> int:
    from srl.overrides import parse_pairs
    from srl.run import is_for_slurm, resumed, start

    settings: dict[str, Any] = parse_pairs(args.set, "--set")
    keys = ("layout", "launcher", "listen", "steps", "seconds", "until")
    given = {key: getattr(args, key) for key in keys}
    given["ray.address"] = args.address
    settings |= {key: value for key, value in given.items() if value is not None}
    experiment, path = resumed(args.directory, settings), Path(args.directory)
    if is_for_slurm(experiment):
        return _hand_in(experiment, path, args, fresh=False)
    run = start(experiment, path, quiet=args.quiet, begun=args.begun)
    return _report(run, args.quiet)


def _hand_in(experiment: Experiment, path: Path, args: argparse.Namespace, *, fresh: bool) -> int:
    """Hands in a Slurm job; how it went is reported only to those who wait for it."""
    from srl.run import hand_in, when_done

    job = hand_in(experiment, path, fresh=fresh)
    if not args.quiet:
        print(
            f"job {job} is handed in\nfollow  srl status {path}\nend     scancel {job}", flush=True
        )
    if not args.wait:
        return 0
    return _report(when_done(job, path), args.quiet)


def _report(run: Run, quiet: bool) -> int:
    from srl.services.console import final_report

    summary = run.summary
    # Whoever stops a run wants to be gone; `srl plot` draws it later.
    plot = _plot(run) if summary.status != "stopped" else None
    if not quiet:
        print(final_report(summary, run.path, plot))
    return _exit_code(summary)


def _plot(run: Run) -> Path | None:
    """The run's plot; one that ended before it measured anything has none."""
    from srl.errors import RunError

    try:
        return run.plot()
    except RunError:
        return None


def _exit_code(summary: Summary) -> int:
    """0, or as the shell has it for a command that a signal ended."""
    if summary.status != "stopped":
        return 0
    number = getattr(signal, summary.reason, signal.SIGINT)
    return 128 + int(number)
