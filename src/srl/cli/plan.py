"""`srl plan`: prints and draws the topology of an experiment before anything starts."""

from __future__ import annotations

import argparse
from pathlib import Path

from srl.cli.options import LAYOUTS, Verbs, add_env_args, add_settings, add_verb

_EXAMPLES = """
srl plan cartpole
srl plan simple_tag --layout shared --output tag.svg
srl plan cartpole --layout shared --set actor.count=4
srl plan my_env.py:MyEnv --env-arg size=8
srl plan cartpole --layout remote --set 'hosts={a: [actor], b: [policy]}'
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl plan`."""
    parser = add_verb(verbs, "plan", "print and draw processes, workers and streams", _EXAMPLES)
    parser.add_argument(
        "target", metavar="RECIPE_OR_ENV_ID", help="a recipe or an environment, as for `srl train`"
    )
    parser.add_argument("--layout", choices=LAYOUTS, help="as for `srl train`")
    parser.add_argument("--algorithm", metavar="NAME", help="as for `srl train`")
    parser.add_argument("--device", metavar="D", help="as for `srl train`")
    add_env_args(parser)
    add_settings(parser)
    parser.add_argument("--output", metavar="FILE", help="write the drawing (SVG) to this file")
    parser.set_defaults(run=_plan)


def _plan(args: argparse.Namespace) -> int:
    from srl.arguments import assemble
    from srl.cli.plan_svg import draw_plan
    from srl.cli.plan_text import describe_plan
    from srl.errors import ConfigError
    from srl.experiment import build_graph
    from srl.launch.plan.build import (
        available_cores,
        check_devices,
        choose_device,
        make_plan,
        process_names,
        resolve_settings,
    )
    from srl.launch.plan.placement import spread
    from srl.launch.plan.probing import probe_groups
    from srl.overrides import parse_pairs

    experiment = assemble(
        args.target,
        algorithm=args.algorithm,
        layout=args.layout,
        device=args.device,
        env_args=parse_pairs(args.env_arg, "--env-arg"),
        set=parse_pairs(args.set, "--set"),
    )
    check_devices(experiment)
    device = choose_device(experiment.trainer.device)
    settled = resolve_settings(experiment, available_cores(), device)
    plan, _ = make_plan(settled, probe_groups(settled).spec, device)
    placed = process_names(build_graph(settled), settled)
    where = spread(placed, settled.hosts, apart=settled.trainer.trust_network)
    print(describe_plan(plan, where))
    if args.output:
        output = Path(args.output)
        try:
            output.parent.mkdir(parents=True, exist_ok=True)
            output.write_text(draw_plan(plan, where))
        except OSError as error:
            raise ConfigError(f"--output: cannot write {output} ({error.strerror}).") from None
        print(f"\ndrawing  {output}")
    return 0
