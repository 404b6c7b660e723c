"""`srl tune`: the settings that make a run fastest on this machine."""

from __future__ import annotations

import argparse

from srl.cli.options import Verbs, add_settings, add_verb

_EXAMPLES = """
srl tune cartpole
srl tune pong_envpool --seconds 180
srl tune LunarLander-v3 --set actor.envs=32
srl tune W2a --set layout=shared               (a workload of `srl bench`; what is set stays)
srl tune my_env.py:MyEnv --json
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(
        verbs, "tune", "search layout, counts and threads that are fastest here", _EXAMPLES
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
        help="how long each try is measured, start-up left out (default: 4)",
    )
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
    from srl.launch.plan import available_cores
    from srl.overrides import parse_pairs

    for name in ("seconds", "window"):
        if getattr(args, name) <= 0:
            raise ConfigError(f"--{name}: expected more than 0, got {getattr(args, name):g}.")
    given = parse_pairs(args.set, "--set")
    experiment = find_target(args.target, None, given)

    def measure(ready: Experiment) -> float:
        return run_trial(ready, seconds=args.window, warmup=1.0).steps_per_second

    found = Search()
    end = "Use"
    try:
        whole = search(
            experiment,
            measure,
            settle=lambda changed: settled(changed)[0],
            cores=available_cores(),
            seconds=args.seconds,
            fixed=set(given),
            say=lambda text: print(text, file=sys.stderr, flush=True),
            found=found,
        )
        if not whole:
            end = f"Not all was tried in {args.seconds:g} s (--seconds); the best so far"
    except KeyboardInterrupt:
        if not found.attempts:
            raise
        end = "Interrupted; the best so far"
    line = command("bench" if args.target in WORKLOADS else "train", args.target, found, given)
    if args.json:
        print(json.dumps(as_record(args.target, line, found)))
    else:
        print(table(found))
        print(f"\n{end} ({found.gain}):\n  {line}")
    return 0
