"""Versions of a run against versions of the same run: one side's return in a table and a picture.

For a policy that plays several sides (self-play), and for policies that play against each other.
Rows are the version of the agents that `--side` does not name, columns that of those it names; a
number is the mean return of the rows' agents over whole episodes with sampled actions. Policies
that get better have larger numbers further down, and smaller ones further right.

    python benchmarks/bench_versions.py runs/chase --side 'seeker_*'
    python benchmarks/bench_versions.py runs/chase --side seeker_0 --checkpoints 1 12 --episodes 200

`random` is a version, too. Episodes are the same in all cells. How many checkpoints a run keeps is
its setting `checkpoint.keep_last`. Prints one JSON line at the end.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import matplotlib
import numpy as np

from srl.cli.play import EpisodeProgress
from srl.launch.directory.run_dir import RunDir
from srl.run import Run, load

RANDOM = "random"


def versions_of(run: Run, chosen: list[str], most: int) -> list[str]:
    """The chosen versions, or random play and checkpoints at about equal distances."""
    if chosen:
        return chosen
    numbers = [str(checkpoint.number) for checkpoint in RunDir(run.path).store().list()]
    at = np.linspace(0, len(numbers) - 1, min(most, len(numbers))).round().astype(int)
    return [RANDOM, *dict.fromkeys(numbers[i] for i in at)]


def mean_return(
    run: Run, rows: str, columns: str, side: str, episodes: int, seed: int
) -> tuple[float, float]:
    """Mean and standard error of the return of the agents that `side` does not name."""
    policies = {side: columns if columns == RANDOM else f"{run.path}@{columns}"}
    if rows == RANDOM:
        policies |= dict.fromkeys(run.experiment.policies, RANDOM)
    checkpoint = "latest" if rows == RANDOM else rows
    with EpisodeProgress(episodes) as progress:
        score = run.evaluate(
            episodes,
            checkpoint=checkpoint,
            policies=policies,
            seed=seed,
            explore=True,
            on_progress=progress,
        )
    found = np.concatenate([values for name, values in score.returns.items() if name != side])
    return float(found.mean()), float(found.std() / len(found) ** 0.5)


def draw(table: np.ndarray, versions: list[str], side: str, output: Path) -> None:
    """Draws the table as a picture."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panel = pyplot.subplots(figsize=(1.6 + 0.8 * len(versions), 1.2 + 0.7 * len(versions)))
    most = max(1e-9, float(np.abs(table).max()))
    panel.imshow(table, cmap="RdBu", vmin=-most, vmax=most)
    for (row, column), value in np.ndenumerate(table):
        panel.text(column, row, f"{value:.1f}", ha="center", va="center")
    ticks = range(len(versions))
    panel.set_xticks(ticks, versions)
    panel.set_yticks(ticks, versions)
    panel.set_xlabel(f"version of {side}")
    panel.set_ylabel("version of the others")
    panel.set_title("mean return of the others")
    figure.tight_layout()
    figure.savefig(output, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--side", required=True, help="agents of the columns, like 'seeker_*'")
    parser.add_argument("--checkpoints", nargs="*", default=[], help=f"numbers, or {RANDOM}")
    parser.add_argument("--most", type=int, default=5, help="checkpoints if none are named")
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--output", type=Path, help="the picture (RUN/versions.png)")
    args = parser.parse_args()
    run = load(args.run)
    versions = versions_of(run, args.checkpoints, args.most)
    table, errors = np.zeros((2, len(versions), len(versions)))
    for row, one in enumerate(versions):
        for column, other in enumerate(versions):
            table[row, column], errors[row, column] = mean_return(
                run, one, other, args.side, args.episodes, args.seed
            )
            print(f"{one} against {other}: {table[row, column]:.2f}", file=sys.stderr)
    print("| | " + " | ".join(versions) + " |\n|" + "---|" * (len(versions) + 1))
    for name, means, spread in zip(versions, table, errors, strict=True):
        cells = [f"{m:.1f} ± {e:.1f}" for m, e in zip(means, spread, strict=True)]
        print(f"| {name} | " + " | ".join(cells) + " |")
    output = args.output or args.run / "versions.png"
    draw(table, versions, args.side, output)
    found = {"versions": versions, "returns": table.round(3).tolist(), "side": args.side}
    print(json.dumps({"benchmark": "versions", "episodes": args.episodes, **found}))


if __name__ == "__main__":
    main()
