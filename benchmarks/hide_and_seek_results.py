"""What hide-and-seek's small games teach: chase and fort, trained and measured on fresh episodes.

Trains three runs one after another: *chase*, *fort*, and *control*, which is the fort with seekers
that never move. A run that is already in the folder goes on, and one that has had its minutes is
only measured. Then trained, earlier, random and control sides play whole episodes with sampled
actions against each other, from the games' own starts: without the fort's curriculum, its box at
least 1 m from the door. Draws the curves, and the chase's versions against each other
(`bench_versions.py`).

    python benchmarks/hide_and_seek_results.py runs/hide_and_seek --write
    python benchmarks/hide_and_seek_results.py runs/hide_and_seek --only fort control --minutes 30

Leaves out: other seeds (`--seed`). Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from results import RESULTS, write_result

import srl
from srl.cli.play import EpisodeProgress
from srl.envs.hide_and_seek import variant
from srl.launch.directory.run_dir import RunDir

RUNS = {
    "chase": ("hide_and_seek_chase", {}),
    "fort": ("hide_and_seek_fort", {}),
    "control": ("hide_and_seek_fort", {"motionless_seekers": True}),
}
"""Recipe and changed arguments of the environment, by the name of the run."""
FRESH = {"easy_starts": 0.0, "motionless_seekers": False}
"""Arguments with which every side is measured."""
VERSIONS = 8
"""Checkpoints of a run at about equal times."""
CURVES = {
    "agents.hider_*.episode_return_mean": "return of hiders",
    "episode.sight_rate": "share of steps in which a hider is seen",
    "episode.doors_closed": "share of episodes with the door closed at the end of preparation",
    "episode.boxes_locked_preparation": "boxes locked at the end of preparation",
}


@dataclass(frozen=True)
class Match:
    """Who plays hiders and who plays seekers; each is `RUN`, `RUN@early` or `random`."""

    run: str
    hiders: str
    seekers: str


MATCHES = (
    Match("chase", "random", "random"),
    Match("chase", "random", "chase"),
    Match("chase", "chase", "random"),
    Match("chase", "chase", "chase"),
    Match("chase", "chase@early", "chase"),
    Match("chase", "chase", "chase@early"),
    Match("chase", "chase@early", "chase@early"),
    Match("fort", "random", "random"),
    Match("fort", "random", "fort"),
    Match("fort", "fort", "random"),
    Match("fort", "fort", "fort"),
    Match("fort", "fort@early", "fort"),
    Match("fort", "control", "fort"),
)


def train(folder: Path, name: str, seconds: float, seed: int) -> None:
    """Trains a run until it has had its seconds."""
    recipe, args = RUNS[name]
    if seconds_of(folder / name) >= seconds:
        return
    srl.train(
        recipe,
        env_args=args or None,
        run_dir=folder / name,
        seconds=seconds,
        steps=10**10,
        seed=seed,
        set={"checkpoint.keep_last": 1000, "checkpoint.every_seconds": seconds / VERSIONS},
    )


def lines_of(run: Path) -> list[dict[str, Any]]:
    """The metrics of a run so far."""
    file = run / "metrics.jsonl"
    if not file.exists():
        return []
    return [json.loads(line) for line in file.read_text().splitlines() if line.endswith("}")]


def seconds_of(run: Path) -> float:
    """For how long a run has been trained."""
    return max((float(line["seconds"]) for line in lines_of(run)), default=0.0)


def weights(folder: Path, side: str) -> str:
    """What `srl eval --policy` takes for a side."""
    name, _, early = side.partition("@")
    if name == "random":
        return name
    if not early:
        return str(folder / name)
    checkpoints = RunDir(folder / name).store().list()
    return f"{folder / name}@{checkpoints[len(checkpoints) // VERSIONS].number}"


def measure(folder: Path, match: Match, episodes: int, seed: int) -> dict[str, Any]:
    """Plays a match; returns means, and standard errors as `..._error`."""
    sides = {"hider_*": weights(folder, match.hiders), "seeker_*": weights(folder, match.seekers)}
    run = srl.load(folder / match.run)
    game = variant(RUNS[match.run][0])
    with EpisodeProgress(episodes) as progress:
        score = run.evaluate(
            episodes,
            policies=sides,
            seed=seed,
            explore=True,
            env_args=FRESH,
            on_progress=progress,
        )
    (returns,) = (v for name, v in score.by_name().items() if "hider" in name)
    values = {"hider_reward": np.array(returns) / (game.num_steps - game.preparation_steps)}
    for name in ("sight_rate", "doors_closed", "boxes_locked_preparation"):
        if name in score.metrics:
            values[name] = np.array(score.metrics[name])
    found: dict[str, Any] = {"run": match.run, "hiders": match.hiders, "seekers": match.seekers}
    for name, each in values.items():
        each = each[~np.isnan(each)]
        found[name] = round(float(each.mean()), 3)
        found[f"{name}_error"] = round(float(each.std() / len(each) ** 0.5), 3)
    return found


def rows(found: list[dict[str, Any]]) -> Iterator[str]:
    """The table of all matches."""
    names = ("hider_reward", "sight_rate", "doors_closed", "boxes_locked_preparation")
    yield f"| game | hiders | seekers | {' | '.join(name.replace('_', ' ') for name in names)} |"
    yield "|---" * (3 + len(names)) + "|"
    for match in found:
        cells = [f"{match[n]} ± {match[f'{n}_error']}" if n in match else "" for n in names]
        who = [match["run"], match["hiders"], match["seekers"]]
        yield f"| {' | '.join([*who, *cells])} |"


def draw(folder: Path, names: list[str], output: Path) -> None:
    """Draws the curves of training; those of the fort have its curriculum's starts."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    for (key, title), panel in zip(CURVES.items(), panels.flat, strict=True):
        for name in names:
            lines = [line for line in lines_of(folder / name) if key in line]
            steps = [line["env_steps"] / 1e6 for line in lines]
            panel.plot(steps, [line[key] for line in lines], label=name, lw=1.2)
        panel.set_title(title, fontsize=9)
        panel.set_xlabel("million environment steps")
        panel.legend(frameon=False)
    figure.savefig(output, dpi=100)
    pyplot.close(figure)


def versions(folder: Path, output: Path) -> list[str]:
    """The chase's versions against each other, as lines of a table; also draws them."""
    script = Path(__file__).with_name("bench_versions.py")
    command = [sys.executable, str(script), str(folder / "chase"), "--side", "seeker_*"]
    done = subprocess.run(
        [*command, "--output", str(output)], stdout=subprocess.PIPE, text=True, check=True
    )
    return [line for line in done.stdout.splitlines() if line.startswith("|")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the runs are, or will be")
    parser.add_argument("--only", nargs="+", choices=list(RUNS), default=list(RUNS))
    parser.add_argument("--minutes", type=float, default=100.0, help="of training, each run")
    parser.add_argument("--episodes", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="into benchmarks/results")
    options = parser.parse_args()
    for name in options.only:
        train(options.folder, name, 60 * options.minutes, options.seed)
    there = [name for name in options.only if RunDir(options.folder / name).store().list()]
    known = {*there, "random"}
    matches = [
        m for m in MATCHES if {m.run, m.hiders.split("@")[0], m.seekers.split("@")[0]} <= known
    ]
    found = []
    for match in matches:
        found.append(measure(options.folder, match, options.episodes, 2_000_000))
        print(found[-1], file=sys.stderr, flush=True)
    places = RESULTS if options.write else options.folder
    draw(options.folder, there, places / "hide_and_seek_curves.png")
    lines = [f"{options.episodes} episodes for each row; hider reward is per paid step.", ""]
    lines += [*rows(found), ""]
    for name in there:
        last = lines_of(options.folder / name)[-1]
        lines.append(f"- {name}: {last['env_steps']:,} steps in {last['seconds'] / 60:.0f} minutes")
    lines += ["", "![Curves of training](hide_and_seek_curves.png)"]
    if "chase" in there:
        lines += ["", "Chase: return of the row's hiders against the column's seekers.", ""]
        lines += versions(options.folder, places / "hide_and_seek_versions.png")
    print("\n".join(lines), file=sys.stderr)
    if options.write:
        print(write_result("hide_and_seek", __doc__, lines), file=sys.stderr)
    print(json.dumps({"results": "hide_and_seek", "matches": found}))


if __name__ == "__main__":
    main()
