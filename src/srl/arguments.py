"""Turns the arguments of `srl.train` and `srl.resume` into an experiment."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from srl.experiment import Experiment
from srl.launch.directory.run_dir import RunDir, split_source
from srl.overrides import override
from srl.recipes.target import DEFAULT_STEPS, absolute, find_experiment
from srl.resolve import refuse_while_importing
from srl.settings_objects import Part, part_settings


def assemble(
    target: Any,
    *,
    algorithm: Any = None,
    network: Any = None,
    layout: str | None = None,
    launcher: str | None = None,
    listen: str | None = None,
    steps: int | None = None,
    seconds: float | None = None,
    until: str | None = None,
    seed: int | None = None,
    device: str | None = None,
    env_args: dict[str, Any] | None = None,
    init_from: str | Path | None = None,
    set: Mapping[str, Any] | None = None,
) -> Experiment:
    """The experiment that the arguments of `train` describe, checked."""
    refuse_while_importing("srl.train")
    given = {
        "layout": layout,
        "launcher": launcher,
        "listen": listen,
        "steps": steps,
        "seconds": seconds,
        "until": until,
        "seed": seed,
        "trainer.device": device,
    }
    # A setting in `set` is more specific than an object with all settings.
    parts = {**_part("algorithm", algorithm), **_part("network", network), **(set or {})}
    found = find_experiment(target, env_args, parts.get("algorithm.name", ""))
    experiment = override(found, _settings(parts, given))
    if init_from is not None:
        experiment = _with_source(experiment, str(init_from))
    if not (experiment.steps or experiment.seconds or experiment.until):
        experiment = dataclasses.replace(experiment, steps=DEFAULT_STEPS)
    _check_until(experiment)
    return _with_absolute_callbacks(experiment)


def resumed(
    run_dir: str | Path,
    *,
    device: str | None = None,
    set: Mapping[str, Any] | None = None,
    trust: bool = False,
    **given: Any,
) -> Experiment:
    """The experiment that the arguments of `resume` describe, checked.

    `given` has the arguments that have no special treatment.
    """
    refuse_while_importing("srl.resume")
    settings = _settings(set, {**given, "trainer.device": device})
    directory = RunDir(Path(run_dir))
    experiment = override(directory.read_trusted(trust=trust), settings)
    directory.check_commands(experiment, trust=trust)
    _check_until(experiment)
    return _with_absolute_callbacks(experiment)


def _part(part: Part, given: Any) -> dict[str, Any]:
    """The settings by dotted key of an algorithm or a network: a name, a dict or an object."""
    if given is None:
        return {}
    settings = {"name": given} if isinstance(given, str) else part_settings(given, part)
    if isinstance(settings.get("name"), str):
        settings["name"] = absolute(settings["name"])
    return {f"{part}.{key}": value for key, value in settings.items()}


def _settings(set: Mapping[str, Any] | None, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of `set`, and all arguments in `given` that are not None."""
    settings = {**(set or {}), **{key: value for key, value in given.items() if value is not None}}
    if settings.get("until") == "none":
        settings["until"] = ""
    return settings


def _with_source(experiment: Experiment, source: str) -> Experiment:
    """Lets every policy in training start with weights from one checkpoint of another run."""
    run, checkpoint, named = split_source(source)
    known = RunDir(run).read_config().policies
    if checkpoint == "best":
        # Raises where each policy has a best checkpoint of its own: `best` is then ambiguous.
        RunDir(run).store().find(checkpoint)
    # `best:POLICY` and `best:POLICY/SIDE` name a checkpoint; `12:POLICY` names a policy.
    by_name = not named or ":" in checkpoint
    _, at, rest = source.partition("@")
    source = f"{run.resolve()}{at}{rest}"
    policies = {}
    for name, policy in experiment.policies.items():
        if policy.mode == "train":
            own = policy.source_policy or (name if by_name and name in known else "")
            policy = dataclasses.replace(policy, source=source, source_policy=own)
        policies[name] = policy
    return dataclasses.replace(experiment, policies=policies)


def _with_absolute_callbacks(experiment: Experiment) -> Experiment:
    """Names files of callbacks so that a resume from another folder finds them."""
    paths = tuple(absolute(path) for path in experiment.logging.callbacks)
    logging = dataclasses.replace(experiment.logging, callbacks=paths)
    return dataclasses.replace(experiment, logging=logging)


def _check_until(experiment: Experiment) -> None:
    if experiment.until:
        from srl.launch.plan.build import metric_names
        from srl.services.until import parse_until

        # The plan checks names of agents, because it knows the environment.
        parse_until(experiment.until, metric_names(experiment.policies, None))
