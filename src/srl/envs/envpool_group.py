"""EnvPool's environments, stepped by threads of its own, all of a group at once.

EnvPool takes its seeds when a pool is made, so the pool is made by `reset(seed)`; the spec is known
before. Atari frames travel one by one and are stacked by the system, as with ALE. Rewards are raw.
Everything else is EnvPool's own default and can be set by `env.args`. An episode that terminates
in the very step of its time limit is reported by EnvPool as truncated.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from gymnasium import spaces

from srl.data.flags import any_true
from srl.data.records import EnvStep
from srl.data.spec import AgentSpec
from srl.data.tree import Tree
from srl.envs.envpool_families import import_envpool
from srl.envs.protocol import EnvConfig, Lanes, OnCall
from srl.envs.spaces import ActionAdapter
from srl.envs.vector_group import VectorGroup
from srl.envs.weight import pool_threads
from srl.errors import ConfigError, EnvError, MissingDependency, nearest

_ACTION_KEYS = ("env_id", "players.env_id", "action")
_NO_INFO: dict[str, Any] = {}
_OURS = ("num_envs", "batch_size", "env_type", "seed", "env_seed", "gym_reset_return_info")


class EnvPoolGroup(VectorGroup):
    """One pool as a group."""

    def __init__(
        self,
        config: EnvConfig,
        name: str,
        num_envs: int,
        lanes: Lanes | None,
        on_call: OnCall,
        render: bool,
    ) -> None:
        self._envpool = _import(config, name)
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
        taken = [key for key in _OURS if key in args]
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
        if render:
            args["render_mode"] = "rgb_array"
        args["num_threads"] = pool_threads(config)
        self._args = args
        self._vector: Any = None
        observation = _quiet(lambda: spec.gymnasium_observation_space)
        action = _quiet(lambda: spec.gymnasium_action_space)
        self._drop_axis = frames and observation.shape[0] == 1
        if self._drop_axis:
            observation = spaces.Box(
                observation.low[0], observation.high[0], dtype=observation.dtype.type
            )
        self._prepare(
            num_envs,
            lanes,
            on_call,
            observation=observation,
            action=action,
            stack=stack if frames else 1,
        )

    def _info_has_mask(self, agent: AgentSpec) -> bool:
        return False

    def _make_spec(self, args: dict[str, Any], num_envs: int, config: EnvConfig) -> Any:
        try:
            return _quiet(lambda: self._envpool.make_spec(self._name, num_envs=num_envs, **args))
        except (TypeError, KeyError, AssertionError, ValueError) as error:
            known = _settings(self._envpool.make_spec(self._name))
            unknown = [key for key in args if key not in known]
            hint = nearest(unknown[0], known) if unknown else f"it takes: {', '.join(known)}"
            raise ConfigError(
                f"env.args: {config.id!r} does not take {unknown or args}: {hint}"
            ) from error

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Makes the pool with environment i seeded `seed + i`, and starts."""
        self._on_call("make", -1)
        self._close_pool()
        seeds = [(seed + i) % 2**31 for i in range(self.num_envs)]
        self._vector = self._call(
            "make",
            lambda: _quiet(lambda: self._make_pool(seeds)),
        )
        return self._start(None)

    def _start(self, seed: int | None) -> dict[str, EnvStep]:
        self._stepper = _Stepper(self._vector, self.num_envs, self._actions)
        return super()._start(seed)

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        """Steps all environments by one call."""
        self.begin(actions)
        return self._note(self._call("step", self._stepper.receive))

    def begin(self, actions: dict[str, np.ndarray]) -> None:
        """Hands the actions to the pool's threads."""
        self._on_call("step", -1)
        chosen = actions[self._lane]
        self._call("step", lambda: self._stepper.send(chosen))

    def finish(self) -> dict[str, EnvStep]:
        """Waits for all environments of the pool."""
        self._on_call("step", -1)
        return self._note(self._call("step", self._stepper.receive))

    def _make_pool(self, seeds: list[int]) -> Any:
        pool = self._envpool.make(
            self._name, env_type="gymnasium", num_envs=self.num_envs, seed=seeds, **self._args
        )
        # The pool keeps its spaces once they were read; the first reading is what warns.
        _ = pool.observation_space, pool.action_space
        return pool

    def _show(self, obs: Any) -> None:
        # A pool returns new arrays at every step, so they need not be copied.
        self._step.obs = self._obs.take_over(obs[:, 0] if self._drop_axis else obs)

    def render(self, index: int) -> np.ndarray:
        """A picture of one environment."""
        try:
            return np.asarray(self._vector.render(env_ids=[index])[0])
        except RuntimeError as error:
            raise EnvError(f"render: {error}. Not every EnvPool environment can draw.") from error

    def state(self) -> Tree | None:
        """None: EnvPool cannot show what is inside its environments."""
        return None

    def restore(self, state: Tree) -> dict[str, EnvStep]:
        """Never called with a state, because there is none."""
        raise EnvError("restore: EnvPool has no states. Start from reset.")

    def close(self) -> None:
        """Closes the pool."""
        self._close_pool()

    def _close_pool(self) -> None:
        pool, self._vector = self._vector, None
        if pool is not None:
            pool.close()


class _Stepper:
    """A pool's step without the records that EnvPool's own `step` makes of it, which take a good
    part of a step of small environments."""

    def __init__(self, pool: Any, num_envs: int, actions: ActionAdapter) -> None:
        self._pool = pool
        self._actions = actions
        names = list(pool._state_keys)
        self._plain = "obs" in names and list(pool._action_keys) == list(_ACTION_KEYS)
        if self._plain:
            self._send, self._receive = pool._send, pool._recv
            self._places = [names.index(name) for name in ("obs", "reward", "done", "trunc")]
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
        obs, reward, done, truncated = [found[place] for place in self._places]
        terminated = done & ~truncated if any_true(done) else done
        return obs, reward, terminated, truncated, _NO_INFO


def _import(config: EnvConfig, name: str) -> Any:
    try:
        return import_envpool(name)
    except ImportError:
        raise MissingDependency(f"environment {config.id!r}", "envpool") from None


def _settings(spec: Any) -> list[str]:
    return [name for name in spec.config._fields if name not in _OURS]


def _quiet(call: Any) -> Any:
    """EnvPool's float64 bounds make Gymnasium warn about precision, which nobody can act on."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return call()
