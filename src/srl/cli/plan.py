"""`srl plan`: the topology of an experiment before anything starts, as text and as a drawing."""

from __future__ import annotations

import argparse
from pathlib import Path

from srl.cli.options import LAYOUTS, Verbs, add_settings, add_verb

_EXAMPLES = """
srl plan cartpole
srl plan simple_tag --layout shared --output tag.svg
srl plan cartpole --layout shared --set actor.count=4
srl plan cartpole --layout remote --set 'hosts={a: [actor], b: [policy]}'
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "plan", "print and draw processes, workers and streams", _EXAMPLES)
    parser.add_argument("target", metavar="RECIPE_OR_ENV_ID", help="what would be trained")
    parser.add_argument("--layout", choices=LAYOUTS, help="as for `srl train`")
    add_settings(parser)
    parser.add_argument("--output", metavar="FILE", help="writes the drawing (SVG) here")
    parser.set_defaults(run=_plan)


def _plan(args: argparse.Namespace) -> int:
    from srl.cli.plan_svg import draw_plan
    from srl.cli.plan_text import describe_plan
    from srl.envs.registry import probe
    from srl.errors import ConfigError
    from srl.experiment import build_graph
    from srl.launch.placement import spread
    from srl.launch.plan import available_cores, choose_device, make_plan, process_names, settle
    from srl.overrides import parse_pairs
    from srl.run import assemble

    experiment = assemble(args.target, layout=args.layout, set=parse_pairs(args.set, "--set"))
    device = choose_device(experiment.trainer.device)
    settled = settle(experiment, available_cores(), device)
    plan, _ = make_plan(settled, probe(settled.env), device)
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
