"""Steps per second of hide-and-seek beside bare `mj_step` on the same scenes, in the same run.

    python benchmarks/bench_hide_and_seek.py
    python benchmarks/bench_hide_and_seek.py --games hide_and_seek_quadrant --worlds 16 --ticks 300

A tick of the games has everything: grips, locks, physics, rays, rewards, observations, detectors,
and new episodes. After each tick, the same worlds are stepped again from the same states with the
same forces, by `mj_step` alone. Both are measured in processor time of one thread, with random
actions. Beside it: what the network of the game's recipe takes to choose an action, for each row
(an agent in a world), with its number of parameters. Leaves out: records, and the drawing of the
actions. Prints one JSON line.
"""

from __future__ import annotations

import argparse
import json
import time

import mujoco
import numpy as np
import torch

from srl.envs.hide_and_seek import VARIANTS, HideAndSeekConfig, variant
from srl.envs.hide_and_seek.game import HEADS, Game, action_space
from srl.envs.registry import probe
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
from srl.recipes import find_recipe
from srl.settings import convert

COARSE = {"timestep": 0.0125, "substeps": 6}


class BareWorlds:
    """The same models with data of their own, stepped by MuJoCo alone."""

    def __init__(self, game: Game) -> None:
        self.game = game
        worlds = game.worlds
        self.datas = [mujoco.MjData(model) for model in worlds.models]
        self.before = worlds.state()

    def remember(self) -> None:
        """Keeps the states before a tick."""
        self.before = self.game.worlds.state()

    def step(self, playing: np.ndarray) -> float:
        """Steps the kept states with the forces, grips and locks of the tick; returns seconds."""
        worlds = self.game.worlds
        calls = []
        for index in np.flatnonzero(playing).tolist():
            model, data = worlds.models[index], self.datas[index]
            data.qpos[:] = self.before["qpos"][index].reshape(-1)
            data.qvel[:] = self.before["qvel"][index].reshape(-1)
            data.qacc_warmstart[:] = self.before["warmstart"][index]
            data.ctrl[:] = worlds.control[index].reshape(-1)
            data.eq_active[:] = worlds.active[index]
            calls.append((model, data))
        step, substeps = mujoco.mj_step, self.game.config.physics.substeps
        started = time.process_time()
        for model, data in calls:
            step(model, data, substeps)
        return time.process_time() - started


def measure(config: HideAndSeekConfig, num_worlds: int, ticks: int) -> dict[str, object]:
    game = Game(config, num_worlds)
    for world in range(num_worlds):
        game.seed(world, world)
    game.reset(list(range(num_worlds)))
    # Worlds begin at different times of an episode, as they do after a while.
    random = np.random.default_rng(0)
    game.time[:] = random.integers(0, config.num_steps, num_worlds)
    bare = BareWorlds(game)
    nvec, shape = action_space(config).nvec, (num_worlds, config.num_agents, HEADS)
    steps, in_game, in_physics = 0, 0.0, 0.0
    for _ in range(ticks):
        actions = random.integers(0, nvec, shape)
        playing = ~game.final
        bare.remember()
        started = time.process_time()
        game.tick(actions)
        in_game += time.process_time() - started
        in_physics += bare.step(playing)
        steps += int(playing.sum())
    return {
        "steps_per_second": round(steps / in_game),
        "bare_steps_per_second": round(steps / in_physics),
        "share": round(in_physics / in_game, 3),
    }


def measure_policy(game: str, rows: int, calls: int = 20) -> dict[str, float]:
    """Microseconds of one thread for each row of a batch, with the network of a game's recipe."""
    torch.set_num_threads(1)
    experiment = find_recipe(game)()
    network = {name: value for name, value in experiment.network.items() if name != "name"}
    agent = next(iter(probe(experiment.env).agents.values()))
    settings = convert(network, ActorCriticConfig, "network")
    policy = ActorCritic(agent, settings)
    obs = {
        name: torch.ones(rows, *leaf.shape, dtype=getattr(torch, leaf.dtype))
        for name, leaf in agent.obs.items()
    }
    size = settings.recurrent_size
    state = {who: {k: torch.zeros(rows, size) for k in "hc"} for who in ("actor", "critic")}
    first, explore = torch.zeros(rows, dtype=torch.bool), torch.ones(rows)
    generator = torch.Generator().manual_seed(0)
    times = []
    with torch.inference_mode():
        for _ in range(calls):
            started = time.process_time()
            policy.act(obs, state, first, explore, None, generator)
            times.append(time.process_time() - started)
    parameters = sum(weights.numel() for weights in policy.parameters())
    return {
        "microseconds_per_row": round(1e6 * float(np.median(times)) / rows, 2),
        "rows": rows,
        "parameters": parameters,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="*", default=[*VARIANTS, "hide_and_seek_quadrant:coarse"])
    parser.add_argument("--worlds", type=int, default=64)
    parser.add_argument("--ticks", type=int, default=200)
    args = parser.parse_args()
    found: dict[str, dict[str, object]] = {}
    for game in args.games:
        name, _, coarse = game.partition(":")
        config = variant(name, **(COARSE if coarse else {}))
        found[game] = measure(config, args.worlds, args.ticks)
        rows = args.worlds * config.num_agents
        found[game]["policy"] = measure_policy(name, rows)
    print(json.dumps({"benchmark": "hide_and_seek", "worlds": args.worlds, "games": found}))


if __name__ == "__main__":
    main()
