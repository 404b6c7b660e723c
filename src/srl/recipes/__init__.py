"""Complete experiments by name.

Each recipe is a function that returns an `Experiment`. Each family of recipes has its own file.
"""

from __future__ import annotations

from collections.abc import Callable

from srl.errors import ConfigError, nearest
from srl.experiment import Experiment
from srl.resolve import resolve

Recipe = Callable[[], Experiment]

_FAMILIES = {
    "classic": ("cartpole", "acrobot", "mountaincar_continuous", "pendulum", "lunarlander"),
    "value_based": ("cartpole_dqn", "memory_r2d2"),
    "asynchronous": ("cartpole_impala", "cartpole_appo"),
    "memory": ("memory", "cartpole_masked"),
    "atari": ("pong", "pong_envpool", "breakout"),
    "mujoco": ("halfcheetah", "halfcheetah_envpool", "hopper"),
    "continuous": ("pendulum_sac", "pendulum_td3", "halfcheetah_sac", "halfcheetah_sac_envpool"),
    "multiagent": (
        *("simple_tag", "tictactoe", "tictactoe_random"),
        *("simple_spread", "simple_spread_mappo", "simple_spread_vdn", "simple_spread_qmix"),
        *("two_step_vdn", "two_step_qmix"),
    ),
    "packs": (
        *("football", "doom", "coinrun", "minigrid"),
        *("dmc_cartpole", "panda_pick", "metaworld_reach"),
    ),
    "jax_envs": ("cartpole_jax", "smax", "overcooked", "hanabi"),
    "hide_and_seek": (
        "hide_and_seek",
        "hide_and_seek_quadrant",
        "hide_and_seek_chase",
        "hide_and_seek_fort",
    ),
}

RECIPES = {name: f"srl.recipes.{f}:{name}" for f, names in _FAMILIES.items() for name in names}
"""Import paths of the recipes, by name."""


def find_recipe(name: str) -> Recipe:
    """The recipe with this name; its module is imported only now."""
    if name not in RECIPES:
        raise ConfigError(f"no recipe is named {name!r}: {nearest(name, RECIPES)}")
    return resolve(RECIPES[name])  # type: ignore[no-any-return]


def families() -> dict[str, tuple[str, ...]]:
    """The names of the recipes, by family."""
    return dict(_FAMILIES)
