"""`srl sweep`: searches settings, with trials as ordinary runs in one folder."""

from __future__ import annotations

import argparse
import shlex
import sys
import time
from pathlib import Path
from typing import Any

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

_EXAMPLES = """
srl sweep CartPole-v1 --steps 50_000 --search 'algorithm.learning_rate=log(1e-4,1e-2)' --trials 40
srl sweep cartpole --parallel 2 --search 'actor.envs=choice(8,16)' --search 'actor.groups=int(1,2)'
srl sweep LunarLander-v3 --seeds 3 --search 'algorithm.entropy_coefficient=uniform(0,0.02)'
srl sweep cartpole --metric steps --minimize --search 'algorithm.learning_rate=log(1e-4,1e-2)'
srl sweep pong --launcher slurm --parallel 16 --search 'algorithm.learning_rate=log(1e-5,1e-3)'
srl sweep sweeps/cartpole-20250101-120000     (goes on; --trials 80: with more trials)
"""
_TRAIN_OPTIONS = (
    *("algorithm", "layout", "launcher", "listen", "steps", "seconds", "until", "device"),
    "init_from",
)


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl sweep`."""
    parser = add_verb(
        verbs, "sweep", "search settings: many trials, pruned early, and the best one", _EXAMPLES
    )
    parser.add_argument(
        "target",
        metavar="RECIPE_OR_ENV_ID_OR_SWEEP",
        help="what to train, as for `srl train`; or the folder of a sweep that goes on",
    )
    parser.add_argument(
        "--search",
        action="append",
        default=[],
        metavar="KEY=SPACE",
        help="a setting and its values: log(a,b), uniform(a,b), int(a,b) or choice(x,y,...); may "
        "be given several times",
    )
    parser.add_argument(
        "--trials", type=number, metavar="N", help="trials of the whole sweep (default: 20)"
    )
    parser.add_argument(
        "--parallel", type=number, default=1, metavar="N",
        help="trials at once; on this machine each has its part of the cores (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--seeds", type=number, default=1, metavar="N",
        help="runs of each trial; the score is their mean (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--seed", type=int, default=1, metavar="N", help="first seed of the runs (default: 1)"
    )
    parser.add_argument(
        "--metric", default="return", metavar="NAME",
        help="the score of a run: the last value of a metric, named as for --until (default: "
        "return)",
    )  # fmt: skip
    parser.add_argument("--minimize", action="store_true", help="smaller scores are better")
    parser.add_argument(
        "--sampler", choices=("tpe", "random"), default="tpe", help="how values are chosen"
    )
    parser.add_argument(
        "--pruner",
        choices=("median", "hyperband", "none"),
        default="median",
        help="how bad trials are ended early; it needs --steps or --seconds (default: median)",
    )
    parser.add_argument(
        "--folder", metavar="DIR", help="the sweep's folder; a sweep that is there goes on"
    )
    parser.add_argument("--algorithm", metavar="NAME", help="as for `srl train`")
    add_limits(parser)
    parser.add_argument("--init-from", metavar="RUN", help="as for `srl train`")
    add_env_args(parser)
    add_settings(parser)
    add_quiet(parser)
    add_trust(parser)
    parser.set_defaults(run=_sweep)


def _sweep(args: argparse.Namespace) -> int:
    from srl.launch.run.signals import Interrupted
    from srl.sweep.report import draw, report
    from srl.sweep.sweep import Sweep

    def say(text: str) -> None:
        if not args.quiet:
            print(text, flush=True)

    folder, definition = _definition(args)
    sweep = Sweep(folder, definition, args.parallel, say)
    _keep(folder, definition)
    say(f"sweep  {folder}")
    try:
        study = sweep.run()
    except (KeyboardInterrupt, Interrupted):
        print(f"go on  srl sweep {shlex.quote(str(folder))}", file=sys.stderr)
        raise
    text = report(study, definition, sweep.space, folder)
    picture = draw(study, definition, sweep.space, folder)
    say(f"\n{text}\nplot  {picture}")
    return 0


def _definition(args: argparse.Namespace) -> tuple[Path, Any]:
    """The sweep's folder, and what the sweep does: from its file, or from the arguments."""
    import msgspec

    from srl.errors import ConfigError
    from srl.sweep.definition import is_sweep, read_definition

    if is_sweep(Path(args.target)):
        folder = Path(args.target)
        if args.search:
            raise ConfigError(
                f"--search: expected none for a sweep that goes on, got some. {folder} has its own."
            )
        definition = read_definition(folder, trust=args.trust)
    else:
        definition = _new_definition(args)
        folder = Path(args.folder) if args.folder else _new_folder(definition.train.target)
        if is_sweep(folder):
            before = read_definition(folder, trust=args.trust)
            if msgspec.structs.replace(before, trials=definition.trials) != definition:
                raise ConfigError(
                    f"{folder}: expected the same sweep as before, got other arguments. Choose "
                    f"another --folder, or go on with `srl sweep {shlex.quote(str(folder))}`."
                )
    if args.trials is not None:
        definition = msgspec.structs.replace(definition, trials=args.trials)
    return folder, definition


def _new_definition(args: argparse.Namespace) -> Any:
    from srl.overrides import parse_pairs
    from srl.recipes.target import absolute
    from srl.sweep.definition import SweepDefinition, TrainArguments

    settings = parse_pairs(args.set, "--set")
    if args.address is not None:
        settings["ray.address"] = args.address
    given = {name: getattr(args, name) for name in _TRAIN_OPTIONS}
    train = TrainArguments(
        target=absolute(args.target),
        options={name: value for name, value in given.items() if value is not None},
        env_args=parse_pairs(args.env_arg, "--env-arg"),
        set=settings,
    )
    return SweepDefinition(
        train=train,
        search=args.search,
        trials=20 if args.trials is None else args.trials,
        seeds=args.seeds,
        seed=args.seed,
        metric=args.metric,
        minimize=args.minimize,
        sampler=args.sampler,
        pruner=args.pruner,
    )


def _new_folder(target: str) -> Path:
    import re

    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", target.rpartition(":")[2]).strip("-") or "sweep"
    return Path("sweeps") / f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}"


def _keep(folder: Path, definition: Any) -> None:
    """Writes the definition, now that it is known to be one."""
    from srl.errors import ConfigError
    from srl.extras import require
    from srl.sweep.definition import write_definition

    require("optuna", "srl sweep")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_definition(folder, definition)
    except OSError as error:
        raise ConfigError(f"--folder: cannot write into {folder} ({error.strerror}).") from None
