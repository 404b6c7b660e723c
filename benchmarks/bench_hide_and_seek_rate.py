"""How fast the faithful game trains with the published network, and what whole runs would take.

Trains the quadrant (two against two, the original time step, 1.6 million parameters) in several
layouts, and from the cores' time of a step computes what 132.3 million episodes of 240 steps, until
seekers' ramps are defended against, would take. Settings are the recipe's but for the number of
environments, which keeps updates short. In `remote` the hosts are processes of this machine. Leaves
out: start-up, GPUs, and what a network between many machines costs.

    python benchmarks/bench_hide_and_seek_rate.py --write
    python benchmarks/bench_hide_and_seek_rate.py --games hide_and_seek --layouts inline --rounds 1

Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator

from results import write_result

from srl.bench.trial import Rate, run_trial
from srl.bench.workloads import find_target
from srl.launch.plan.build import available_cores, resolve_settings

EPISODES, STEPS = 132.3e6, 240
"""Episodes to ramp defence with the largest batch (Baker et al. 2019), and their steps."""
OPENAI_HOURS = 34.0
"""Wall clock of that run."""
SPEED_UP = 5.0
"""How much faster than that the SRL paper is at most, by its abstract."""


def measure(game: str, layout: str, envs: int, seconds: float) -> Rate:
    """Trains for a window."""
    target = find_target(game, layout, {"actor.envs": envs})
    experiment = resolve_settings(target, available_cores(), "cpu")
    return run_trial(experiment, seconds=seconds, warmup=1.0)


def share_rows(found: dict[tuple[str, str], list[Rate]]) -> Iterator[str]:
    """Steps per second, and for each kind of worker its cores' time and how busy it was."""
    yield "| game | layout | steps/s, median | spread | core-ms per step by kind | busy |"
    yield "|---|---|---|---|---|---|"
    for (game, layout), rates in found.items():
        speeds = [rate.steps_per_second for rate in rates]
        middle = middle_of(rates)
        used = [f"{k} {1e3 * s:.2f}" for k, s in middle.core_seconds.items() if s > 0]
        busy = [f"{k} {100 * v.get('busy', 0.0):.0f} %" for k, v in middle.workers.items()]
        spread = f"{min(speeds):,.0f} - {max(speeds):,.0f}"
        cells = (game, layout, f"{statistics.median(speeds):,.0f}", spread)
        yield f"| {' | '.join(cells)} | {', '.join(used)} | {', '.join(busy)} |"


def middle_of(rates: list[Rate]) -> Rate:
    """The round whose speed is the median."""
    return sorted(rates, key=lambda rate: rate.steps_per_second)[len(rates) // 2]


def whole_run_rows(found: dict[tuple[str, str], list[Rate]]) -> Iterator[str]:
    """What the published number of episodes would take at the measured cost of a step."""
    steps = EPISODES * STEPS
    yield "| run | steps/s | core-hours | cores for 34 h | of these without trainers |"
    yield "|---|---|---|---|---|"
    for (game, layout), rates in found.items():
        cost = middle_of(rates).core_seconds
        hours = steps * sum(cost.values()) / 3600
        acting = hours - steps * cost.get("trainer", 0.0) / 3600
        cells = [f"{1 / sum(cost.values()):,.0f} a core", f"{hours:,.0f}"]
        cells += [f"{hours / OPENAI_HOURS:,.0f}", f"{acting / OPENAI_HOURS:,.0f}"]
        yield f"| {game}, {layout}, here | {' | '.join(cells)} |"
    rate = steps / OPENAI_HOURS / 3600
    yield f"| OpenAI, with GPUs: 34 h | {rate:,.0f} in all | not published | | |"
    fast = f"{OPENAI_HOURS / SPEED_UP:.1f} h at best"
    yield f"| SRL paper, with GPUs: {fast} | {SPEED_UP * rate:,.0f} in all | not published | | |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", default=["hide_and_seek_quadrant"])
    parser.add_argument("--layouts", nargs="+", default=["inline", "shared", "remote"])
    parser.add_argument("--envs", type=int, default=16, help="worlds of each actor")
    parser.add_argument("--seconds", type=float, default=90.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="into benchmarks/results")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[Rate]] = {}
    for number in range(1, options.rounds + 1):
        for game in options.games:
            for layout in options.layouts:
                rate = measure(game, layout, options.envs, options.seconds)
                found.setdefault((game, layout), []).append(rate)
                text = f"{game} {layout:7s} {rate.steps_per_second:,.0f} steps/s"
                print(f"round {number}  {text}", file=sys.stderr, flush=True)
    lines = [
        f"{options.rounds} rounds of {options.seconds:g} s by turns, {options.envs} worlds each.",
        "",
        *share_rows(found),
        "",
        f"{EPISODES / 1e6:g} million episodes of {STEPS} steps are {EPISODES * STEPS / 1e9:.2f} "
        "billion steps. Cores for 34 h assume that speed grows with cores.",
        "",
        *whole_run_rows(found),
    ]
    print("\n".join(lines), file=sys.stderr)
    if options.write:
        print(write_result("hide_and_seek_rate", __doc__, lines), file=sys.stderr)
    speeds = {" ".join(key): [r.steps_per_second for r in rates] for key, rates in found.items()}
    print(json.dumps({"benchmark": "hide_and_seek_rate", "steps_per_second": speeds}))


if __name__ == "__main__":
    main()
