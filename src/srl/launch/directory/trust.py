"""Finds the code that a run's configuration would import or execute, and asks for trust in it.

SRL's own algorithms, policies and environments, and ids that Gymnasium, EnvPool or PettingZoo have
registered, are always imported. All other code that a run names is imported only if this user has
signed the run (`signature.py`) or gives `--trust`.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from srl.algorithms.registry import ALGORITHMS
from srl.envs.factory import PETTINGZOO_PACKAGES, PETTINGZOO_PARTS
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.directory.signature import unsigned_because
from srl.policies.registry import ENCODERS, POLICIES
from srl.resolve import local_file, with_current_folder
from srl.resources import RayConfig, SlurmConfig
from srl.settings import to_plain

OWN_ENVS = (
    "srl.envs.tasks.memory",
    "srl.envs.tasks.two_step_game",
    "srl.testing.envs",
    "srl.testing.team_envs",
    "srl.envs.tasks.masked_pool",
)
"""SRL modules whose environments any run may name. All other modules need trust: for example,
`srl.resolve:os.system` names a dangerous function through an SRL module."""
_PLAIN_TEXT = re.compile(r"[\w-]*")
"""Text that cannot be a path, an import path or a command."""


@dataclass(frozen=True)
class NamedCode:
    """One setting that decides which code runs."""

    setting: str
    value: str
    location: str
    """The location of the code: a file, "Python itself", or what is done with the value."""


def named_code(experiment: Experiment) -> list[NamedCode]:
    """Code that an experiment imports, other than SRL's own and registered environments."""
    found = list(_env_code(experiment.env))
    parts: dict[str, dict[str, Any]] = {
        "algorithm": experiment.algorithm,
        "network": experiment.network,
    }
    for name, policy in experiment.policies.items():
        parts[f"policies.{name}.algorithm"] = policy.algorithm
        parts[f"policies.{name}.network"] = policy.network
    for setting, part in parts.items():
        known = ALGORITHMS if setting.endswith("algorithm") else POLICIES
        name = str(part.get("name", ""))
        if name and name not in known and name not in known.values():
            found.append(_imported(f"{setting}.name", name))
        found += [
            _imported(f"{setting}.{key}", text)
            for key, value in part.items()
            if key != "name"
            for text in _texts(value)
            if ":" in text and text not in ENCODERS.values()
        ]
    if experiment.dataflow:
        found.append(_imported("dataflow", experiment.dataflow))
    found += [_imported("logging.callbacks", path) for path in experiment.logging.callbacks]
    return found


def named_commands(experiment: Experiment) -> list[NamedCode]:
    """Settings that a launcher executes, installs, sends away or connects to.

    Settings of launchers that are not in use count too. A signature covers the whole configuration,
    so a user who signs it also agrees to a later resume with another launcher.
    """
    launchers: tuple[tuple[str, RayConfig | SlurmConfig, str], ...] = (
        ("slurm", experiment.slurm, "written into a job's script"),
        ("ray", experiment.ray, "given to Ray"),
    )
    found = []
    for name, settings, location in launchers:
        usual = to_plain(type(settings)())
        found += [
            NamedCode(f"{name}.{key}", _shown(value), location)
            for key, value in to_plain(settings).items()
            if value != usual[key] and not isinstance(value, int | float)
        ]
    return found


def check_trust(
    run_dir: Path,
    config: bytes,
    named: list[NamedCode],
    *,
    code: list[NamedCode] | None = None,
    trust: bool,
) -> None:
    """Raises if a run names code that the user has not agreed to, and lists that code.

    `code` is all code that the run's signature covers; give it if `named` is not the same.
    """
    if trust or not named:
        return
    reason = unsigned_because(run_dir, config, code_locations(named if code is None else code))
    if not reason:
        return
    width = max(len(one.setting) for one in named)
    lines = [f"  {one.setting:<{width}}  {one.value}  ({one.location})" for one in named]
    raise ConfigError(
        f"{run_dir}: this run names code that is not part of SRL, and {reason}. It would use:\n"
        + "\n".join(lines)
        + "\nThis code would run with your rights. Look at it first; then give --trust (in Python: "
        "trust=True)."
    )


def code_locations(named: list[NamedCode]) -> list[tuple[str, str, str]]:
    """The code locations that a signature covers besides the configuration itself."""
    return [(one.setting, one.value, one.location) for one in named]


def _env_code(env: EnvConfig) -> Iterator[NamedCode]:
    is_known = True
    kind, colon, rest = env.id.partition(":")
    if kind == "pettingzoo":
        is_known = re.fullmatch(r"\w+(\.\w+)*_v\d+", rest) is not None
        is_known = is_known and rest.partition(".")[0] in (*PETTINGZOO_PACKAGES, *PETTINGZOO_PARTS)
        if not is_known:
            yield NamedCode("env.id", env.id, _module_location(rest))
    elif colon and kind != "envpool":
        is_known = kind in OWN_ENVS and rest.isidentifier() and not rest.startswith("_")
        if not is_known:
            yield _imported("env.id", env.id)
    for key, value in env.args.items():
        if not is_known or not all(_PLAIN_TEXT.fullmatch(text) for text in _texts(value)):
            yield NamedCode(f"env.args.{key}", _shown(value), "given to the environment")


def _imported(setting: str, path: str) -> NamedCode:
    name = path.rpartition(":")[0]
    if name.endswith(".py"):
        file = local_file(name)
        return NamedCode(setting, path, str(file) if file.is_file() else f"{file}: no such file")
    return NamedCode(setting, path, _module_location(name))


def _module_location(name: str) -> str:
    """The file that `import name` would load, found without importing anything."""
    if not re.fullmatch(r"\w+(\.\w+)*", name):
        return "no module"
    first, *rest = name.split(".")
    try:
        with with_current_folder():
            spec = importlib.util.find_spec(first)
    except (ImportError, ValueError):
        spec = getattr(sys.modules.get(first), "__spec__", None)
    full = first
    for part in rest:
        full = f"{full}.{part}"
        if spec is None or spec.submodule_search_locations is None:
            break
        spec = PathFinder.find_spec(full, list(spec.submodule_search_locations))
    if spec is None:
        return "no such module here"
    if spec.origin in ("built-in", "frozen"):
        return "Python itself"
    if spec.origin is None:
        return ", ".join(spec.submodule_search_locations or ["unknown"])
    return str(Path(spec.origin).resolve())


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from _texts(key)
            yield from _texts(inner)
    elif isinstance(value, list | tuple | set):
        for inner in value:
            yield from _texts(inner)
    elif not isinstance(value, bool | int | float | None):
        yield str(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."
