"""How fast the same workload trains in each layout on one machine.

Measures environment steps consumed by training per second, layouts by turns, several rounds. In
`remote` actors and policy workers are on hosts of their own, reached through loopback sockets with
keys: what the network layer costs, not what a second machine gains. Leaves out: start-up.

    python benchmarks/bench_layouts.py [W1a W2a ...] [--layouts inline shared] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics

from results import write_result

from srl.bench.trial import run_trial
from srl.bench.workloads import find_target
from srl.launch.plan.build import available_cores, resolve_settings

LAYOUTS = ("serial", "inline", "shared", "remote")


def measure(workload: str, layout: str, seconds: float) -> tuple[float, float]:
    """Steps per second, and the mean policy age."""
    experiment = resolve_settings(find_target(workload, layout, {}), available_cores(), "cpu")
    rate = run_trial(experiment, seconds=seconds, warmup=3.0)
    return rate.steps_per_second, rate.policy_age_mean


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workloads", nargs="*", default=["W1a", "W2a", "W3a"])
    parser.add_argument("--layouts", nargs="+", choices=LAYOUTS, default=LAYOUTS)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table into results/")
    options = parser.parse_args()
    found: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(1, options.rounds + 1):
        for workload in options.workloads:
            for layout in options.layouts:
                speed, age = measure(workload, layout, options.seconds)
                found.setdefault((workload, layout), []).append((speed, age))
                print(f"round {number}  {workload} {layout:7s} {speed:,.0f} steps/s", flush=True)
    base = "inline" if "inline" in options.layouts else options.layouts[0]
    lines = [
        f"{options.rounds} rounds of {options.seconds:g} s, layouts by turns.",
        "",
        f"| workload | layout | steps/s, median | spread | of {base} | policy age, mean |",
        "|---|---|---|---|---|---|",
    ]
    for (workload, layout), rounds in found.items():
        speeds = [speed for speed, _ in rounds]
        median = statistics.median(speeds)
        compared = statistics.median(speed for speed, _ in found[workload, base])
        age = statistics.mean(age for _, age in rounds)
        spread = f"{min(speeds):,.0f} - {max(speeds):,.0f}"
        of = f"{median / compared:.2f}"
        lines.append(f"| {workload} | {layout} | {median:,.0f} | {spread} | {of} | {age:.2f} |")
    print("\n".join(lines))
    if options.write:
        some = () if set(options.layouts) == set(LAYOUTS) else options.layouts
        print(write_result("_".join(["layouts", *some]), __doc__, lines))
    print(
        json.dumps({" ".join(key): [speed for speed, _ in rounds] for key, rounds in found.items()})
    )


if __name__ == "__main__":
    main()
