"""Learning by any contender: its command, and the returns in what it prints."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from contenders import PEERS, Layout, our_command
from workloads import ENVPOOL, EPISODES, Settings


@dataclass(frozen=True)
class Point:
    """A mean return of the last training episodes, after so many environment steps."""

    env_steps: int
    mean: float
    episodes: int

    def solves(self, threshold: float) -> bool:
        """Whether enough episodes are behind it, and it is high enough."""
        return self.episodes >= EPISODES and self.mean >= threshold


def parse_point(line: str) -> Point | None:
    """What a runner's line says of returns, if it does."""
    if not line.startswith("RETURN "):
        return None
    try:
        return Point(**json.loads(line.removeprefix("RETURN ")))
    except (json.JSONDecodeError, TypeError):
        return None


def our_points(run_dir: Path) -> list[Point]:
    """The points of a run of ours, from its metrics; none where it has not come to any."""
    path = run_dir / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []
    return [
        Point(int(line["env_steps"]), float(line["episode_return_mean"]), int(line["episodes"]))
        for line in lines
        if line.get("episode_return_mean") is not None
    ]


def thinned(points: list[Point], most: int = 500) -> list[list[float]]:
    """Environment steps and mean return of at most so many points, the last one included."""
    step = -(-len(points) // most) if points else 1
    kept = [*points[:-1:step], *points[-1:]]
    return [[point.env_steps, point.mean] for point in kept]


def peer_command(
    peer: str, task: str, layout: Layout, seed: int, env_steps: int, changes: dict[str, Any]
) -> list[str]:
    """Learns a task with a peer."""
    learn = ["--learn", str(env_steps), "--seed", str(seed), "--settings", json.dumps(changes)]
    return PEERS[peer].command(task, layout, *learn)


def our_equal_command(settings: Settings, env_steps: int, seed: int, run_dir: Path) -> list[str]:
    """Learns with ours under the settings that all contenders have."""
    normalize = str(settings.normalize).lower()
    changes = {
        "actor.envs": settings.num_envs,
        "algorithm.rollout_length": settings.horizon,
        "algorithm.epochs": settings.epochs,
        "algorithm.minibatches": settings.minibatches,
        "algorithm.learning_rate": settings.learning_rate,
        "algorithm.learning_rate_schedule": "linear" if settings.anneal_steps else "constant",
        "algorithm.entropy_coefficient": settings.entropy_coefficient,
        "algorithm.gamma": settings.gamma,
        "algorithm.gae_lambda": settings.gae_lambda,
        "algorithm.clip": settings.clip,
        "algorithm.value_coefficient": settings.value_coefficient,
        "algorithm.max_grad_norm": settings.max_grad_norm,
        "algorithm.adam_eps": settings.adam_eps,
        "algorithm.max_policy_age": settings.max_policy_age,
        "network.convolutions": json.dumps(settings.convolutions),
        "network.image_features": settings.image_features,
        "network.initial_log_std": settings.log_std,
        "network.normalize_obs": normalize,
        "network.normalize_returns": normalize,
        "logging.interval_seconds": 0.2,
    }
    pairs = [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]
    return our_command(
        "train",
        f"envpool:{ENVPOOL[settings.env]}",
        *("--steps", str(env_steps), "--seed", str(seed), "--run-dir", str(run_dir)),
        *pairs,
    )
