"""Finds the experiment for a user's target: a recipe, an environment or a class."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from srl.algorithms.ppo.config import PPOConfig
from srl.data.memory_layout import Shape
from srl.data.spec import AgentSpec, ArraySpec, Box, EnvSpec
from srl.data.tree import leaves
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError, nearest
from srl.experiment import NAME, Experiment, PolicyConfig
from srl.recipes import RECIPES, find_recipe
from srl.resolve import path_of, resolve
from srl.tracebacks import user_code
from srl.workers.actor import ActorConfig

BATCH_BYTES = 256_000_000
"""Most bytes of observations in a default batch. Memory holds four such batches, and a CPU learns
from one in about a minute."""
DEFAULT_STEPS = 1_000_000
"""Steps of training for an environment without a recipe, if nothing else ends the run."""


def find_experiment(target: Any, env_args: dict[str, Any] | None = None) -> Experiment:
    """The experiment for a name, a class, a function or an Experiment."""
    if isinstance(target, str) and target in RECIPES:
        return _with_args(find_recipe(target)(), env_args or {})
    from srl.envs.ids import with_importable_id

    experiment = _user_experiment(target, env_args or {})
    env = with_importable_id(experiment.env)
    return experiment if env is experiment.env else dataclasses.replace(experiment, env=env)


def _user_experiment(target: Any, args: dict[str, Any]) -> Experiment:
    """The experiment for a target that is not one of SRL's recipes."""
    if isinstance(target, Experiment):
        return _with_args(target, args)
    if not isinstance(target, str):
        if not callable(target):
            raise ConfigError(
                "train: expected a recipe, an environment's id, a class, a function or an "
                f"Experiment, got {type(target).__name__}."
            )
        target = path_of(target)
    if ":" in target and not target.startswith(("envpool:", "pettingzoo:")):
        target = absolute(target)
        recipe = _user_recipe(target)
        if recipe is not None:
            return _with_args(recipe, args)
    elif ":" not in target:
        _check_name(target)
    return for_env(EnvConfig(id=target, args=args))


def for_env(env: EnvConfig) -> Experiment:
    """PPO for an environment, with settings chosen by its observations and actions."""
    from srl.envs.ids import with_importable_id
    from srl.envs.registry import probe

    # Every process will make the environment in this way; now any import error shows.
    made = with_importable_id(env)
    spec = probe(made)
    agents = list(spec.agents.items())
    groups: list[tuple[AgentSpec, list[str]]] = []
    for name, agent in agents:
        for known, names in groups:
            if known == agent:
                names.append(name)
                break
        else:
            groups.append((agent, [name]))
    # Agents with equal spaces share a policy; other agents cannot.
    policies = {"default": PolicyConfig()}
    if len(groups) > 1:
        policies = {}
        for _, names in groups:
            policies[_policy_name(names[0], policies)] = PolicyConfig(agents=tuple(names))
    actor, algorithm, network = _settings(groups[0][0])
    actor, algorithm = _fit_to_memory(actor, algorithm, spec)
    name = env.id.split(":")[-1].split("/")[-1]
    return Experiment(
        name=name, env=made, actor=actor, algorithm=algorithm, network=network, policies=policies
    )


def _policy_name(agent: str, taken: Collection[str]) -> str:
    """A valid policy name that is not in `taken`, as close to an agent's name as possible."""
    stem = re.sub(r"[^A-Za-z0-9_.-]", "_", agent)[:50]
    if not NAME.fullmatch(stem):
        stem = f"_{stem}"
    name, number = stem, 1
    while name in taken:
        number += 1
        name = f"{stem}-{number}"
    return name


def absolute(path: str) -> str:
    """An import path that still works from another folder."""
    file, _, attribute = path.rpartition(":")
    return f"{Path(file).resolve()}:{attribute}" if file.endswith(".py") else path


def _settings(agent: AgentSpec) -> tuple[ActorConfig, dict[str, Any], dict[str, Any]]:
    algorithm: dict[str, Any] = {"name": "ppo"}
    network: dict[str, Any] = {"name": "actor_critic"}
    if any(_is_image(leaf) for leaf in leaves(agent.obs)):
        # The settings that Mnih et al. (2015) and the PPO paper use for Atari.
        algorithm |= {"clip": 0.1, "learning_rate": 2.5e-4, "clip_reward": "sign"}
        return ActorConfig(envs=8), algorithm, network
    network |= {"normalize_obs": True, "normalize_returns": True}
    # Small networks learn fast, and data one version old then teaches less.
    algorithm["max_policy_age"] = 0
    if isinstance(agent.action, Box):
        algorithm |= {
            "epochs": 10,
            "minibatches": 16,
            "learning_rate": 3e-4,
            "entropy_coefficient": 0.0,
        }
    else:
        algorithm |= {"learning_rate": 1e-3}
    return ActorConfig(envs=16), algorithm, network


def _fit_to_memory(
    actor: ActorConfig, algorithm: dict[str, Any], spec: EnvSpec
) -> tuple[ActorConfig, dict[str, Any]]:
    """Fewer environments and shorter rollouts where observations are large or agents are many."""
    seen = sum(
        Shape(leaf.shape, leaf.dtype).nbytes
        for agent in spec.agents.values()
        for leaf in leaves(agent.obs)
    )
    envs, ticks = actor.envs, PPOConfig.rollout_length
    # In small steps, so that neither becomes 1 while the other is large.
    for fewest, shortest in ((4, 32), (2, 16), (1, 1)):
        while envs > fewest and envs * ticks * seen > BATCH_BYTES:
            envs //= 2
        while ticks > shortest and envs * ticks * seen > BATCH_BYTES:
            ticks //= 2
    if ticks != PPOConfig.rollout_length:
        algorithm = {**algorithm, "rollout_length": ticks}
    return dataclasses.replace(actor, envs=envs), algorithm


def _is_image(leaf: ArraySpec) -> bool:
    return leaf.dtype == "uint8" and len(leaf.shape) + (leaf.stack > 1) >= 3


def _with_args(experiment: Experiment, args: dict[str, Any]) -> Experiment:
    if not args:
        return experiment
    env = dataclasses.replace(experiment.env, args={**experiment.env.args, **args})
    return dataclasses.replace(experiment, env=env)


def _user_recipe(path: str) -> Experiment | None:
    """The experiment of a user's recipe, or None if the path names an environment.

    A function is a recipe if its return annotation is `Experiment`.
    """
    from srl.envs.ids import is_gymnasium_id

    if is_gymnasium_id(path):
        return None
    found = resolve(path)
    if isinstance(found, Experiment):
        return found
    returns = getattr(found, "__annotations__", {}).get("return")
    # With `from __future__ import annotations` this is text, for example `srl.Experiment`.
    if returns is Experiment or str(returns).rpartition(".")[2] == "Experiment":
        with user_code(f"recipe {path!r}"):
            made: Experiment = found()
        return made
    return None


def _check_name(name: str) -> None:
    """Raises if no recipe and no environment has this name."""
    from srl.envs.ids import OWN_GROUPS, find_gymnasium, gymnasium_ids

    if name in OWN_GROUPS:
        return
    try:
        find_gymnasium(name)
    except ConfigError:
        known = [*RECIPES, *OWN_GROUPS, *gymnasium_ids()]
        raise ConfigError(
            f"no recipe or environment is named {name!r}: {nearest(name, known)}"
        ) from None
