"""Learning at equal environment steps and equal settings over seven tasks, as one table.

Each task is learned by `curves.py` (Acrobot and Pendulum 100,000 steps, LunarLander 300,000, the
others 500,000; five seeds each), together with random actions for scale. Seeds that are done are
skipped, so an interrupted run goes on where it was. The table has the mean return of the last 100
training episodes, the difference from each reference in standard errors of that difference, and
the mean over tasks of scores: 0 is random play, 1 is the reference.

    python benchmarks/compare/equal_steps.py [--tasks lunarlander ...] [--seeds 5]
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
from contenders import OURS
from curves import CONTENDERS, learn, missing, show
from processes import leave_nothing_behind
from records import RESULTS, append, machine_name, read
from workloads import CURVES, EQUAL_TASKS

RANDOM = "random"
REFERENCES = ("sb3", "cleanrl_envpool")
NAMES = {OURS: "SRL", "sb3": "Stable-Baselines3", "cleanrl_envpool": "CleanRL-style"}

Returns = dict[str, np.ndarray]
"""The last return of each seed, by contender."""


def final_returns(records: list[dict[str, Any]], seeds: int) -> Returns:
    """What each contender's first seeds returned in the end."""
    found: dict[str, list[float]] = {}
    for record in records:
        if record["seed"] <= seeds:
            found.setdefault(record["contender"], []).append(float(record["points"][-1][1]))
    return {name: np.array(values) for name, values in found.items()}


def standard_error(values: np.ndarray) -> float:
    """Of the mean."""
    return float(values.std(ddof=1) / len(values) ** 0.5) if len(values) > 1 else float("nan")


def difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    """How far our mean is above theirs, in standard errors of the difference."""
    error = float(np.hypot(standard_error(ours), standard_error(theirs)))
    return float(ours.mean() - theirs.mean()) / error


def score(returns: Returns, reference: str) -> float:
    """Our mean return where random play is 0 and the reference is 1."""
    floor = float(returns[RANDOM].mean())
    return float((returns[OURS].mean() - floor) / (returns[reference].mean() - floor))


def table(tasks: dict[str, Returns]) -> list[str]:
    """The Markdown table over all tasks."""
    contenders = [OURS, *REFERENCES]
    above = [f"above {NAMES[name]}, in standard errors" for name in REFERENCES]
    head = ["task", "steps", "random", *(NAMES[name] for name in contenders), *above]
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    for task, returns in tasks.items():
        cells = [
            f"{returns[name].mean():,.0f} ± {standard_error(returns[name]):,.0f}"
            for name in contenders
        ]
        apart = [f"{difference(returns[OURS], returns[name]):+.1f}" for name in REFERENCES]
        steps = f"{CURVES[task][1] // 1000}k"
        row = [task, steps, f"{returns[RANDOM].mean():,.0f}", *cells, *apart]
        lines.append("| " + " | ".join(row) + " |")
    lines.append("")
    for name in REFERENCES:
        mean = float(np.mean([score(returns, name) for returns in tasks.values()]))
        lines.append(f"Mean score over tasks beside {NAMES[name]} (1: equal): {mean:.2f}.")
    return lines


def shortfalls(tasks: dict[str, Returns]) -> list[str]:
    """Tasks where ours is more than two standard errors below a reference, and references that
    ours is below over all tasks."""
    found = [
        f"{task}: {error:.1f} standard errors below {NAMES[name]}"
        for task, returns in tasks.items()
        for name in REFERENCES
        if (error := -difference(returns[OURS], returns[name])) > 2
    ]
    for name in REFERENCES:
        mean = float(np.mean([score(returns, name) for returns in tasks.values()]))
        if mean < 1:
            found.append(f"all tasks: {mean:.2f} of {NAMES[name]}")
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", nargs="+", choices=EQUAL_TASKS, default=list(EQUAL_TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds, of each run")
    options = parser.parse_args()
    leave_nothing_behind()
    seeds = range(1, options.seeds + 1)
    tasks: dict[str, Returns] = {}
    for task in options.tasks:
        name = f"curves_{task}_{machine_name()}"
        path = RESULTS / f"{name}.jsonl"
        wanted = [(RANDOM, 1), *((who, seed) for seed in seeds for who in CONTENDERS)]
        for contender, seed in missing(read(path), wanted):
            record = learn(contender, task, seed, options.timeout)
            append(path, record)
            last = record["points"][-1] if record["ok"] else record["tail"][-2:]
            print(f"{task}  seed {seed}  {contender:16s} {last}", flush=True)
        done = [record for record in read(path) if record["ok"]]
        tasks[task] = final_returns(done, options.seeds)
        show([record for record in done if record["contender"] != RANDOM], name, task)
    failed = [task for task, returns in tasks.items() if set(returns) != {RANDOM, *CONTENDERS}]
    if failed:
        print(f"some contenders did not finish: {', '.join(failed)}; run it again")
        return 1
    below = shortfalls(tasks)
    lines = [*table(tasks), "", "Below: " + "; ".join(below) if below else "Nothing falls short."]
    print("\n".join(lines))
    if set(options.tasks) == set(EQUAL_TASKS):
        command = "`python benchmarks/compare/equal_steps.py`"
        about = f"Mean of the last 100 training episodes ± standard error over seeds: {command}."
        path = RESULTS / f"equal_steps_{machine_name()}.md"
        path.write_text("\n".join(["# Learning at equal steps", "", about, "", *lines]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
