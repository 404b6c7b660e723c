"""simple_tag with its two sides apart: three chasers and one runner, many games at once.

Games are stepped in this process, or in worker processes that each step a share of them.
"""

from __future__ import annotations

import multiprocessing

import numpy as np

SIDES = {"chaser": ["adversary_0", "adversary_1", "adversary_2"], "runner": ["agent_0"]}

Seen = dict[str, np.ndarray]


def make_game():
    """One game."""
    from mpe2 import simple_tag_v3

    return simple_tag_v3.parallel_env()


class Games:
    """Games in this process. Rows of a side are its agents, game by game."""

    def __init__(self, num_games: int, seed: int) -> None:
        self._games = [make_game() for _ in range(num_games)]
        self._seed = seed

    def reset(self) -> Seen:
        """The first observations of each side."""
        return _rows([game.reset(seed=self._seed + i)[0] for i, game in enumerate(self._games)])

    def step(self, actions: Seen) -> tuple[Seen, Seen, np.ndarray]:
        """Observations and rewards of each side, and which games ended (they start anew)."""
        seen, rewards, ends = [], [], np.zeros(len(self._games), bool)
        for index, game in enumerate(self._games):
            chosen = {
                name: int(actions[side][index * len(names) + i])
                for side, names in SIDES.items()
                for i, name in enumerate(names)
            }
            obs, reward, terminated, truncated, _ = game.step(chosen)
            rewards.append(reward)
            ends[index] = any(terminated.values()) or any(truncated.values())
            seen.append(game.reset()[0] if ends[index] else obs)
        return _rows(seen), _rows(rewards), ends


def _rows(games: list[dict]) -> Seen:
    return {
        side: np.asarray([game[name] for game in games for name in names], np.float32)
        for side, names in SIDES.items()
    }


def _serve(pipe, num_games: int, seed: int) -> None:
    games = Games(num_games, seed)
    pipe.send(games.reset())
    while (actions := pipe.recv()) is not None:
        pipe.send(games.step(actions))


class GamesElsewhere:
    """Games in worker processes, a share each."""

    def __init__(self, num_games: int, seed: int, workers: int) -> None:
        self._share, self._pipes = num_games // workers, []
        context = multiprocessing.get_context("fork")
        for index in range(workers):
            ours, theirs = context.Pipe()
            args = (theirs, self._share, seed + 1000 * index)
            context.Process(target=_serve, args=args, daemon=True).start()
            self._pipes.append(ours)

    def reset(self) -> Seen:
        """As of `Games`."""
        parts = [pipe.recv() for pipe in self._pipes]
        return {side: np.concatenate([part[side] for part in parts]) for side in SIDES}

    def step(self, actions: Seen) -> tuple[Seen, Seen, np.ndarray]:
        """As of `Games`."""
        for index, pipe in enumerate(self._pipes):
            rows = {side: self._share * len(names) for side, names in SIDES.items()}
            pipe.send({k: v[index * rows[k] : (index + 1) * rows[k]] for k, v in actions.items()})
        parts = [pipe.recv() for pipe in self._pipes]
        seen, rewards = (
            {side: np.concatenate([part[i][side] for part in parts]) for side in SIDES}
            for i in (0, 1)
        )
        return seen, rewards, np.concatenate([part[2] for part in parts])
