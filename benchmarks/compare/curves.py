"""Learning at equal environment steps and equal settings: ours, Stable-Baselines3, CleanRL-style.

Every seed of every contender is appended to `results/curves_<task>_<machine>.jsonl` when it is
done, and skipped when the script is run again. A CSV with all points and a plot with the median and
the spread over seeds are made anew each time, and the mean of a whole curve is printed: of its
values at places equally far apart.

    python benchmarks/compare/curves.py cartpole [--seeds 10] [--contenders srl sb3 cleanrl_envpool]
    python benchmarks/compare/curves.py pong --solved    # of the runs that solve.py has timed
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from contenders import OURS, Layout
from processes import leave_nothing_behind, run
from records import RESULTS, append, command_text, machine_name, read
from workloads import CURVES

from learning import Point, our_equal_command, our_points, parse_point, peer_command, thinned

CONTENDERS = (OURS, "sb3", "cleanrl_envpool")
GRID = 100
"""Places along the steps where seeds are compared."""


def learn(contender: str, task: str, seed: int, timeout: float) -> dict[str, Any]:
    """One seed of one contender."""
    settings, env_steps, _ = CURVES[task]
    points: list[Point] = []

    def look(line: str, seconds: float) -> bool:
        point = parse_point(line)
        if point:
            points.append(point)
        return False

    with tempfile.TemporaryDirectory() as folder:
        if contender == OURS:
            command = our_equal_command(settings, env_steps, seed, Path(folder) / "run")
        else:
            layout: Layout = {"vec": "envpool"}
            if contender != "random":
                layout["threads"] = 2 if task == "pong" else 1
            command = peer_command(contender, task, layout, seed, env_steps, {})
        finished = run(command, timeout, look, timed=False)
        if contender == OURS and finished.code == 0:
            points = our_points(Path(folder) / "run")
    done = finished.code == 0 and bool(points)
    return {
        "task": task,
        "contender": contender,
        "seed": seed,
        "ok": done,
        "seconds": round(finished.seconds, 1),
        "points": thinned(points),
        "tail": [] if done else finished.tail,
        "command": command_text(command),
        "settings": dataclasses.asdict(settings),
    }


def missing(records: list[dict[str, Any]], wanted: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Contenders and seeds that are not done."""
    done = {(record["contender"], record["seed"]) for record in records if record["ok"]}
    return [pair for pair in wanted if pair not in done]


def write_csv(records: list[dict[str, Any]], path: Path) -> None:
    """Every point."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["contender", "seed", "env_steps", "return"])
        for record in records:
            for env_steps, value in record["points"]:
                writer.writerow([record["contender"], record["seed"], env_steps, value])


def places(records: list[dict[str, Any]]) -> np.ndarray:
    """The environment steps at which seeds are compared: as far as all have come."""
    return np.linspace(0, min(record["points"][-1][0] for record in records), GRID + 1)[1:]


def values(records: list[dict[str, Any]], contender: str, steps: np.ndarray) -> np.ndarray:
    """[seeds, steps] returns of a contender; NaN before its first episodes are over."""
    mine = [np.asarray(r["points"], float) for r in records if r["contender"] == contender]
    return np.stack([np.interp(steps, p[:, 0], p[:, 1], left=np.nan) for p in mine])


def means(records: list[dict[str, Any]], contender: str, steps: np.ndarray) -> np.ndarray:
    """The mean of each seed's whole curve."""
    return np.nanmean(values(records, contender, steps), 1)


def plot(records: list[dict[str, Any]], task: str, path: Path) -> None:
    """The median over seeds, and between the least and the greatest, as far as all seeds of a
    contender have come."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.5))
    for name in dict.fromkeys(record["contender"] for record in records):
        grid = places([record for record in records if record["contender"] == name])
        rows = values(records, name, grid)
        seen = ~np.isnan(rows).any(0)
        x, rows = grid[seen], rows[:, seen]
        (line,) = axes.plot(x, np.median(rows, 0), label=f"{name}, {len(rows)} seeds")
        axes.fill_between(x, rows.min(0), rows.max(0), color=line.get_color(), alpha=0.2)
    axes.set_xlabel("environment steps")
    axes.set_ylabel("return, mean of the last 100 episodes")
    axes.set_title(f"{task}: equal settings, median and range over seeds")
    axes.legend()
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def show(records: list[dict[str, Any]], name: str, task: str) -> None:
    """Writes the CSV and the plot, and prints the mean of a curve of each contender."""
    good = [record for record in records if record.get("points")]
    if good:
        write_csv(good, RESULTS / f"{name}.csv")
        plot(good, task, RESULTS / f"{name}.png")
        print(RESULTS / f"{name}.png")
        for contender in dict.fromkeys(record["contender"] for record in good):
            found = means(good, contender, places(good))
            error = found.std(ddof=1) / len(found) ** 0.5 if len(found) > 1 else float("nan")
            spread = f"{found.min():.0f} to {found.max():.0f}"
            print(f"{contender}: mean of a curve {found.mean():.1f} +- {error:.1f} ({spread})")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("task", choices=list(CURVES))
    parser.add_argument("--seeds", type=int, help="default: as in workloads.py")
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--solved", action="store_true", help="show the runs of solve.py instead")
    parser.add_argument("--timeout", type=float, default=4 * 3600.0, help="seconds, of each run")
    options = parser.parse_args()
    leave_nothing_behind()
    name = f"curves_{options.task}_{machine_name()}"
    path = RESULTS / f"{name}.jsonl"
    if options.solved:
        solved = read(RESULTS / f"solve_{options.task}_{machine_name()}.jsonl")
        show([one for one in solved if one["contender"] in options.contenders], name, options.task)
        return 0
    seeds = range(1, (options.seeds or CURVES[options.task][2]) + 1)
    wanted = [(contender, seed) for seed in seeds for contender in options.contenders]
    for contender, seed in missing(read(path), wanted):
        record = learn(contender, options.task, seed, options.timeout)
        append(path, record)
        last = record["points"][-1] if record["ok"] else record["tail"][-2:]
        print(f"seed {seed}  {contender:16s} {last}  [{record['seconds']} s]", flush=True)
    show([record for record in read(path) if record["ok"]], name, options.task)
    return 0


if __name__ == "__main__":
    sys.exit(main())
