"""`srl plot`, `srl list`, `srl settings`, `srl check`: show runs, names, settings, environments."""

from __future__ import annotations

import argparse
import textwrap
from pathlib import Path

from srl.cli.options import Verbs, add_env_args, add_verb

_PLOT_EXAMPLES = """
srl plot runs/cartpole
srl plot runs/a runs/b --output compare.png
srl plot runs/cartpole/seed*
"""
_LIST_EXAMPLES = """
srl list
srl list --envs | grep -i lander
"""
_SETTINGS_EXAMPLES = """
srl settings
srl settings pong
srl settings --search rate
"""
_CHECK_EXAMPLES = """
srl check CartPole-v1
srl check my_env.py:MyEnv --env-arg size=8
"""


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl plot`, `srl list`, `srl settings` and `srl check`."""
    parser = add_verb(
        verbs, "plot", "draw return, throughput and policy age of runs", _PLOT_EXAMPLES
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="folders of runs")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="a PNG (default: plot.png; for one run it is in the folder of the run)",
    )
    parser.set_defaults(run=_plot)

    parser = add_verb(
        verbs, "list", "list recipes, algorithms, policies and environments", _LIST_EXAMPLES
    )
    parser.add_argument(
        "--envs",
        action="store_true",
        help="list every environment id whose packages and libraries are installed",
    )
    parser.set_defaults(run=_list)

    parser = add_verb(verbs, "settings", "list every setting that --set takes", _SETTINGS_EXAMPLES)
    parser.add_argument("target", nargs="?", metavar="RECIPE_OR_ENV_ID", help="show its values")
    parser.add_argument("--algorithm", metavar="NAME", help="show the settings of this algorithm")
    add_env_args(parser)
    parser.add_argument("--search", metavar="TEXT", help="only settings that contain this text")
    parser.set_defaults(run=_settings)

    parser = add_verb(
        verbs, "check", "test whether an environment follows the protocol", _CHECK_EXAMPLES
    )
    parser.add_argument("env", metavar="ENV", help="an id, module:Class, file.py:Class or recipe")
    add_env_args(parser)
    parser.set_defaults(run=_check)


def _plot(args: argparse.Namespace) -> int:
    from srl.reporting.plotting import plot_runs
    from srl.run import PLOT_FILE

    paths = [Path(run) for run in args.runs]
    default = paths[0] / PLOT_FILE if len(paths) == 1 else Path(PLOT_FILE)
    print(plot_runs(paths, Path(args.output) if args.output else default))
    return 0


def _list(args: argparse.Namespace) -> int:
    if args.envs:
        from srl.envs.listing import list_envs

        print("\n".join(list_envs()))
        return 0
    from srl.algorithms.registry import ALGORITHMS
    from srl.policies.registry import POLICIES
    from srl.recipes import families, find_recipe

    print("Recipes (srl train NAME)")
    for family, names in families().items():
        print(f"  {family}")
        for name in names:
            meaning = (find_recipe(name).__doc__ or "").strip().splitlines()[0]
            print(f"    {name:<24}{meaning}")
    print("\nAlgorithms (--algorithm NAME, or module:Class)")
    for name, path in ALGORITHMS.items():
        print(f"  {name:<26}{path}")
    print("\nPolicies (--set network.name=NAME, or module:Class)")
    for name, path in POLICIES.items():
        print(f"  {name:<26}{path}")
    print("\nEnvironments (srl list --envs has every id)")
    for form, meaning in (
        ("CartPole-v1, ALE/Pong-v5", "Gymnasium"),
        ("envpool:Pong-v5", "EnvPool, many copies stepped by one call"),
        ("pettingzoo:mpe2.simple_tag_v3", "PettingZoo, parallel and turn-based"),
        ("jax:gymnax:CartPole-v1", "JAX, by Gymnax's or JaxMARL's interface"),
        ("module:Class, file.py:Class", "your own"),
        ("module:Id-v0, file.py:Id-v0", "your own, registered with Gymnasium"),
    ):
        print(f"  {form:<32}{meaning}")
    return 0


def _settings(args: argparse.Namespace) -> int:
    from srl.envs.protocol import EnvConfig
    from srl.experiment import Experiment
    from srl.overrides import list_settings, override, parse_pairs
    from srl.recipes.target import find_experiment

    experiment = Experiment(env=EnvConfig(id="(required)"))
    if args.target:
        env_args = parse_pairs(args.env_arg, "--env-arg")
        experiment = find_experiment(args.target, env_args, args.algorithm or "")
    elif args.algorithm:
        experiment = override(experiment, {"algorithm.name": args.algorithm})
    wanted = (args.search or "").lower()
    for setting in list_settings(experiment):
        if wanted in f"{setting.key} {setting.meaning}".lower():
            print(f"{setting.key} = {setting.value or repr('')}  ({setting.kind})")
            print(textwrap.indent(textwrap.fill(setting.meaning, 90), "    "))
    return 0


def _check(args: argparse.Namespace) -> int:
    from srl.envs.check import check_env
    from srl.envs.protocol import EnvConfig
    from srl.overrides import parse_pairs
    from srl.recipes import RECIPES, find_recipe

    env = EnvConfig(id=args.env)
    if args.env in RECIPES:
        env = find_recipe(args.env)().env
    env = EnvConfig(id=env.id, args={**env.args, **parse_pairs(args.env_arg, "--env-arg")})
    findings = check_env(env)
    for finding in findings:
        first, *more = finding.detail.splitlines()
        print(f"{finding.level:<8}{finding.title:<14}{first}")
        for line in more:
            print(f"{'':<22}{line}")
        if finding.level != "ok" and finding.fix:
            print(f"{'':<22}-> {finding.fix}")
    errors = sum(finding.level == "error" for finding in findings)
    warnings = sum(finding.level == "warning" for finding in findings)
    print(f"\n{env.id}: {errors} errors, {warnings} warnings")
    return 1 if errors else 0
