"""Finds the experiment for a user's target: a recipe, an environment or a class."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from srl.algorithms.registry import algorithm_config
from srl.data.spec import AgentSpec
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError, nearest
from srl.experiment import NAME, Experiment, PolicyConfig
from srl.recipes import RECIPES, find_recipe
from srl.resolve import path_of, resolve
from srl.tracebacks import user_code
from srl.workers.actor import ActorConfig
from srl.workers.configs import EvaluatorConfig

DEFAULT_STEPS = 1_000_000
"""Steps of training for an environment without a recipe, if nothing else ends the run."""


def find_experiment(
    target: Any, env_args: dict[str, Any] | None = None, algorithm: str = ""
) -> Experiment:
    """The experiment for a name, a class, a function or an Experiment.

    `algorithm` names the algorithm that will train it: a recipe with another one gives only its
    task. Empty takes the recipe's own, or PPO.
    """
    if isinstance(target, str) and target in RECIPES:
        experiment = _with_args(find_recipe(target)(), env_args or {})
        return with_algorithm(experiment, algorithm)
    from srl.envs.ids import with_importable_id

    experiment = _user_experiment(target, env_args or {}, algorithm or "ppo")
    env = with_importable_id(experiment.env)
    if env is not experiment.env:
        experiment = dataclasses.replace(experiment, env=env)
    return with_algorithm(experiment, algorithm)


def with_algorithm(experiment: Experiment, algorithm: str) -> Experiment:
    """The same task, trained by an algorithm with the settings that it suggests."""
    if algorithm in ("", experiment.algorithm["name"]):
        return experiment
    suggested = for_env(experiment.env, algorithm)
    return dataclasses.replace(
        experiment,
        actor=dataclasses.replace(experiment.actor, envs=suggested.actor.envs),
        evaluator=dataclasses.replace(
            experiment.evaluator,
            count=experiment.evaluator.count or suggested.evaluator.count,
        ),
        algorithm=suggested.algorithm,
        network=suggested.network,
    )


def _user_experiment(target: Any, args: dict[str, Any], algorithm: str) -> Experiment:
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
    return for_env(EnvConfig(id=target, args=args), algorithm)


def for_env(env: EnvConfig, algorithm: str = "ppo") -> Experiment:
    """An experiment for an environment, with the settings that an algorithm suggests."""
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
    kind = algorithm_config(algorithm)
    with user_code(f"{kind.__name__}.suggest"):
        suggestion = kind.suggest(spec)
    return Experiment(
        name=env.id.split(":")[-1].split("/")[-1],
        env=made,
        actor=ActorConfig(envs=suggestion.envs),
        evaluator=EvaluatorConfig(count=suggestion.evaluators),
        algorithm={"name": algorithm, **suggestion.algorithm},
        network={"name": kind.network, **suggestion.network},
        policies=policies,
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
