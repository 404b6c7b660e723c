"""Which groups of actors an experiment has, and which policy plays which agent in each of them."""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import Mapping
from typing import Protocol

from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError
from srl.workers.actor import ActorConfig, ActorsConfig

MAIN = "actor"
"""The worker group of the actors that `actor` describes; the others are `actor-NAME`."""


class HasAgents(Protocol):
    """A policy's settings, as far as they concern its agents."""

    @property
    def agents(self) -> tuple[str, ...]:
        """Name patterns of its agents."""


class HasActors(Protocol):
    """An experiment, as far as it concerns actors."""

    @property
    def env(self) -> EnvConfig:
        """The environment."""

    @property
    def policies(self) -> Mapping[str, HasAgents]:
        """The policies."""

    @property
    def actor(self) -> ActorConfig:
        """The first group of actors."""

    @property
    def actors(self) -> Mapping[str, ActorsConfig]:
        """Further groups."""


def actor_groups(experiment: HasActors) -> dict[str, ActorsConfig]:
    """The groups of actors by worker group, with the settings that they leave open filled in."""
    common = {name: policy.agents for name, policy in experiment.policies.items() if policy.agents}
    envs = experiment.actor.envs
    found = {MAIN: ActorsConfig(envs=envs, agents=common)}
    for name, group in experiment.actors.items():
        found[f"{MAIN}-{name}"] = dataclasses.replace(
            group, envs=group.envs or envs, agents=group.agents or common
        )
    return found


def num_actors(experiment: HasActors, group: ActorsConfig) -> int:
    """Actors of a group, where the number of those of `actor` is decided: all actors have equally
    many environments."""
    return max(1, group.envs * experiment.actor.count // experiment.actor.envs)


def env_of(experiment: HasActors, group: ActorsConfig) -> EnvConfig:
    """The environments of a group of actors."""
    return dataclasses.replace(experiment.env, args={**experiment.env.args, **group.env_args})


def assign_agents(
    policies: Mapping[str, HasAgents], agents: list[str], *, idle: bool = False
) -> dict[str, tuple[str, ...]]:
    """Each policy's agents, by the first pattern that matches; a policy without patterns plays
    none.

    A policy whose patterns match no agent is an error; with `idle` it is left out instead.
    """
    patterns = {name: policy.agents for name, policy in policies.items() if policy.agents}
    return _assign(patterns, agents, "policies", idle=idle)


def _assign(
    patterns: Mapping[str, tuple[str, ...]], agents: list[str], where: str, *, idle: bool = False
) -> dict[str, tuple[str, ...]]:
    assigned: dict[str, list[str]] = {name: [] for name in patterns}
    for agent in agents:
        for name, own in patterns.items():
            if any(fnmatch.fnmatchcase(agent, pattern) for pattern in own):
                assigned[name].append(agent)
                break
        else:
            known = ", ".join(p for own in patterns.values() for p in own)
            raise ConfigError(
                f"{where}: expected a policy for every agent, got none for {agent!r} "
                f"(patterns: {known}). Add a pattern that matches it."
            )
    for name, found in assigned.items():
        if not found and not idle:
            raise ConfigError(
                f"{where}.{name}: expected at least one agent, got none; the agents are "
                f"{', '.join(agents)}. Change its patterns or remove it."
            )
    return {name: tuple(found) for name, found in assigned.items() if found}


def cast_policies(
    experiment: HasActors, agents: list[str]
) -> dict[str, dict[str, tuple[str, ...]]]:
    """The agents of each policy in each group of actors."""
    found = {}
    for name, group in actor_groups(experiment).items():
        own = experiment.actors.get(name.removeprefix(f"{MAIN}-"))
        where = f"actors.{name.removeprefix(f'{MAIN}-')}.agents" if own and own.agents else ""
        found[name] = _assign(group.agents, agents, where or "policies")
    return found


def check_actors(experiment: HasActors) -> None:
    """Raises if a group of actors names an unknown policy, or if a policy plays in none."""
    for name, group in experiment.actors.items():
        for policy in group.agents:
            if policy not in experiment.policies:
                raise ConfigError(
                    f"actors.{name}.agents: expected policies ({', '.join(experiment.policies)}), "
                    f"got {policy!r}."
                )
    groups = actor_groups(experiment)
    for policy in experiment.policies:
        if not any(policy in group.agents for group in groups.values()):
            raise ConfigError(
                f"policies.{policy}.agents: expected patterns of its agents, here or in one of "
                "actors.*.agents, got none. Give it agents or remove it."
            )
