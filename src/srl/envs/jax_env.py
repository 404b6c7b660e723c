"""Gymnax's and JaxMARL's interfaces as one: pure functions of one environment.

An environment with `agents` has JaxMARL's interface: `reset(key)` and `step_env(key, state,
actions)`, with a dict by agent for observations, rewards and dones. Any other has Gymnax's:
`reset_env(key, params)` and `step_env(key, state, action, params)`. Both are recognised by their
methods, so an environment needs neither package. Masks come from `get_avail_actions(state)`, and
the global state is the observation of "world_state".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from srl.envs.gym_group import AGENT
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError

WORLD_STATE = "world_state"
_ALL = "__all__"
_ENDLESS = 2**30


class Shown(NamedTuple):
    """What one environment shows after a reset or a step. Arrays [agents] are in row order."""

    obs: dict[str, Any]
    """By agent."""
    masks: dict[str, Any] | None
    """By agent, or None if the environment has no masks."""
    env_state: Any
    """The global state, or None."""
    reward: Any
    """float32 [agents]."""
    done: Any
    """bool [agents]: the agent has left the game, now or before."""
    over: Any
    """bool: the episode is over for all agents."""
    in_time: Any
    """bool: the episode would be over without its time limit, too."""


class JaxEnv:
    """One environment as functions that can be jitted and vectorised."""

    def __init__(self, maker: Any, config: EnvConfig) -> None:
        self._id = config.id
        self._env, self._params = _make(maker, config)
        self._many = hasattr(self._env, "agents")
        if not self._many and not hasattr(self._env, "reset_env"):
            raise ConfigError(
                f"env {config.id!r}: expected Gymnax's interface (reset_env and step_env) or "
                f"JaxMARL's (agents, reset and step_env), got {type(self._env).__name__}."
            )
        names = self._env.agents if self._many else (AGENT,)
        self.agents: tuple[str, ...] = tuple(str(name) for name in names)
        limit = getattr(self._env, "max_steps", None) if self._many else None
        self._limit = int(limit) if isinstance(limit, int | np.integer) else 0
        self.has_masks = False
        key = jax.eval_shape(lambda: jax.random.PRNGKey(0))
        seen, self._state = jax.eval_shape(self._reset, key)
        self.has_masks = self._offers_masks()
        self.env_state_space = (
            self._space(None, seen[WORLD_STATE], WORLD_STATE) if WORLD_STATE in seen else None
        )
        self.observations = {
            name: self._space(self._declared("observation_space", name), seen[name], "obs")
            for name in self.agents
        }
        self.actions = {
            name: _action_space(self._declared("action_space", name), f"{config.id!r}, {name}")
            for name in self.agents
        }

    def reset(self, key: Any) -> tuple[Shown, Any]:
        """The start of an episode: what it shows, and the environment's state."""
        seen, state = self._reset(key)
        none = jnp.zeros(len(self.agents), bool)
        no_reward = jnp.zeros(len(self.agents), jnp.float32)
        end = jnp.zeros((), bool)
        return self._shown(seen, state, no_reward, none, end, end), state

    def step(self, key: Any, state: Any, actions: dict[str, Any], elapsed: Any) -> Any:
        """A step without a reset; `elapsed` counts the steps of the episode with this one."""
        if not self._many:
            return self._step_alone(key, state, actions[AGENT])
        seen, state, rewards, dones, _ = self._env.step_env(key, state, actions)
        reward = jnp.stack([jnp.float32(rewards[name]) for name in self.agents])
        done = jnp.stack([jnp.asarray(dones[name], bool) for name in self.agents])
        over = done.all()
        if _ALL in dones:
            over |= jnp.asarray(dones[_ALL], bool)
        in_time = elapsed < self._limit if self._limit else jnp.ones((), bool)
        return self._shown(seen, state, reward, done, over, in_time), state

    def _step_alone(self, key: Any, state: Any, action: Any) -> Any:
        seen, state, reward, done, _ = self._env.step_env(key, state, action, *self._arguments())
        done = jnp.asarray(done, bool).reshape(())
        reward = jnp.float32(reward).reshape(1)
        in_time = self._ends_in_time(state)
        return self._shown({AGENT: seen}, state, reward, done[None], done, in_time), state

    def _ends_in_time(self, state: Any) -> Any:
        """Whether the episode would be over without its time limit.

        Gymnax does not say why an episode ends, but `is_terminal` takes the time limit.
        """
        names = [field.name for field in dataclasses.fields(self._params)] if self._params else []
        if "max_steps_in_episode" not in names or not hasattr(self._env, "is_terminal"):
            return jnp.ones((), bool)
        endless = dataclasses.replace(self._params, max_steps_in_episode=_ENDLESS)
        return jnp.asarray(self._env.is_terminal(state, endless), bool).reshape(())

    def _arguments(self) -> tuple[Any, ...]:
        return () if self._params is None else (self._params,)

    def _reset(self, key: Any) -> tuple[dict[str, Any], Any]:
        if self._many:
            seen, state = self._env.reset(key)
            return dict(seen), state
        seen, state = self._env.reset_env(key, *self._arguments())
        return {AGENT: seen}, state

    def _shown(
        self, seen: Mapping[str, Any], state: Any, reward: Any, done: Any, over: Any, in_time: Any
    ) -> Shown:
        masks = self._masks(state) if self.has_masks else None
        obs = {name: _fitted(seen[name]) for name in self.agents}
        env_state = _fitted(seen[WORLD_STATE]) if WORLD_STATE in seen else None
        return Shown(obs, masks, env_state, reward, done, over, in_time)

    def _masks(self, state: Any) -> dict[str, Any]:
        found = self._env.get_avail_actions(state)
        found = found if self._many else {AGENT: found}
        return {name: jnp.asarray(found[name]) != 0 for name in self.agents}

    def _offers_masks(self) -> bool:
        if not hasattr(self._env, "get_avail_actions"):
            return False
        try:
            jax.eval_shape(self._masks, self._state)
        except NotImplementedError:
            return False
        return True

    def _declared(self, kind: str, name: str) -> Any:
        space = getattr(self._env, kind)
        return space(name) if self._many else space(*self._arguments())

    def _space(self, declared: Any, seen: Any, name: str) -> spaces.Space[Any]:
        """The space of what is really shown: declared shapes and types are often others."""
        if isinstance(seen, Mapping):
            parts = getattr(declared, "spaces", {})
            return spaces.Dict(
                {key: self._space(parts.get(key), part, name) for key, part in seen.items()}
            )
        if not hasattr(seen, "shape") or not hasattr(seen, "dtype"):
            raise ConfigError(
                f"env {self._id!r}: {name}: expected an array or a dict of arrays, got "
                f"{type(seen).__name__}. Wrap the environment."
            )
        if hasattr(declared, "n") and seen.shape == ():
            return spaces.Discrete(int(declared.n))
        dtype = np.dtype(jax.eval_shape(_fitted, seen).dtype)
        if dtype.kind == "f":
            return spaces.Box(-np.inf, np.inf, seen.shape, dtype.type)
        limits = np.iinfo(dtype)
        return spaces.Box(limits.min, limits.max, seen.shape, dtype.type)


def _make(maker: Any, config: EnvConfig) -> tuple[Any, Any]:
    """The environment and Gymnax's parameters, or None; `args` may name fields of either."""
    if not callable(maker):
        raise ConfigError(
            f"env {config.id!r}: expected a class or function, got {type(maker).__name__}."
        )
    try:
        first = maker()
    except TypeError:
        # It has arguments that must be given.
        return _with_params(maker(**config.args), {})
    params = getattr(first, "default_params", None)
    fields = {field.name for field in dataclasses.fields(params)} if params is not None else set()
    own = {name: value for name, value in config.args.items() if name not in fields}
    given = {name: value for name, value in config.args.items() if name in fields}
    try:
        env = maker(**own) if own else first
    except TypeError as error:
        takes = f" Its parameters are {', '.join(sorted(fields))}." if fields else ""
        raise ConfigError(
            f"env.args: {config.id!r} does not take {own}: {error}.{takes}"
        ) from error
    return _with_params(env, given)


def _with_params(env: Any, given: dict[str, Any]) -> tuple[Any, Any]:
    params: Any = getattr(env, "default_params", None)
    return env, dataclasses.replace(params, **given) if given else params


def _fitted(tree: Any) -> Any:
    """Observations as records store them: flags as float32."""

    def fit(leaf: Any) -> Any:
        leaf = jnp.asarray(leaf)
        return leaf.astype(jnp.float32) if leaf.dtype in (jnp.bool_, jnp.bfloat16) else leaf

    return jax.tree.map(fit, dict(tree) if isinstance(tree, Mapping) else tree)


def _action_space(declared: Any, where: str) -> spaces.Space[Any]:
    if isinstance(declared, spaces.Space):
        return declared
    if hasattr(declared, "n"):
        return spaces.Discrete(int(declared.n))
    for name in ("nvec", "num_categories"):
        if hasattr(declared, name):
            return spaces.MultiDiscrete(np.asarray(getattr(declared, name)))
    if hasattr(declared, "low") and hasattr(declared, "high"):
        shape = tuple(declared.shape)
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32), shape)
            for bound in (declared.low, declared.high)
        )
        return spaces.Box(low, high, shape, np.float32)
    raise ConfigError(
        f"env {where}: expected an action space with n, nvec or low and high, got "
        f"{type(declared).__name__}."
    )
