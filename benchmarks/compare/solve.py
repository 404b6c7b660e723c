"""Time to solve: one timer outside of all contenders, from the start of the process.

A task is solved at the first mean of the last 100 training episodes over its threshold. Ours runs
its recipe, for all seeds first; a peer runs the settings in `SOLVING`, and is stopped and counted
as slower at twice our median (`--stop`). Ours is timed to the line that says so, after its last
checkpoint. Results are appended to `results/solve_<task>_<machine>.jsonl` as they arrive, and what
is there is not run again: take the file away to begin anew.

    python benchmarks/compare/solve.py cartpole [--seeds 5] [--peers sb3 ...] [--timeout 3600]
"""

from __future__ import annotations

import argparse
import shlex
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from contenders import OURS, Layout, our_command
from processes import leave_nothing_behind, run
from records import RESULTS, append, command_text, machine_name, read
from workloads import THRESHOLDS

from learning import Point, our_points, parse_point, peer_command, thinned
from srl.bench.machine import commit, machine

RECIPES = {"cartpole": "cartpole", "cheetah": "halfcheetah_envpool", "pong": "pong_envpool"}

_ZOO_CARTPOLE = {
    "num_envs": 8,
    "horizon": 32,
    "epochs": 20,
    "minibatches": 1,
    "gamma": 0.98,
    "gae_lambda": 0.8,
    "learning_rate": 1e-3,
    "entropy_coefficient": 0.0,
    "anneal_steps": 100_000,
}
"""RL Baselines3 Zoo."""
_FAST_CARTPOLE = {"num_envs": 16, "horizon": 64, "epochs": 8, "learning_rate": 2e-3}
"""Those of our recipe, in part."""
_POOL: Layout = {"vec": "envpool", "threads": 1}
_POOL_TWO: Layout = {"vec": "envpool", "threads": 2}
_SF_POOL: Layout = {"envs": "envpool", "mode": "async", "workers": 1, "splits": 1}

SOLVING: dict[str, dict[str, tuple[Layout, dict[str, Any]]]] = {
    "cartpole": {
        "sb3": ({"vec": "dummy", "threads": 1}, _ZOO_CARTPOLE),
        "cleanrl": ({"vec": "sync", "threads": 1}, _ZOO_CARTPOLE),
        "cleanrl_envpool": (
            _POOL,
            {**_FAST_CARTPOLE, "gamma": 0.98, "gae_lambda": 0.9, "entropy_coefficient": 0.0},
        ),
        "sample_factory_gym": (
            {"envs": "gym", "mode": "async", "workers": 2, "splits": 2},
            {**_FAST_CARTPOLE, "minibatches": 2, "learning_rate": 1e-3},
        ),
        "rllib_ppo": (
            {"algo": "ppo", "runners": 0, "threads": 1},
            {"learning_rate": 3e-4, "epochs": 6, "minibatches": 8},
        ),
        "pufferlib": (_POOL, {**_FAST_CARTPOLE, "gamma": 0.98}),
        "torchrl": ({"vec": "serial", "threads": 1}, {**_ZOO_CARTPOLE, "anneal_steps": 0}),
    },
    "cheetah": {
        "sb3": (_POOL, {}),
        "cleanrl_envpool": (_POOL, {}),
        "sample_factory": (_SF_POOL, {}),
    },
    "pong": {
        "sb3": (_POOL_TWO, {}),
        "cleanrl_envpool": (_POOL_TWO, {}),
        "sample_factory": ({**_SF_POOL, "mode": "serial"}, {}),
        "pufferlib": (_POOL_TWO, {}),
        "torchrl": (_POOL_TWO, {}),
        "rllib_ppo": ({"algo": "ppo", "runners": 2, "threads": 2}, {}),
    },
}
"""Peers that are set up to solve a task: layout, and changes to the settings of `CURVES`, which are
our recipe's for HalfCheetah, far faster than the usual 16 environments x 128 steps, 10 x 32, and
for Pong."""

ENDLESS = 10**9


def solve_ours(task: str, seed: int, timeout: float) -> dict[str, Any]:
    """Seconds of ours, or None."""
    threshold = THRESHOLDS[task]
    with tempfile.TemporaryDirectory() as folder:
        run_dir = Path(folder) / "run"
        command = our_command(
            *("train", RECIPES[task], "--until", f"return>={threshold:g}", "--seed", str(seed)),
            *("--run-dir", str(run_dir)),
        )
        solved: list[float] = []

        def look(line: str, seconds: float) -> bool:
            if line.startswith("Finished: reached"):
                solved.append(seconds)
            return bool(solved)

        finished = run(command, timeout, look)
        points = our_points(run_dir)
    return _record(OURS, task, seed, solved, points, finished.tail, command)


def solve_peer(peer: str, task: str, seed: int, timeout: float) -> dict[str, Any]:
    """Seconds of a peer, or None where it was stopped."""
    layout, changes = SOLVING[task][peer]
    command = peer_command(peer, task, layout, seed, ENDLESS, changes)
    solved: list[float] = []
    points: list[Point] = []

    def look(line: str, seconds: float) -> bool:
        point = parse_point(line)
        if point:
            points.append(point)
            if point.solves(THRESHOLDS[task]):
                solved.append(seconds)
        return bool(solved)

    finished = run(command, timeout, look)
    record = _record(peer, task, seed, solved, points, finished.tail, command)
    return {**record, "stopped_at": round(timeout, 1) if finished.timed_out else None}


def _record(
    contender: str,
    task: str,
    seed: int,
    solved: list[float],
    points: list[Point],
    tail: list[str],
    command: list[str],
) -> dict[str, Any]:
    return {
        "task": task,
        "contender": contender,
        "seed": seed,
        "seconds": round(solved[0], 2) if solved else None,
        "points": thinned(points),
        "tail": [] if solved else tail[-3:],
        "command": command_text(command),
    }


def table(records: list[dict[str, Any]]) -> list[str]:
    """Seconds for each seed; `>` is where a peer was stopped."""
    seeds = sorted({record["seed"] for record in records})
    lines = [
        "| contender | " + " | ".join(f"seed {seed}" for seed in seeds) + " | median | / ours |",
        "|---|" + "--:|" * (len(seeds) + 2),
    ]
    ours = median([record for record in records if record["contender"] == OURS])
    for name in dict.fromkeys(record["contender"] for record in records):
        mine = [record for record in records if record["contender"] == name]
        cells = {record["seed"]: text_of(record) for record in mine}
        middle = median(mine)
        ratio = "-" if ours is None or middle is None else f"{middle / ours:.2f}"
        shown = "not solved" if middle is None else f"{middle:.1f}"
        row = [cells.get(seed, "") for seed in seeds]
        lines.append("| " + " | ".join([name, *row, shown, ratio]) + " |")
    return lines


def text_of(record: dict[str, Any]) -> str:
    """One cell."""
    if record["seconds"] is not None:
        return f"{record['seconds']:.1f}"
    stopped = record.get("stopped_at")
    return f"> {stopped:.0f}" if stopped else "failed"


def median(records: list[dict[str, Any]]) -> float | None:
    """The median seconds, those that did not solve it counted as endless; None if that is most."""
    seconds = [float("inf") if r["seconds"] is None else r["seconds"] for r in records]
    middle = statistics.median(seconds) if seconds else float("inf")
    return None if middle == float("inf") else middle


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=list(RECIPES))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--peers", nargs="*", help="default: all that are set up for the task")
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds, of ours")
    parser.add_argument("--stop", type=float, default=2.0, help="of a peer, in medians of ours")
    options = parser.parse_args()
    leave_nothing_behind()
    path = RESULTS / f"solve_{options.task}_{machine_name()}.jsonl"
    records = read(path)
    done = {(record["contender"], record["seed"]) for record in records}

    def keep(record: dict[str, Any]) -> None:
        append(path, record)
        records.append(record)
        last = "" if record["seconds"] is not None else " / ".join(record["tail"])[-200:]
        print(f"seed {record['seed']}  {record['contender']:16s} {text_of(record)} s {last}")
        sys.stdout.flush()

    seeds = range(1, options.seeds + 1)
    for seed in seeds:
        if (OURS, seed) not in done:
            keep(solve_ours(options.task, seed, options.timeout))
    ours = median([record for record in records if record["contender"] == OURS])
    limit = options.timeout if ours is None else options.stop * ours
    for seed in seeds:
        for peer in SOLVING[options.task] if options.peers is None else options.peers:
            if (peer, seed) not in done:
                keep(solve_peer(peer, options.task, seed, limit))
    lines = [
        f"# Seconds to solve {options.task} (mean of 100 episodes >= {THRESHOLDS[options.task]:g})",
        "",
        f"- the last run (each record says its own): {machine()}, commit {commit()}",
        f"- command: `python benchmarks/compare/solve.py {shlex.join(sys.argv[1:])}`",
        "",
        *table(records),
    ]
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
    print("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
