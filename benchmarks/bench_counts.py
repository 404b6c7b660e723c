"""Whether counts that nobody has chosen are near the best.

Trains workloads and recipes as they come, and with one or two counts changed, by turns, in short
windows (steps that went through an update). The ratio is to the run as it comes in the same round:
above 1 the default could be better. Leaves out: start-up, and all machines but this one.

    python benchmarks/bench_counts.py [TARGET ...] [--rounds 3] [--seconds 8] [--write]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
from typing import Any

from results import write_result

from srl.bench.bench import settled
from srl.bench.trial import run_trial
from srl.bench.workloads import find_target
from srl.experiment import Experiment

Change = dict[str, Any]

ONE, TWO = {"actor.count": 1}, {"actor.count": 2}
RING = {"actor.groups": 2}
SLOW, FAST = {"trainer.threads": 1}, {"trainer.threads": 2}
APART, TOGETHER = {"layout": "shared"}, {"layout": "serial"}
SPIN = {"GOMP_SPINCOUNT": 300000}
"""As threads wait for each other where nobody sets anything (names in capitals are variables)."""
AS_IT_COMES = "as it comes"
CASES: dict[str, list[Change]] = {
    "W1a": [TWO, RING, APART, TOGETHER],
    "W1b": [TWO, FAST, APART],
    "W2a": [TWO, {"env.threads": 1}, RING, FAST, APART],
    "W2b": [SLOW, SPIN, APART, {**APART, **SLOW}],
    "W3a": [ONE, RING, APART, {**APART, **RING}, TOGETHER],
    "W3b": [ONE, FAST, APART, {**APART, **RING}],
    "W4": [TWO, APART],
    "W5": [ONE, APART],
    "cartpole": [TWO, APART],
    "lunarlander": [ONE, APART],
    "halfcheetah": [TWO],
    "memory": [TWO],
    "simple_spread": [ONE],
}
"""By target: what is tried beside the run as it comes."""


def shown(change: Change) -> str:
    """Settings as the command line has them."""
    return " ".join(f"{key}={value}" for key, value in change.items()) or AS_IT_COMES


def experiment_of(target: str, change: Change) -> Experiment:
    """The experiment as it runs here."""
    changed = {k: v for k, v in change.items() if k != "layout" and not k.isupper()}
    return settled(find_target(target, change.get("layout", "auto"), changed))[0]


def rows_of(target: str, speeds: dict[str, list[float]]) -> list[str]:
    """A line for each way to run a target."""
    plain = speeds[AS_IT_COMES]
    lines = []
    for name, found in speeds.items():
        ratios = sorted(one / base for one, base in zip(found, plain, strict=True))
        ratio = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
        steps = f"{statistics.median(found):,.0f} ({min(found):,.0f}-{max(found):,.0f})"
        as_it_comes = name == AS_IT_COMES
        lines.append(f"| {target} | {name} | {steps} | {'' if as_it_comes else ratio} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("targets", nargs="*", default=list(CASES), metavar="TARGET")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    options = parser.parse_args()
    for target in options.targets:
        if target not in CASES:
            parser.error(f"TARGET: expected some of {', '.join(CASES)}, got {target}")
    lines = ["| target | settings | steps/s, median (spread) | ratio |", "|---|---|--:|--:|"]
    for target in options.targets:
        changes = [{}, *CASES[target]]
        speeds: dict[str, list[float]] = {shown(change): [] for change in changes}
        for number in range(options.rounds):
            for change in changes:
                experiment = experiment_of(target, change)
                variables = {key: str(value) for key, value in change.items() if key.isupper()}
                os.environ.update(variables)
                rate = run_trial(experiment, seconds=options.seconds, warmup=3.0)
                for key in variables:
                    del os.environ[key]
                speeds[shown(change)].append(rate.steps_per_second)
                said = f"{target}, round {number + 1}: {shown(change)}"
                print(f"{said}: {rate.steps_per_second:,.0f}", file=sys.stderr, flush=True)
        lines += rows_of(target, speeds)
        if options.write:
            write_result("counts", __doc__, lines)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
