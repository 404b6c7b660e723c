"""What a part of a workload costs beside a copy of itself, and beside each other part.

The limit of a workload counts what environments, inference and training cost while every core runs
a copy of the same part. In a run different parts are beside each other, and share caches, memory
and, on many virtual machines, one physical core. Measures, by turns: processor time of one part for
each environment step while one other process runs a part all the time. Leaves out: streams,
fragments, and all that a run does between its parts.

    python benchmarks/bench_beside.py [W2a W3b ...] [--seconds 2] [--rounds 3] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys

from results import write_result

from srl.bench.copies import Copies, CopyOrder, setup_of
from srl.bench.costs import one_thread, rollout_length, updates_of
from srl.bench.workloads import WORKLOADS, find_target
from srl.experiment import Experiment
from srl.launch.plan.build import available_cores, choose_device, resolve_settings

Costs = dict[tuple[str, str], list[float]]
"""Microseconds of an environment step: of the first part beside the second, in each round."""


def measure(experiment: Experiment, seconds: float, rounds: int) -> Costs:
    device = choose_device(experiment.trainer.device)
    settled = resolve_settings(experiment, available_cores(), device)
    actor = settled.actor
    group = actor.envs // (actor.count * actor.groups)
    batch = actor.envs * rollout_length(settled)
    sizes = tuple(sorted({group, actor.envs}))
    parts = {"env": (group, group), "inference": (group, group)}
    parts |= {update: (actor.envs, batch) for update in updates_of(settled)}
    found: Costs = {}
    with Copies(2, setup_of(one_thread(settled), device, sizes, (actor.envs,))) as copies:
        for _ in range(rounds):
            for part, (envs, steps) in parts.items():
                for other, (others_envs, _) in parts.items():
                    orders = [
                        CopyOrder(part=part, envs=envs, seconds=seconds),
                        # Longer, so that it is there until the end.
                        CopyOrder(part=other, envs=others_envs, seconds=seconds + 0.5),
                    ]
                    taken = copies.run_each(orders)[0]
                    found.setdefault((part, other), []).append(taken.cpu / steps * 1e6)
    return found


def rows(name: str, costs: Costs) -> list[str]:
    lines = []
    for (part, other), values in costs.items():
        ratios = [a / b for a, b in zip(values, costs[part, part], strict=True)]
        median = statistics.median(values)
        more = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        more = "-" if part == other else more
        lines.append(f"| {name} | {part} | {other} | {median:.3g} | {more} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("workloads", nargs="*", default=["W1a", "W2a", "W3a"])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table into results/")
    args = parser.parse_args()
    unknown = sorted(set(args.workloads) - set(WORKLOADS))
    if unknown:
        parser.error(f"expected some of {', '.join(WORKLOADS)}, got {', '.join(unknown)}")
    lines = [
        "| workload | part | beside | us of a step | beside its copy = 1 |",
        "|---|---|---|--:|--:|",
    ]
    for name in args.workloads:
        costs = measure(find_target(name, None, {}), args.seconds, args.rounds)
        lines += rows(name, costs)
        plain = {f"{part} beside {other}": values for (part, other), values in costs.items()}
        print(json.dumps({"workload": name, **plain}), flush=True)
        if args.write:
            write_result("beside", __doc__ or "", lines)
    print("\n".join(lines), file=sys.stderr)


if __name__ == "__main__":
    main()
