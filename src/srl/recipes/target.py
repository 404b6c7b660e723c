"""From what a user names (a recipe, an environment, a class) to an experiment."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from srl.data.spec import AgentSpec, ArraySpec, Box
from srl.data.tree import leaves
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError, nearest
from srl.experiment import Experiment, PolicyConfig
from srl.recipes import RECIPES, find_recipe
from srl.resolve import path_of, resolve
from srl.workers.actor import ActorConfig

DEFAULT_STEPS = 1_000_000
"""How long an environment without a recipe is trained, if nothing else ends the run."""


def find_experiment(target: Any, env_args: dict[str, Any] | None = None) -> Experiment:
    """The experiment that a name, a class, a function or an Experiment stands for."""
    args = env_args or {}
    if isinstance(target, Experiment):
        return _with_args(target, args)
    if not isinstance(target, str):
        if not callable(target):
            raise ConfigError(
                "train: expected a recipe, an environment's id, a class, a function or an "
                f"Experiment, got {type(target).__name__}."
            )
        target = path_of(target)
    if target in RECIPES:
        return _with_args(find_recipe(target)(), args)
    if ":" in target and not target.startswith(("envpool:", "pettingzoo:")):
        target = absolute(target)
        recipe = _own_recipe(target)
        if recipe is not None:
            return _with_args(recipe, args)
    elif ":" not in target:
        _check_name(target)
    return for_env(EnvConfig(id=target, args=args))


def for_env(env: EnvConfig) -> Experiment:
    """PPO for an environment, with settings chosen by what its agents see and do."""
    from srl.envs.registry import probe

    spec = probe(env)
    agents = list(spec.agents.items())
    groups: list[tuple[AgentSpec, list[str]]] = []
    for name, agent in agents:
        for known, names in groups:
            if known == agent:
                names.append(name)
                break
        else:
            groups.append((agent, [name]))
    # Agents with equal spaces share a policy; others cannot.
    policies = {"default": PolicyConfig()}
    if len(groups) > 1:
        policies = {names[0]: PolicyConfig(agents=tuple(names)) for _, names in groups}
    actor, algorithm, network = _settings(groups[0][0])
    name = env.id.split(":")[-1].split("/")[-1]
    return Experiment(
        name=name, env=env, actor=actor, algorithm=algorithm, network=network, policies=policies
    )


def absolute(path: str) -> str:
    """An import path that still works from another folder."""
    file, _, attribute = path.rpartition(":")
    return f"{Path(file).resolve()}:{attribute}" if file.endswith(".py") else path


def _settings(agent: AgentSpec) -> tuple[ActorConfig, dict[str, Any], dict[str, Any]]:
    algorithm: dict[str, Any] = {"name": "ppo"}
    network: dict[str, Any] = {"name": "actor_critic"}
    if any(_is_image(leaf) for leaf in leaves(agent.obs)):
        # What Mnih et al. (2015) and the PPO paper use for Atari.
        algorithm |= {"clip": 0.1, "learning_rate": 2.5e-4, "clip_reward": "sign"}
        return ActorConfig(envs=8), algorithm, network
    network |= {"normalize_obs": True, "normalize_returns": True}
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


def _is_image(leaf: ArraySpec) -> bool:
    return leaf.dtype == "uint8" and len(leaf.shape) + (leaf.stack > 1) >= 3


def _with_args(experiment: Experiment, args: dict[str, Any]) -> Experiment:
    if not args:
        return experiment
    env = dataclasses.replace(experiment.env, args={**experiment.env.args, **args})
    return dataclasses.replace(experiment, env=env)


def _own_recipe(path: str) -> Experiment | None:
    """A user's function that says it returns an Experiment is a recipe, not an environment."""
    from srl.envs.making import is_gymnasium_id

    if is_gymnasium_id(path):
        return None
    found = resolve(path)
    if isinstance(found, Experiment):
        return found
    returns = getattr(found, "__annotations__", {}).get("return")
    # With `from __future__ import annotations` it is what stands there: `srl.Experiment`, say.
    if returns is Experiment or str(returns).rpartition(".")[2] == "Experiment":
        made: Experiment = found()
        return made
    return None


def _check_name(name: str) -> None:
    """Raises if a name without a colon is neither a recipe's nor an environment's."""
    from srl.envs.making import find_gymnasium, gymnasium_ids

    try:
        find_gymnasium(name)
    except ConfigError:
        known = [*RECIPES, *gymnasium_ids()]
        raise ConfigError(
            f"no recipe or environment is named {name!r}: {nearest(name, known)}"
        ) from None
