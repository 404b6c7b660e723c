"""Chooses the numbers of actors, groups, policy workers and threads that the settings leave open.

The choice depends only on the environment's family, settings and the number of cores, so that the
same experiment runs in the same way every time. `srl tune` measures instead.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from srl.envs.cost_hints import has_pixels, is_tiny, pool_threads, simulates_bodies
from srl.errors import ConfigError
from srl.experiment import Experiment, algorithm_of_policy

LIGHT_REUSE = 4
"""A trainer that learns at most this often from each step leaves processor time for
environments."""
FEW_CORES = 3
"""With at most so many cores, one core is a large part of the machine. Then no process gets a core
to itself that it does not need."""


def choose_counts(experiment: Experiment, cores: int, device: str) -> Experiment:
    """Replaces counts of 0 in an experiment whose layout is already chosen."""
    actor = experiment.actor
    count, groups = _actors_and_groups(experiment, cores)
    if actor.envs % (count * groups):
        raise ConfigError(
            f"actor.envs: expected a multiple of actor.count x actor.groups = {count} x {groups}, "
            f"got {actor.envs}. Change one of the three."
        )
    for name, group in experiment.actors.items():
        if group.envs % (actor.envs // count):
            raise ConfigError(
                f"actors.{name}.envs: expected a multiple of the environments of one actor "
                f"({actor.envs // count}: actor.envs / actor.count), got {group.envs}. Change one "
                "of the three."
            )
    serial = experiment.layout == "serial"
    policies = experiment.inference.count or _policy_workers(experiment, count, cores, device)
    if experiment.layout in ("serial", "inline"):
        policies = 1
    changed: dict[str, Any] = {
        "actor": dataclasses.replace(actor, count=count, groups=groups),
        "trainer": dataclasses.replace(
            experiment.trainer,
            count=1 if serial else experiment.trainer.count,
            threads=experiment.trainer.threads or _trainer_threads(experiment, cores, device),
        ),
        "inference": dataclasses.replace(experiment.inference, count=policies),
    }
    env = experiment.env
    if not env.threads and pool_threads(env) == 0 and experiment.layout != "remote":
        # Not for `remote`: the cores of other hosts are unknown.
        changed["env"] = dataclasses.replace(env, threads=max(1, cores // count))
    return dataclasses.replace(experiment, **changed)


def _actors_and_groups(experiment: Experiment, cores: int) -> tuple[int, int]:
    """Actors, and groups of each actor: as set, or else suitable counts that divide the number of
    environments."""
    layout, actor = experiment.layout, experiment.actor
    count = 1 if layout == "serial" else actor.count or _actors(experiment, cores)
    groups = actor.groups or _groups(layout, count, cores)
    if not actor.groups and actor.envs % (count * groups):
        groups = 1
    if not actor.count or layout == "serial":
        # The next smaller number that divides all environments into equal actors, or else a larger.
        numbers = (*range(count, 0, -1), *range(count + 1, actor.envs + 1))
        sizes = [actor.envs, *(group.envs for group in experiment.actors.values())]
        for number in numbers:
            own = actor.envs // number
            if not actor.envs % (number * groups) and not any(size % own for size in sizes):
                return number, groups
    return count, groups


def _actors(experiment: Experiment, cores: int) -> int:
    """Number of actors: one for each core but one, which is left for the trainer. Of few cores a
    trainer with little work gets none to itself."""
    shared = cores <= FEW_CORES and _environments_dominate(experiment)
    return cores if shared else max(1, cores - 1)


def _groups(layout: str, actors: int, cores: int) -> int:
    """Number of groups of each actor. With two groups an actor can step one while the other waits
    for its actions. With an actor for every core, another actor can use the core, and one larger
    group takes fewer calls."""
    if layout == "remote":
        return 2
    return 2 if layout == "shared" and actors < cores else 1


def _policy_workers(experiment: Experiment, actors: int, cores: int, device: str) -> int:
    """Number of policy workers: one, because it answers many requests at once. If each of few cores
    has an actor, there is one for each: then inference can use the core of the waiting actor."""
    on_cpu = (experiment.inference.device or device) == "cpu"
    each = experiment.layout == "shared" and on_cpu and cores <= min(actors, FEW_CORES)
    return cores if each else 1


def _environments_dominate(experiment: Experiment) -> bool:
    """Whether stepping environments takes more time than inference and learning together."""
    id = experiment.env.id
    is_recurrent = experiment.network.get("recurrent", "none") != "none"
    if is_tiny(id) or is_recurrent or _reuse(experiment) > LIGHT_REUSE:
        return False
    return simulates_bodies(id) or not id.startswith("envpool:")


def _trainer_threads(experiment: Experiment, cores: int, device: str) -> int:
    """Threads of a trainer: several for convolutions, if the data is used more than once. Else the
    actors need the cores as much."""
    if device != "cpu" or experiment.layout == "serial" or not has_pixels(experiment.env.id):
        return 1
    return min(cores, max(2, cores // 2)) if _reuse(experiment) > 1 else 1


def _reuse(experiment: Experiment) -> float:
    """How often the busiest trainer learns from each step."""
    trained = [name for name, policy in experiment.policies.items() if policy.mode == "train"]
    return max((algorithm_of_policy(experiment, name).reuse() for name in trained), default=0.0)
