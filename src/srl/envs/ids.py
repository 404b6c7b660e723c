"""Ids of environments: which ids are known, and which of them other processes can find."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import importlib
import importlib.metadata
import pkgutil
import re
from pathlib import Path
from typing import Any

import gymnasium
from gymnasium.envs.registration import EnvSpec as GymnasiumSpec

from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError, SrlError, nearest
from srl.extras import import_extra, installed
from srl.resolve import load, path_of, resolve

OWN_GROUPS = {
    name: "srl.envs.hide_and_seek.group:HideAndSeekGroup"
    for name in (
        "hide_and_seek",
        "hide_and_seek_quadrant",
        "hide_and_seek_chase",
        "hide_and_seek_fort",
    )
}
"""Environments of this package that step many worlds by one call: the group's class, by id."""
_LEGACY_ATARI = re.compile(r"(NoFrameskip|Deterministic)-v4$")


def is_gymnasium_id(name: str) -> bool:
    """Whether a name looks like Gymnasium's: it ends in a version."""
    return re.search(r"-v\d+$", name) is not None


def find_gymnasium(id: str) -> GymnasiumSpec:
    """The registered spec of an id. Loads the module or file before its colon first.

    The error for an unknown id has the nearest names.
    """
    path, _, name = id.rpartition(":")
    if name.startswith("ALE/") or _LEGACY_ATARI.search(name):
        register_atari(id)
    module = load(path) if path else None
    try:
        found = gymnasium.envs.registration._find_spec(name)
    except gymnasium.error.Error:
        hint = nearest(name, [*OWN_GROUPS, *gymnasium_ids()])
        if path:
            hint = f"{path} does not register it; {hint}"
        raise ConfigError(f"unknown environment {id!r}: {hint}") from None
    return found if module is None else _as_loaded(found, module)


def _as_loaded(spec: GymnasiumSpec, module: Any) -> GymnasiumSpec:
    """The spec, with entry points into a user's file changed to the module that it was loaded as.

    A loaded file is neither the main program nor importable by its own name.
    """
    file = getattr(module, "__srl_file__", None)
    if file is None:
        return spec
    names = ("__main__", Path(file).stem)
    changed = copy.copy(spec)
    for point in ("entry_point", "vector_entry_point"):
        source, _, attribute = str(getattr(spec, point)).partition(":")
        if source in names and hasattr(module, attribute):
            setattr(changed, point, f"{module.__name__}:{attribute}")
    return changed


def with_importable_id(config: EnvConfig) -> EnvConfig:
    """The settings, with an id that every process can find.

    Only this process knows an id that the user's program registered. Such an id is replaced by the
    import path of the class or function behind it.
    """
    spec = gymnasium.registry.get(config.id)
    if spec is None or _known_to_every_process(spec):
        return config
    if spec.additional_wrappers:
        raise ConfigError(
            f"env {config.id!r}: expected an id that worker processes can find, got one with "
            "additional_wrappers that this program registered. Register it in a .py file and use: "
            f"file.py:{config.id}"
        )
    point = spec.entry_point or spec.vector_entry_point
    path = point if isinstance(point, str) else path_of(point)
    if path.startswith("__main__:"):
        path = path_of(resolve(path))
    return dataclasses.replace(
        config,
        id=path,
        args={**spec.kwargs, **config.args},
        max_episode_steps=config.max_episode_steps or spec.max_episode_steps or 0,
    )


def _known_to_every_process(spec: GymnasiumSpec) -> bool:
    """Whether every process that imports Gymnasium has the id (Gymnasium, Atari or a plugin)."""
    point = spec.entry_point or spec.vector_entry_point
    package = (point if isinstance(point, str) else point.__module__).partition(".")[0]
    package = package.partition(":")[0]
    if package == "gymnasium":
        source = Path(gymnasium.envs.__file__).read_text()
        return f'"{spec.id}"' in source and (not isinstance(point, str) or f'"{point}"' in source)
    plugins = importlib.metadata.entry_points(group="gymnasium.envs")
    return package == "ale_py" or package in {plugin.module.partition(".")[0] for plugin in plugins}


def gymnasium_ids() -> list[str]:
    """Registered ids without those that need JAX or a package that Gymnasium dropped."""
    with contextlib.suppress(SrlError):
        register_atari("ALE")
    return sorted(
        id for id in gymnasium.registry if not id.startswith(("phys2d/", "tabular/", "GymV"))
    )


def envpool_ids() -> list[str]:
    """EnvPool's ids; empty if EnvPool is not installed."""
    if not installed("envpool"):
        return []
    return sorted(import_extra("envpool", "envpool").list_all_envs())


def pettingzoo_ids() -> list[str]:
    """Modules of PettingZoo's and MPE's environments that are installed."""
    names = []
    for package in ("mpe2", "pettingzoo.classic", "pettingzoo.butterfly", "pettingzoo.sisl"):
        try:
            found = importlib.import_module(package)
        except ImportError:
            continue
        prefix = package.removeprefix("pettingzoo.")
        names += [
            f"{prefix}.{module.name}"
            for module in pkgutil.iter_modules(found.__path__)
            if re.search(r"_v\d+$", module.name)
        ]
    return sorted(names)


def register_atari(id: str) -> None:
    """Registers the ids of Atari's games with Gymnasium."""
    ale_py = import_extra("ale_py", f"environment {id!r}")
    ale_py.ALEInterface.setLoggerMode(ale_py.LoggerMode.Error)
    gymnasium.register_envs(ale_py)


def is_removed(spec: GymnasiumSpec) -> bool:
    """Whether Gymnasium keeps an id only to say that its environment has moved elsewhere."""
    point = spec.entry_point
    return callable(point) and point.__module__.partition(".")[0] == "gymnasium"
