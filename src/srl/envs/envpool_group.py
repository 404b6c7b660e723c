"""EnvPool's environments as a group: EnvPool's own threads step all of them at once.

EnvPool takes its seeds when a pool is made, so `reset(seed)` makes the pool; the spec is known
before. Atari frames travel one by one and the system stacks them, as with ALE. Rewards are raw.
All other settings have EnvPool's defaults, and `env.args` can change them. EnvPool reports an
episode that terminates in the step of its time limit as truncated.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any

import numpy as np
from gymnasium import spaces

from srl.data.flags import any_true
from srl.data.records import EnvStep
from srl.data.spec import AgentSpec, Box
from srl.data.tree import Tree
from srl.envs.cost_hints import pool_threads
from srl.envs.gym_group import checked_picture
from srl.envs.protocol import EnvConfig, OnCall, PolicyAgents
from srl.envs.spaces import ActionAdapter
from srl.envs.vector_group import VectorGroup
from srl.errors import ConfigError, EnvError, nearest
from srl.extras import require
from srl.tracebacks import message_of

_ACTION_KEYS = ("env_id", "players.env_id", "action")
_NO_INFO: dict[str, Any] = {}
_MASK_NAMES = ("action_mask", "legal_action_mask")
"""Names that EnvPool's families give to an action mask in the info."""
_RESERVED_ARGS = ("num_envs", "batch_size", "env_type", "seed", "env_seed", "gym_reset_return_info")
"""Arguments that the group sets itself."""


class EnvPoolGroup(VectorGroup):
    """One EnvPool pool as a group."""

    def __init__(
        self,
        config: EnvConfig,
        name: str,
        num_envs: int,
        policy_agents: PolicyAgents | None,
        on_call: OnCall,
        render: bool,
    ) -> None:
        self._envpool = _import(config)
        self._name = name
        if name not in self._envpool.registration.registry.specs:
            known = self._envpool.list_all_envs()
            raise ConfigError(f"unknown environment {config.id!r}: {nearest(name, known)}")
        if config.backend == "single":
            raise ConfigError(
                f"env.backend: expected auto or vector for {config.id!r}, got single. "
                "EnvPool steps all environments by one call."
            )
        args = dict(config.args)
        taken = [key for key in _RESERVED_ARGS if key in args]
        if taken:
            raise ConfigError(f"env.args: {taken} are set by the actor. Remove them.")
        stack = int(args.pop("stack", 4))
        if config.max_episode_steps:
            args["max_episode_steps"] = config.max_episode_steps
        on_call("make", -1)
        spec = self._make_spec(args, num_envs, config)
        frames = hasattr(spec.config, "stack_num") and "stack_num" not in args
        if frames:
            args["stack_num"] = 1
            spec = self._make_spec(args, num_envs, config)
        _check_players(spec, config)
        if render:
            args["render_mode"] = "rgb_array"
        args["num_threads"] = pool_threads(config)
        self._args = args
        self._vector: Any = None
        self._stepper: Any = None
        observation = _without_warnings(lambda: spec.gymnasium_observation_space)
        action = _as_choices(_without_warnings(lambda: spec.gymnasium_action_space))
        self._mask_in_info = _info_mask(spec)
        self._drop_axis = frames and observation.shape[0] == 1
        if self._drop_axis:
            observation = spaces.Box(
                observation.low[0], observation.high[0], dtype=observation.dtype.type
            )
        self._prepare(
            num_envs,
            policy_agents,
            on_call,
            observation=observation,
            action=action,
            stack=stack if frames else 1,
        )

    def _info_has_mask(self, agent: AgentSpec) -> bool:
        return bool(self._mask_in_info) and not isinstance(agent.action, Box)

    def _make_spec(self, args: dict[str, Any], num_envs: int, config: EnvConfig) -> Any:
        try:
            return _without_warnings(
                lambda: self._envpool.make_spec(self._name, num_envs=num_envs, **args)
            )
        except (TypeError, KeyError, AssertionError, ValueError) as error:
            known = _settings(self._envpool.make_spec(self._name))
            unknown = [key for key in args if key not in known]
            hint = nearest(unknown[0], known) if unknown else f"it takes: {', '.join(known)}"
            raise ConfigError(
                f"env.args: {config.id!r} does not take {unknown or args}: {hint}"
            ) from error
        except (ImportError, OSError, RuntimeError) as error:
            # A library or a file that this environment needs is missing on this machine.
            raise _cannot_start(config, error) from error

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Makes the pool and starts an episode in every environment.

        Environment i is seeded with `seed + i`.
        """
        self._on_call("make", -1)
        self._close_pool()
        seeds = [(seed + i) % 2**31 for i in range(self.num_envs)]
        self._vector = self._call(
            "make",
            lambda: _without_warnings(lambda: self._make_pool(seeds)),
        )
        return self._start(None)

    def _start(self, seed: int | None) -> dict[str, EnvStep]:
        self._stepper = _Stepper(self._vector, self.num_envs, self._actions, self._mask_in_info)
        return super()._start(seed)

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        """Steps all environments by one call."""
        self.begin(actions)
        return self._note(self._call("step", self._stepper.receive))

    def begin(self, actions: dict[str, np.ndarray]) -> None:
        """Hands the actions to the pool's threads."""
        self._on_call("step", -1)
        chosen = actions[self._policy]
        self._call("step", lambda: self._stepper.send(chosen))

    def finish(self) -> dict[str, EnvStep]:
        """Waits until all environments of the pool have stepped."""
        self._on_call("step", -1)
        return self._note(self._call("step", self._stepper.receive))

    def _make_pool(self, seeds: list[int]) -> Any:
        pool = self._envpool.make(
            self._name, env_type="gymnasium", num_envs=self.num_envs, seed=seeds, **self._args
        )
        # The first read of the spaces warns, and the pool keeps them: read them here, quietly.
        _ = pool.observation_space, pool.action_space
        return pool

    def _write(self, obs: Any, info: dict[str, Any], call: str) -> None:
        if self._mask_in_info:
            info = {"action_mask": info[self._mask_in_info]}
        super()._write(obs, info, call)

    def _show(self, obs: Any) -> None:
        # A pool returns new arrays at every step, so a copy is not needed.
        self._step.obs = self._obs.take_over(obs[:, 0] if self._drop_axis else obs)

    def render(self, index: int) -> np.ndarray:
        """A picture of one environment."""
        try:
            pictures = self._vector.render(env_ids=[index])
        except RuntimeError as error:
            raise EnvError(f"render: {error}. Not every EnvPool environment can draw.") from error
        return checked_picture(None if pictures is None else pictures[0], index)

    def state(self) -> Tree | None:
        """None: EnvPool offers no exact state of its environments."""
        return None

    def restore(self, state: Tree) -> dict[str, EnvStep]:
        """Always raises, because there is no state to restore."""
        raise EnvError("restore: EnvPool has no states. Start from reset.")

    def close(self) -> None:
        """Closes the pool."""
        self._close_pool()

    def _close_pool(self) -> None:
        pool, self._vector = self._vector, None
        # A pool ends its threads, and programs that it has started, when nothing refers to it.
        self._stepper = None
        if pool is not None:
            pool.close()


class _Stepper:
    """Steps a pool without the records that EnvPool's own `step` makes.

    To make these records takes a large part of a step of small environments.
    """

    def __init__(self, pool: Any, num_envs: int, actions: ActionAdapter, mask: str) -> None:
        self._pool = pool
        self._actions = actions
        self._mask = mask
        names = list(pool._state_keys)
        self._plain = "obs" in names and list(pool._action_keys) == list(_ACTION_KEYS)
        if self._plain:
            self._send, self._receive = pool._send, pool._recv
            self._state_indices = [names.index(name) for name in ("obs", "reward", "done", "trunc")]
            self._mask_index = names.index(f"info:{mask}") if mask else -1
            action = pool.spec.action_array_spec["action"]
            shape = tuple(size for size in action.shape if size != -1)
            self._action = np.zeros((num_envs, *shape), action.dtype)
            ids = np.arange(num_envs, dtype=np.int32)
            self._sent = [ids, ids, self._action]

    def send(self, actions: np.ndarray) -> None:
        """Starts a step of every environment."""
        if self._plain:
            self._actions.write(actions, self._action)
            self._send(self._sent)
        else:
            self._pool.send(self._actions.batch(actions))

    def receive(self) -> Any:
        """Observations, rewards, terminated, truncated and info, as Gymnasium orders them."""
        if not self._plain:
            return self._pool.recv()
        found = self._receive()
        obs, reward, done, truncated = [found[index] for index in self._state_indices]
        terminated = done & ~truncated if any_true(done) else done
        info = {self._mask: found[self._mask_index]} if self._mask else _NO_INFO
        return obs, reward, terminated, truncated, info


def _import(config: EnvConfig) -> Any:
    require("envpool", f"environment {config.id!r}")
    try:
        return importlib.import_module("envpool")
    except ImportError as error:
        raise _cannot_start(config, error) from error


def _cannot_start(config: EnvConfig, error: Exception) -> ConfigError:
    return ConfigError(
        f"env {config.id!r}: EnvPool cannot start it on this machine: {message_of(error)} "
        f"(env.args: {config.args})"
    )


def _check_players(spec: Any, config: EnvConfig) -> None:
    players = int(spec.config.max_num_players)
    if players > 1:
        raise ConfigError(
            f"env {config.id!r}: expected an EnvPool environment with one player, got one with "
            f"{players}. EnvPool returns the rows of players that are on turn, but here each row "
            "must always belong to the same agent. Use PettingZoo for games with several players "
            "(pettingzoo:classic.tictactoe_v3; `srl list --envs` has more)."
        )


def _as_choices(action: spaces.Space[Any]) -> spaces.Space[Any]:
    """The action space; a Box that is a vector of bounded whole numbers becomes a MultiDiscrete."""
    if not isinstance(action, spaces.Box) or action.dtype.kind not in "iu" or action.low.ndim != 1:
        return action
    low = action.low.astype(np.int64)
    sizes = action.high.astype(np.int64) - low + 1
    return spaces.MultiDiscrete(sizes, dtype=action.dtype.type, start=low)


def _info_mask(spec: Any) -> str:
    """The key of the info that holds the action mask, or an empty text."""
    return next((name for name in _MASK_NAMES if f"info:{name}" in spec.state_array_spec), "")


def _settings(spec: Any) -> list[str]:
    return [name for name in spec.config._fields if name not in _RESERVED_ARGS]


def _without_warnings(call: Any) -> Any:
    """Calls without Gymnasium's warning about EnvPool's float64 bounds; users cannot act on it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return call()
