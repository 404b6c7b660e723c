"""How many actors, groups, policy workers and threads suit a machine, where they are left open.

Decided from names and settings, before anything runs, so that the same experiment runs in the same
way every time. `srl tune` measures instead.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from srl.envs.weight import has_pixels, is_body, is_tiny, pool_threads
from srl.errors import ConfigError
from srl.experiment import Experiment

LIGHT_EPOCHS = 4
"""A trainer that goes over its data no more often than this leaves time for environments."""


def settle_counts(experiment: Experiment, cores: int, device: str) -> Experiment:
    """Replaces the zeros of an experiment whose layout is settled."""
    actor = experiment.actor
    count, groups = _actors_and_groups(experiment, cores)
    if actor.envs % (count * groups):
        raise ConfigError(
            f"actor.envs: expected a multiple of actor.count x actor.groups = {count} x {groups}, "
            f"got {actor.envs}. Change one of the three."
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
        # Elsewhere the cores are others.
        changed["env"] = dataclasses.replace(env, threads=max(1, cores // count))
    return dataclasses.replace(experiment, **changed)


def _actors_and_groups(experiment: Experiment, cores: int) -> tuple[int, int]:
    """What is asked for; where nothing is, as near to what suits as divides the environments."""
    layout, actor = experiment.layout, experiment.actor
    count = 1 if layout == "serial" else actor.count or _actors(experiment, cores)
    groups = actor.groups or _groups(layout, count, cores)
    if not actor.groups and actor.envs % (count * groups):
        groups = 1
    if not actor.count or layout == "serial":
        while actor.envs % (count * groups):
            count -= 1
    return count, groups


def _actors(experiment: Experiment, cores: int) -> int:
    """One core is left for the trainer, and other processes take turns on the rest. Of two cores
    that would be half of the machine, which a trainer with little to do does not need."""
    if cores == 2 and _environments_are_most(experiment):
        return 2
    return max(1, cores - 1)


def _groups(layout: str, actors: int, cores: int) -> int:
    """With a second group an actor has something to step while the first waits for its actions.
    Where there is an actor for every core, another actor has: larger groups take fewer calls."""
    if layout == "remote":
        return 2
    return 2 if layout == "shared" and actors < cores else 1


def _policy_workers(experiment: Experiment, actors: int, cores: int, device: str) -> int:
    """One answers many at once. But where each of two cores has an actor, both may wait for it at
    once: with one for each, an actor's core is used by who answers it."""
    on_cpu = (experiment.inference.device or device) == "cpu"
    return 2 if experiment.layout == "shared" and on_cpu and cores == 2 and actors >= 2 else 1


def _environments_are_most(experiment: Experiment) -> bool:
    """Whether to step environments takes more time than to choose actions and to learn."""
    id = experiment.env.id
    remembers = experiment.network.get("recurrent", "none") != "none"
    if is_tiny(id) or remembers or experiment.algorithm.get("epochs", 0) > LIGHT_EPOCHS:
        return False
    return is_body(id) or not id.startswith("envpool:")


def _trainer_threads(experiment: Experiment, cores: int, device: str) -> int:
    """Convolutions are worth threads; where data is used once, actors need the cores as much."""
    if device != "cpu" or experiment.layout == "serial" or not has_pixels(experiment.env.id):
        return 1
    again = experiment.algorithm.get("epochs", LIGHT_EPOCHS) > 1
    return min(cores, max(2, cores // 2)) if again else 1
