"""What each thing that was tried for speed gains by itself.

Measures PPO's optimizer steps (gather, forward, objective, backward, clipping, Adam) and the choice
of actions in plain torch, with one thing switched on at a time and with ours, each in a process of
its own, by turns. The ratio is to plain torch in the same round. Leaves out: environments, streams,
and what compiling takes (it is in a column of its own).

    python benchmarks/bench_tried.py [--rounds 3] [--threads 1] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import torch
from bench_kernels import Ours, OurTowers, rate
from plain_torch import TRIED, PlainNature, PlainTowers
from results import write_result

WORK = {
    "nature": ({"training 256": 256, "training 1024": 1024}, 1024, {"acting 8": 8}),
    "towers": ({"training 256": 256, "training 2048": 2048}, 2048, {"acting 64": 64}),
}
"""By network: minibatches to learn from, samples of a rollout, rows to act for."""
NOT_FOR = {
    "nature": ("tanh by sigmoid",),
    "towers": ("channels last", "scale in weights", "space to depth", "gradient in blocks"),
}
OURS, PLAIN = "ours", "plain torch"


def measure(network: str, name: str, threads: int) -> dict[str, float]:
    """Samples per second by what is done, and the seconds of the first call."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    training, total, acting = WORK[network]
    kind = {"nature": (Ours, PlainNature), "towers": (OurTowers, PlainTowers)}[network]
    tried = frozenset() if name in (OURS, PLAIN) else frozenset({name})
    contender = kind[0]() if name == OURS else kind[1](tried)
    found = {}
    start = time.perf_counter()
    calls = {what: (contender.training(size, total), total) for what, size in training.items()}
    calls |= {what: (contender.acting(size), size) for what, size in acting.items()}
    for call, _ in calls.values():
        call()
    found["first calls"] = time.perf_counter() - start
    for what, (call, samples) in calls.items():
        found[what] = rate(call, samples, 2.0)
    return found


def run(network: str, name: str, threads: int) -> dict[str, float] | None:
    """`measure` in a process of its own; None if it failed."""
    command = [sys.executable, __file__, "--contender", name, "--network", network]
    command += ["--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        print(f"  {name}: {done.stderr.strip().splitlines()[-1]}", file=sys.stderr)
        return None
    found: dict[str, float] = json.loads(done.stdout)
    return found


def rows_of(network: str, names: list[str], rounds: list[dict[str, dict[str, float]]]) -> list[str]:
    """The lines of a network's table; a contender counts in the rounds in which it ran."""
    training, _, acting = WORK[network]
    columns = [*training, *acting]
    lines = [
        f"| {network} | {' | '.join(columns)} | first calls, s |",
        "|---|" + "---|" * (len(columns) + 1),
    ]
    for name in names:
        ran = [r for r in rounds if name in r]
        if not ran:
            lines.append(f"| {name} | {' | '.join(['failed'] * len(columns))} | |")
            continue
        cells = []
        for what in columns:
            speeds = [r[name][what] for r in ran]
            ratios = sorted(r[name][what] / r[PLAIN][what] for r in ran)
            middle = statistics.median(ratios)
            cells.append(
                f"{statistics.median(speeds):,.0f}/s"
                if name == PLAIN
                else f"{middle:.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})"
            )
        first = statistics.median(r[name]["first calls"] for r in ran)
        lines.append(f"| {name} | {' | '.join(cells)} | {first:.1f} |")
    return [*lines, ""]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--contender", help=argparse.SUPPRESS)
    parser.add_argument("--network", choices=list(WORK), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(measure(options.network, options.contender, options.threads)))
        return
    lines = [
        f"{options.threads} thread(s), {options.rounds} rounds. Samples per second of plain torch",
        "(median); of the others their ratio to it in each round: median (least to most).",
        "",
    ]
    for network in WORK:
        names = [PLAIN, *(name for name in TRIED if name not in NOT_FOR[network]), OURS]
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(options.rounds):
            print(f"{network}, round {number + 1} of {options.rounds}", file=sys.stderr)
            found = {name: run(network, name, options.threads) for name in names}
            rounds.append({name: got for name, got in found.items() if got is not None})
        lines += rows_of(network, names, rounds)
    print("\n".join(lines))
    if options.write:
        print(write_result(f"tried_{options.threads}thread", __doc__, lines), file=sys.stderr)


if __name__ == "__main__":
    main()
