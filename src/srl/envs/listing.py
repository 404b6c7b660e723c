"""Lists the environment ids that can be started on this machine."""

from __future__ import annotations

import contextlib
import io
import warnings
from typing import Any

import gymnasium

from srl.envs.ids import OWN_GROUPS, envpool_ids, gymnasium_ids, is_removed, pettingzoo_ids
from srl.envs.jax_start import jax_ids
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe
from srl.errors import SrlError
from srl.extras import import_extra, installed

_NEEDED_PACKAGES = {
    "ale_py": ("cv2",),
    "gymnasium.envs.box2d": ("Box2D",),
    "gymnasium.envs.mujoco": ("mujoco",),
}
"""Packages that environments need, by the start of their entry point."""


def list_envs() -> list[str]:
    """Ids of Gymnasium, Atari, EnvPool, JAX and PettingZoo with packages and libraries installed.

    Only PettingZoo's environments are made to find out; to make the others would take long.
    """
    names = [id for id in gymnasium_ids() if _has_packages(gymnasium.registry[id])]
    names += OWN_GROUPS if installed("mujoco") else ()
    names += [f"envpool:{name}" for name in _playable_envpool_ids()]
    names += jax_ids()
    names += [id for name in pettingzoo_ids() if _can_be_made(id := f"pettingzoo:{name}")]
    return names


def _has_packages(spec: Any) -> bool:
    needed = [
        package
        for start, packages in _NEEDED_PACKAGES.items()
        if str(spec.entry_point).startswith(start)
        for package in packages
    ]
    return not is_removed(spec) and all(installed(package) for package in needed)


def _playable_envpool_ids() -> list[str]:
    """EnvPool's ids with one player, of classes whose libraries are installed."""
    names = envpool_ids()
    if not names:
        return []
    envpool = import_extra("envpool", "envpool")
    specs = envpool.registration.registry.specs
    players: dict[tuple[str, str], int] = {}
    found = []
    for name in names:
        module, kind, settings = specs[name]
        if any(key.endswith("cfg_path") and not value for key, value in settings.items()):
            # It plays a scenario file, which the user has to name.
            continue
        if (module, kind) not in players:
            try:
                players[module, kind] = envpool.make_spec(name).config.max_num_players
            except Exception:
                players[module, kind] = 0
        if players[module, kind] and settings.get("max_num_players", players[module, kind]) == 1:
            found.append(name)
    return found


def _can_be_made(id: str) -> bool:
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        try:
            probe(EnvConfig(id=id))
        except SrlError:
            return False
    return True
