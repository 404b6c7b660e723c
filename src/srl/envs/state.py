"""Exact states of environments, for runs that continue bit by bit where they stopped.

This module knows classic control, MuJoCo and ALE, with their random generators and the counters of
wrappers. Any other environment (or wrapper) may offer `state()` and `restore(state)` itself. Such a
state may hold arrays, bytes, strings, numbers, None, and dicts and lists of them. If one layer is
unknown, the whole environment has no state: with half a state it would continue differently.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import wrappers
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.utils import seeding

from srl.envs.atari import StickyActions
from srl.envs.tasks.memory import MaskedVelocities
from srl.errors import CheckpointError

_COUNTERS: dict[type, tuple[str, ...]] = {
    wrappers.TimeLimit: ("_elapsed_steps",),
    wrappers.OrderEnforcing: ("_has_reset",),
    wrappers.PassiveEnvChecker: ("checked_reset", "checked_step", "checked_render"),
    wrappers.AtariPreprocessing: ("lives", "game_over"),
    StickyActions: ("last_action",),
}
"""Attributes that a wrapper changes between steps, by its class."""

_STATELESS = (
    wrappers.TransformObservation,
    wrappers.TransformReward,
    wrappers.TransformAction,
    MaskedVelocities,
)
"""Wrappers (and their subclasses) that keep nothing between steps."""

_NOT_STATE = {"screen", "screens", "clock", "surf", "isopen", "render_mode", "viewer", "spec"}
"""Attributes that later steps do not depend on; most are for drawing."""

_VARIABLE_SIZE = ("contact", "efc_", "iefc_", "tendon_efc", "island_", "map_", "warning", "timer")
"""Prefixes of MjData arrays that move with the number of contacts; a step computes them anew."""


def get_state(env: Any) -> dict[str, Any] | None:
    """The state of one environment with all its wrappers, or None where a layer is unknown."""
    layers: list[Any] = []
    while True:
        saved = _layer_state(env)
        if saved is None:
            return None
        layers.append(saved)
        if saved["kind"] in ("own", "base") or not isinstance(env, gymnasium.Wrapper):
            return {"layers": layers}
        env = env.env


def set_state(env: Any, state: dict[str, Any]) -> None:
    """Restores a state of `get_state` to an environment that was made with the same settings."""
    for saved in state["layers"]:
        kind = type(env).__name__
        if saved["name"] != kind:
            raise CheckpointError(
                f"environment state: expected {saved['name']}, got {kind}. "
                "It was saved with other env settings. Use the same settings, or start a new run."
            )
        if saved["kind"] == "own":
            env.restore(saved["state"])
        elif saved["kind"] == "base":
            _restore_base(env, saved["state"])
        else:
            _restore_wrapper(env, saved["state"])
            env = env.env


def _layer_state(env: Any) -> dict[str, Any] | None:
    name = type(env).__name__
    if _offers_state(env):
        own = env.state()
        return None if own is None else {"name": name, "kind": "own", "state": own}
    if isinstance(env, gymnasium.Wrapper):
        counters = _wrapper_state(env)
        return None if counters is None else {"name": name, "kind": "wrapper", "state": counters}
    base = _base_state(env)
    return None if base is None else {"name": name, "kind": "base", "state": base}


def _offers_state(env: Any) -> bool:
    """Whether the class itself has `state()` and `restore()`; `state` alone is often an array."""
    kind = type(env)
    return callable(getattr(kind, "state", None)) and callable(getattr(kind, "restore", None))


def _wrapper_state(env: Any) -> dict[str, Any] | None:
    for kind, names in _COUNTERS.items():
        if isinstance(env, kind):
            saved: dict[str, Any] = {name: getattr(env, name, None) for name in names}
            if isinstance(env, wrappers.AtariPreprocessing):
                saved["obs_buffer"] = [frame.copy() for frame in env.obs_buffer]
            return saved
    return {} if isinstance(env, _STATELESS) else None


def _restore_wrapper(env: Any, saved: dict[str, Any]) -> None:
    for name, value in saved.items():
        if name == "obs_buffer":
            for frame, old in zip(env.obs_buffer, value, strict=True):
                frame[...] = old
        elif hasattr(env, name):
            setattr(env, name, value)


def _base_state(env: Any) -> dict[str, Any] | None:
    module = type(env).__module__
    saved: dict[str, Any] = {"random": _random_state(env)}
    if module.startswith("gymnasium.envs.classic_control") or isinstance(env, CartPoleVectorEnv):
        return {**saved, "attributes": _plain_attributes(env)}
    if module.startswith("gymnasium.envs.mujoco"):
        return {**saved, "attributes": _plain_attributes(env), "mujoco": _mujoco_state(env)}
    if module == "ale_py.env":
        if env.ale.getFloat("repeat_action_probability") > 0:
            return None  # ALE's states leave out the action that it may repeat.
        saved["ale"] = bytes(env.ale.cloneState(include_rng=True).__getstate__())
        return saved
    return None


def _restore_base(env: Any, saved: dict[str, Any]) -> None:
    _restore_random(env, saved["random"])
    for name, value in saved.get("attributes", {}).items():
        setattr(env, name, value.copy() if isinstance(value, np.ndarray) else value)
    if "mujoco" in saved:
        _restore_mujoco(env, saved["mujoco"])
    if "ale" in saved:
        import ale_py

        # This is ALE's own serialisation; nothing is unpickled.
        ale_state = ale_py.ALEState.__new__(ale_py.ALEState)
        ale_state.__setstate__(saved["ale"])
        env.ale.restoreState(ale_state)


def _random_state(env: Any) -> Any:
    generator = env._np_random
    return None if generator is None else generator.bit_generator.state


def _restore_random(env: Any, saved: Any) -> None:
    if saved is None:
        env._np_random = None
        return
    env._np_random, _ = seeding.np_random(0)
    env._np_random.bit_generator.state = saved


def _plain_attributes(env: Any) -> dict[str, Any]:
    return {
        name: value.copy() if isinstance(value, np.ndarray) else value
        for name, value in vars(env).items()
        if name not in _NOT_STATE and not name.startswith("_np_random") and _is_plain(value)
    }


def _is_plain(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.ndim > 0 and value.dtype.kind in "biuf"
    if isinstance(value, tuple):
        return all(_is_plain(item) for item in value)
    return value is None or isinstance(value, bool | int | float | np.generic)


def _mujoco_state(env: Any) -> dict[str, Any]:
    """The integration state, and values that the last step derived; Ant's next step reads them."""
    import mujoco

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    values = np.empty(mujoco.mj_stateSize(env.model, kind), np.float64)
    mujoco.mj_getState(env.model, env.data, values, kind)
    derived = {name: array.copy() for name, array in _fixed_size_arrays(env.data).items()}
    return {"integration": values, "derived": derived}


def _restore_mujoco(env: Any, saved: dict[str, Any]) -> None:
    import mujoco

    mujoco.mj_setState(
        env.model, env.data, saved["integration"], mujoco.mjtState.mjSTATE_INTEGRATION
    )
    mujoco.mj_forward(env.model, env.data)
    arrays = _fixed_size_arrays(env.data)
    for name, old in saved["derived"].items():
        if name in arrays and arrays[name].shape == old.shape:
            arrays[name][...] = old


def _fixed_size_arrays(data: Any) -> dict[str, np.ndarray]:
    """MjData's arrays of fixed size, by name."""
    found = {}
    for name in dir(data):
        if name.startswith(("_", *_VARIABLE_SIZE)):
            continue
        value = getattr(data, name)
        if isinstance(value, np.ndarray) and value.size and value.flags.writeable:
            found[name] = value
    return found
