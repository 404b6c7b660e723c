"""`srl tune`: searches the settings that make a run fastest on this machine."""

from __future__ import annotations

import argparse

from srl.cli.options import Verbs, add_env_args, add_settings, add_verb

_EXAMPLES = """
srl tune cartpole
srl tune pong_envpool --seconds 180
srl tune LunarLander-v3 --set actor.envs=32
srl tune W2a --set layout=shared               (a workload of `srl bench`; what is set stays)
srl tune my_env.py:MyEnv --json
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl tune`."""
    parser = add_verb(
        verbs, "tune", "search the layout, counts and threads that are fastest here", _EXAMPLES
    )
    parser.add_argument(
        "target",
        metavar="RECIPE_OR_ENV_ID",
        help="what `srl train` takes, or a workload of `srl bench`",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=120.0,
        metavar="S",
        help="how long the search may take (default: 120)",
    )
    parser.add_argument(
        "--window",
        type=float,
        default=4.0,
        metavar="S",
        help="how long each attempt is measured, without its start-up (default: 4)",
    )
    add_env_args(parser)
    add_settings(parser)
    parser.add_argument("--json", action="store_true", help="print one line of JSON, and only that")
    parser.set_defaults(run=_tune)


def _tune(args: argparse.Namespace) -> int:
    import json
    import sys

    from srl.bench.bench import settled
    from srl.bench.trial import run_trial
    from srl.bench.tune import Search, as_record, command, search, table
    from srl.bench.workloads import WORKLOADS, find_target
    from srl.errors import ConfigError
    from srl.experiment import Experiment
    from srl.launch.plan.build import available_cores
    from srl.overrides import parse_pairs

    for name in ("seconds", "window"):
        if getattr(args, name) <= 0:
            raise ConfigError(f"--{name}: expected more than 0, got {getattr(args, name):g}.")
    given = parse_pairs(args.set, "--set")
    env_args = parse_pairs(args.env_arg, "--env-arg")
    experiment = find_target(args.target, None, given, env_args)

    def measure(ready: Experiment) -> float:
        return run_trial(ready, seconds=args.window, warmup=1.0).steps_per_second

    found = Search()
    heading = "Use"
    try:
        is_complete = search(
            experiment,
            measure,
            resolve_settings=lambda changed: settled(changed)[0],
            cores=available_cores(),
            seconds=args.seconds,
            fixed=set(given),
            say=lambda text: print(text, file=sys.stderr, flush=True),
            found=found,
        )
        if not is_complete:
            heading = (
                f"The search did not finish in {args.seconds:g} s (--seconds); the best so far"
            )
    except KeyboardInterrupt:
        if not found.attempts:
            raise
        heading = "Interrupted; the best so far"
    verb = "bench" if args.target in WORKLOADS else "train"
    line = command(verb, args.target, found, given, args.env_arg)
    if args.json:
        print(json.dumps(as_record(args.target, line, found)))
    else:
        print(table(found))
        print(f"\n{heading} ({found.gain}):\n  {line}")
    return 0
