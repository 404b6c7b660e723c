"""Whether long random play of hide-and-seek stays sane: no NaN, no body outside, no leak.

Many worlds of each named game play whole episodes with random actions that last a few steps, so
that agents get fast, grab and lock. It fails if an observation or reward is not finite, if a body
is outside of outer walls, if more than 5 in 1,000 episodes had to be discarded because physics went
wrong, or if memory grows. Leaves out: policies that learned to break things.

    python benchmarks/soak_hide_and_seek.py [--episodes 2000] [--games hide_and_seek_fort]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np
import psutil

from srl.envs.hide_and_seek import VARIANTS, variant
from srl.envs.hide_and_seek.game import HEADS, Game, action_space

WORLDS = 16
MOST_DISCARDED = 5e-3
"""Largest share of episodes whose physics may go wrong."""
MOST_GROWTH = 24.0
"""Megabytes by which memory may grow after the first quarter."""


def soak(name: str, episodes: int) -> dict[str, float]:
    """Plays a game; raises AssertionError where something is wrong."""
    game = Game(variant(name), WORLDS)
    for world in range(WORLDS):
        game.seed(world, world)
    game.reset(list(range(WORLDS)))
    random, nvec = np.random.default_rng(0), action_space(game.config).nvec
    process = psutil.Process()
    done, discarded, tick, fastest = 0, 0, 0, 0.0
    settled = grown = 0.0
    while done < episodes:
        if tick % 3 == 0:
            actions = random.integers(0, nvec, (WORLDS, game.config.num_agents, HEADS))
        game.tick(actions)
        tick += 1
        for part, array in game.observation.arrays.items():
            assert np.isfinite(array).all(), f"{name}: expected finite {part}, tick {tick}"
        assert np.isfinite(game.reward).all(), f"{name}: expected finite rewards, tick {tick}"
        check_places(game, name)
        speeds = np.linalg.norm(game.worlds.qvel[..., :-1], axis=-1)
        fastest = max(fastest, float(speeds[game.worlds.present].max()))
        done += int(game.final.sum())
        discarded += int(game.discarded.sum())
        used = process.memory_info().rss / 1e6
        if done < episodes / 4:
            settled = used
        grown = used - settled
    game.close()
    found = {"episodes": done, "discarded": discarded, "fastest": fastest, "grown_mb": grown}
    assert discarded <= MOST_DISCARDED * done, f"{name}: expected few discarded, got {found}"
    assert grown < MOST_GROWTH, f"{name}: expected no growth of memory, got {found}"
    return {key: round(value, 2) for key, value in found.items()}


def check_places(game: Game, name: str) -> None:
    """Raises if a body is outside of outer walls."""
    walled = (game.worlds.walls[:, :4, 2] > 0).all(1)
    where = game.worlds.qpos[..., :2]
    outside = ((where < 0) | (where > game.config.side)).any(-1) & game.worlds.present
    left = where[outside & walled[:, None]]
    assert not len(left), f"{name}: expected all inside of the outer walls, got {left.tolist()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--episodes", type=int, default=2000, help="of all games together")
    parser.add_argument("--games", nargs="*", default=[*VARIANTS])
    options = parser.parse_args()
    found = {}
    # MuJoCo writes its warnings into a file in the current folder.
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for name in options.games:
            found[name] = soak(name, options.episodes // len(options.games))
            print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
        warned = (Path(folder) / "MUJOCO_LOG.TXT").exists()
        os.chdir("/")
    print(json.dumps({"soak": "hide_and_seek", "games": found, "warned": warned}))


if __name__ == "__main__":
    main()
