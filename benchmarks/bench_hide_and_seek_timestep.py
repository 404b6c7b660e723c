"""What a coarser time step and the plane change in hide-and-seek's behaviour, on the same actions.

    python benchmarks/bench_hide_and_seek_timestep.py
    python benchmarks/bench_hide_and_seek_timestep.py --worlds 64 --ticks 800 --write

Every row cuts the same 0.075 s differently. Scripted: speed and turn of an agent at full force, how
deep it runs into a wall, how far it pushes a box that stands in a door, locked and free. Random
play of the quadrant (the same seeds): the fastest body, bodies that left through the outer walls
(tunnelling), and discarded episodes. Leaves out: how fast it is, for which there is
`bench_hide_and_seek.py`. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys

import numpy as np
from results import write_result

from srl.envs.hide_and_seek import variant
from srl.envs.hide_and_seek.game import HEADS, Game, action_space
from srl.envs.hide_and_seek.layout import Layout, max_doors, max_pieces
from srl.envs.hide_and_seek.placement import EpisodeStart

STEPS = {
    "0.005 x 15": {},
    "0.0075 x 10": {"timestep": 0.0075, "substeps": 10},
    "0.0125 x 6": {"timestep": 0.0125, "substeps": 6},
    "planar, 0.005 x 15": {"planar": True},
    "planar, 0.0125 x 6": {"planar": True, "timestep": 0.0125, "substeps": 6},
}
FORWARD, TURN, STILL = (10, 5, 5, 0, 0), (5, 5, 10, 0, 0), (5, 5, 5, 0, 0)
LOCK = (5, 5, 5, 0, 1)
DOOR = ((3.0, 1.0, 0.05, 1.65), (3.0, 5.0, 0.05, 1.65))
"""A wall across the floor with a door of 0.7 m in its middle: pieces by centre and half sizes."""


class Script:
    """A game of one agent that acts, one that waits far away, and a box, in the open."""

    def __init__(self, changes: dict[str, object], agent: tuple[float, float], box: float) -> None:
        rules = variant(
            "hide_and_seek_quadrant",
            **{"hiders": 1, "seekers": 1, "boxes": 1, "ramps": 0, "preparation": 0.0, **changes},
        )
        pieces = np.zeros((max_pieces(rules), 4))
        pieces[4:6] = DOOR
        free = np.ones((rules.num_cells, rules.num_cells), bool)
        doors = np.full((max_doors(rules), 2), -1)
        start = EpisodeStart(
            layout=Layout(pieces, doors, np.zeros((0, 2)), free, None),
            agents=np.array([agent, (5.5, 5.5)]),
            boxes=np.array([(box, 3.0)]),
            box_sizes=np.full((1, 2), 0.5),
            ramps=np.zeros((0, 2)),
        )
        self.game = Game(rules, 1)
        self.game.seed(0, 0)
        self.game.begin(0, start)
        # The agent looks along +x, at the box.
        self.game.worlds.qpos[0, 0, -1] = np.pi / 2
        self.game.sight.look()

    def play(self, action: tuple[int, ...], steps: int) -> np.ndarray:
        """Positions of the agent and the box before each step and after the last."""
        found = [self.game.worlds.qpos[0, [0, 2]][:, [0, 1, -1]]]
        for _ in range(steps):
            self.game.tick(np.array([[action, STILL]]))
            found.append(self.game.worlds.qpos[0, [0, 2]][:, [0, 1, -1]])
        return np.array(found)


def scripted(changes: dict[str, object]) -> dict[str, float]:
    run = Script(changes, (0.5, 1.0), 5.0).play(FORWARD, 12)[:, 0, 0]
    turn = Script(changes, (0.5, 1.0), 5.0).play(TURN, 3)[:, 0, 2]
    # It starts beside the box, which is in the door, and pushes.
    free = Script(changes, (2.5, 3.0), 3.0).play(FORWARD, 10)[:, 1, 0]
    fixed = Script(changes, (2.55, 3.0), 3.0)
    fixed.play(LOCK, 1)
    locked = fixed.play((*FORWARD[:4], 1), 10)[:, 1, 0]
    return {
        "speed": round(float((run[4] - run[3]) / 0.075), 2),
        "turn": round(float(turn[2] - turn[1]), 3),
        "into_wall": round(float(run.max() + 0.15 - 2.95), 4),
        "free_box": round(float(free[-1] - free[0]), 2),
        "locked_box": round(float(np.abs(locked - locked[0]).max()), 4),
    }


def randomly(changes: dict[str, object], worlds: int, ticks: int) -> dict[str, float]:
    if changes.get("planar"):
        changes = {**changes, "ramps": 0}
    game = Game(variant("hide_and_seek_quadrant", **changes), worlds)
    for world in range(worlds):
        game.seed(world, world)
    game.reset(list(range(worlds)))
    random, nvec = np.random.default_rng(0), action_space(game.config).nvec
    fastest, outside, discarded, episodes = 0.0, 0, 0, 0
    # Forces last for some steps, so that agents reach full speed.
    for tick in range(ticks):
        if tick % 5 == 0:
            actions = random.integers(0, nvec, (worlds, game.config.num_agents, HEADS))
        game.tick(actions)
        speed = np.linalg.norm(game.worlds.qvel[..., :2], axis=-1)
        fastest = max(fastest, float(speed[game.worlds.present].max()))
        where = game.worlds.qpos[..., :2]
        gone = ((where < 0) | (where > game.config.side)).any(-1) & game.worlds.present
        outside += int(gone[game.final].sum())
        discarded += int(game.discarded.sum())
        episodes += int(game.final.sum())
    return {
        "fastest": round(fastest, 1),
        "left": outside,
        "discarded": discarded,
        "episodes": episodes,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=32)
    parser.add_argument("--ticks", type=int, default=400)
    parser.add_argument("--write", action="store_true", help="into benchmarks/results")
    args = parser.parse_args()
    found = {
        name: scripted(changes) | randomly(changes, args.worlds, args.ticks)
        for name, changes in STEPS.items()
    }
    names = list(next(iter(found.values())))
    lines = [f"| time step | {' | '.join(names)} |", "|---" * (len(names) + 1) + "|"]
    for name, row in found.items():
        lines.append(f"| {name} | {' | '.join(map(str, row.values()))} |")
    print("\n".join(lines), file=sys.stderr)
    if args.write:
        print(write_result("hide_and_seek_timestep", __doc__, lines), file=sys.stderr)
    print(json.dumps({"benchmark": "hide_and_seek_timestep", "found": found}))


if __name__ == "__main__":
    main()
