"""`srl bench`: how fast a workload runs, and the limit of this machine for it."""

from __future__ import annotations

import argparse

from srl.cli.options import LAYOUTS, Verbs, add_env_args, add_settings, add_verb

_EXAMPLES = """
srl bench                                     (lists the workloads)
srl bench W1a
srl bench W2a --seconds 60 --layout auto --json
srl bench W1a W1b W3a --rounds 3
srl bench W1a --seconds 20 --parts none       (training only)
srl bench W2a --set trainer.threads=2 --set actor.count=2
srl bench cartpole --seconds 20               (any recipe or environment)
srl bench envpool:Breakout-v5 --layout shared
srl bench all                                 (every workload, one after another)
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl bench`."""
    parser = add_verb(
        verbs,
        "bench",
        "measure training speed: environment only, + inference, + training, and the limit",
        _EXAMPLES,
    )
    parser.add_argument(
        "workloads",
        nargs="*",
        metavar="WORKLOAD",
        help="W1a ... W5, a recipe or an environment; `all` is every workload; no name lists them",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=60.0,
        metavar="S",
        help="how long training is measured; each of the two other measurements takes a third of "
        "it, at most 10 s (default: 60)",
    )
    parser.add_argument(
        "--warmup",
        type=float,
        default=5.0,
        metavar="S",
        help="seconds of learning before a measurement begins (default: 5)",
    )
    parser.add_argument(
        "--layout", choices=LAYOUTS, default="auto", help="how workers are placed (default: auto)"
    )
    parser.add_argument(
        "--rounds", type=int, default=1, metavar="N", help="measure N times and give the median"
    )
    parser.add_argument(
        "--parts",
        choices=("all", "limit", "none"),
        default="all",
        help="what is measured beside training: environments alone, with inference and the limit "
        "(all); only the limit; or nothing (default: all)",
    )
    add_env_args(parser)
    add_settings(parser)
    parser.add_argument(
        "--json", action="store_true", help="print one line of JSON per workload, and only that"
    )
    parser.set_defaults(run=_bench)


def _bench(args: argparse.Namespace) -> int:
    import json
    import sys

    from srl.bench.bench import as_record, measure
    from srl.bench.report import describe, list_workloads, settings_line
    from srl.bench.workloads import WORKLOADS, find_target
    from srl.errors import ConfigError
    from srl.overrides import parse_pairs

    if not args.workloads:
        print(list_workloads())
        print("\nsrl bench NAME measures one, `srl bench all` every one of them.")
        return 0
    for name, least in (("seconds", 1.0), ("warmup", 0.0), ("rounds", 1)):
        if getattr(args, name) < least:
            raise ConfigError(
                f"--{name}: expected at least {least:g}, got {getattr(args, name):g}."
            )
    names = list(WORKLOADS) if args.workloads == ["all"] else args.workloads
    settings = parse_pairs(args.set, "--set")
    env_args = parse_pairs(args.env_arg, "--env-arg")
    # All names are looked up first, so that a wrong one fails now and not after an hour.
    targets = {name: find_target(name, args.layout, settings, env_args) for name in names}
    for name, experiment in targets.items():
        result = measure(
            name,
            experiment,
            seconds=args.seconds,
            warmup=args.warmup,
            rounds=args.rounds,
            parts=args.parts,
            say=lambda text: print(text, file=sys.stderr, flush=True),
        )
        record = as_record(result)
        if args.json:
            print(json.dumps(record), flush=True)
        else:
            print(f"{describe(record)}\n  {'equal settings':<20} {settings_line(record)}")
            print(f"  {'machine':<20} {record['machine']}, commit {record['commit']}", flush=True)
    return 0
