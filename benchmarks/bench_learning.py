"""Whether the layouts give the same learning: environment steps until a recipe is solved.

For every seed and layout, a recipe is trained until its condition holds (CartPole: a mean return of
475 over the last 100 episodes), and the environment steps to it are counted. *Same learning* means
that every seed reaches it in every layout, and that the median number of steps is within 1.3 times
that of `serial`. Other work on the machine does not change the steps of `serial`, which are the
same to the last bit, and elsewhere only as far as it changes which fragments meet in a batch.
Leaves out: seconds, which are shown, but are no measurement of speed (see `srl bench`).

    python benchmarks/bench_learning.py [RECIPE] [--seeds 5] [--layouts serial inline ...] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass

from results import write_result

import srl

LAYOUTS = ("serial", "inline", "shared", "remote")
MOST = 1.3
"""How many times the steps of `serial` another layout may take."""


@dataclass(frozen=True)
class Outcome:
    """One run."""

    layout: str
    seed: int
    reached: bool
    env_steps: int
    episode_return: float
    seconds: float


def measure(recipe: str, layouts: list[str], seeds: int) -> Iterator[Outcome]:
    for seed in range(1, seeds + 1):
        for layout in layouts:
            with tempfile.TemporaryDirectory() as folder:
                run = srl.train(recipe, layout=layout, seed=seed, run_dir=folder, quiet=True)
                summary = run.summary
            outcome = Outcome(
                layout=layout,
                seed=seed,
                reached=summary.reason.startswith("reached"),
                env_steps=summary.env_steps,
                episode_return=summary.episode_return_mean or 0.0,
                seconds=summary.seconds,
            )
            print(f"{outcome}", file=sys.stderr, flush=True)
            yield outcome


def compare(outcomes: list[Outcome], layouts: list[str]) -> dict[str, dict[str, float | bool]]:
    """Per layout: the median, its ratio to the first layout's, and whether that is the same."""
    found: dict[str, dict[str, float | bool]] = {}
    for layout in layouts:
        mine = [outcome for outcome in outcomes if outcome.layout == layout]
        median = statistics.median(outcome.env_steps for outcome in mine)
        reference = found[layouts[0]]["median_steps"] if found else median
        found[layout] = {
            "reached": sum(outcome.reached for outcome in mine),
            "runs": len(mine),
            "median_steps": median,
            "ratio": round(median / reference, 2),
            "same": all(outcome.reached for outcome in mine) and median <= MOST * reference,
        }
    return found


def table(outcomes: list[Outcome], summary: dict[str, dict[str, float | bool]]) -> list[str]:
    seeds = sorted({outcome.seed for outcome in outcomes})
    steps = {(o.layout, o.seed): f"{o.env_steps:,}" for o in outcomes}
    missed = {(o.layout, o.seed) for o in outcomes if not o.reached}
    lines = [
        "| layout | "
        + " | ".join(f"seed {seed}" for seed in seeds)
        + " | median | / first | same |",
        "|---|" + "--:|" * (len(seeds) + 2) + "---|",
    ]
    for layout, row in summary.items():
        cells = [
            steps[layout, seed] + (" (not reached)" if (layout, seed) in missed else "")
            for seed in seeds
        ]
        cells += [f"{row['median_steps']:,.0f}", f"{row['ratio']:.2f}"]
        lines.append(f"| {layout} | " + " | ".join([*cells, "yes" if row["same"] else "NO"]) + " |")
    seconds = {layout: [o.seconds for o in outcomes if o.layout == layout] for layout in summary}
    lines += ["", "Environment steps until the condition held."]
    lines += [
        "Seconds of training (median; the machine may have been busy with other work): "
        + ", ".join(f"{layout} {statistics.median(s):.0f}" for layout, s in seconds.items())
        + "."
    ]
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("recipe", nargs="?", default="cartpole")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--layouts", nargs="+", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--note", default="", help="a line about the circumstances")
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    options = parser.parse_args()
    outcomes = list(measure(options.recipe, options.layouts, options.seeds))
    summary = compare(outcomes, options.layouts)
    lines = table(outcomes, summary)
    if options.note:
        lines += ["", options.note]
    if options.write:
        print(write_result("learning", __doc__, lines), file=sys.stderr)
    print("\n".join(lines), file=sys.stderr)
    print(json.dumps({"benchmark": "learning", "recipe": options.recipe, "layouts": summary}))


if __name__ == "__main__":
    main()
