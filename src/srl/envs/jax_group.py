"""JAX environments as a group: one compiled call steps all of them.

The call also resets environments whose episode is over (in the tick after, as all groups do), masks
agents that have left, and puts rows into their order. On a CPU its observations are handed over
without a copy. Environment i draws its random numbers from the key of `seed + i`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from srl.data.flags import all_true
from srl.data.records import EnvStep
from srl.data.spec import EnvSpec
from srl.data.tree import Tree
from srl.envs.buffers import (
    FIX_NUMBERS,
    MaskRows,
    ObsBuffer,
    blank_step,
    env_error,
    restore_step,
    step_state,
)
from srl.envs.gym_group import env_call
from srl.envs.jax_env import JaxEnv, Shown
from srl.envs.protocol import EnvConfig, OnCall, PolicyAgents
from srl.envs.spaces import ActionAdapter, agent_spaces, agent_spec, obs_spec
from srl.errors import CheckpointError, EnvError

_FLAGS = ("terminated", "truncated", "is_first", "alive", "turn")
_FIX_MASK = "Allow at least one action to each agent that is in the game."


class JaxGroup:
    """Copies of one JAX environment. Returned arrays are written again, or replaced, each tick."""

    def __init__(
        self,
        maker: Any,
        config: EnvConfig,
        num_envs: int,
        policy_agents: PolicyAgents | None,
        on_call: OnCall,
    ) -> None:
        on_call("make", -1)
        self._env = env = JaxEnv(maker, config)
        self._on_call = on_call
        self._limit = config.max_episode_steps
        self.num_envs = num_envs
        self.spec = EnvSpec(
            agents={
                name: agent_spec(
                    env.observations[name],
                    env.actions[name],
                    has_action_mask=env.has_masks,
                    agent=name,
                )
                for name in env.agents
            },
            env_state=None
            if env.env_state_space is None
            else obs_spec(env.env_state_space, name="state"),
        )
        self.spaces = {
            name: agent_spaces(env.observations[name], env.actions[name]) for name in env.agents
        }
        self.policy_agents: PolicyAgents = (
            policy_agents if policy_agents is not None else {name: (name,) for name in env.agents}
        )
        self._env_state = (
            None
            if env.env_state_space is None
            else ObsBuffer(env.env_state_space, num_envs, "state")
        )
        self._rows = {
            name: _PolicyRows(self, agents) for name, agents in self.policy_agents.items() if agents
        }
        self._steps = {name: rows.step for name, rows in self._rows.items()}
        self._start: Callable[..., Any] = jax.jit(self._started)
        self._tick: Callable[..., Any] | None = None
        self._carried: Any = None

    def reset(self, seed: int) -> dict[str, EnvStep]:
        """Starts an episode in every environment; environment i is seeded with `seed + i`."""
        self._on_call("reset", -1)
        seeds = np.array([(seed + i) % 2**32 for i in range(self.num_envs)], np.uint32)
        with env_call(-1, "reset"):
            self._carried, shown = self._start(seeds)
            self._compile()
        return self._published(shown, "reset")

    def step(self, actions: dict[str, np.ndarray]) -> dict[str, EnvStep]:
        """Steps all environments by one call."""
        assert self._tick is not None
        chosen = {name: rows.env_actions(actions[name]) for name, rows in self._rows.items()}
        self._on_call("step", -1)
        with env_call(-1, "step"):
            self._carried, shown = self._tick(self._carried, chosen)
        return self._published(shown, "step")

    def _compile(self) -> None:
        """Compiles the tick during a reset, which may take longer than a step may."""
        if self._tick is None:
            actions = {name: rows.no_actions() for name, rows in self._rows.items()}
            self._tick = jax.jit(self._ticked).lower(self._carried, actions).compile()

    # What follows until `_by_policy` is compiled.

    def _started(self, seeds: Any) -> Any:
        keys = jax.vmap(jax.random.PRNGKey)(seeds)
        both = jax.vmap(jax.random.split)(keys)
        carried, shown = jax.vmap(self._first)(both[:, 0], both[:, 1])
        return carried, self._by_policy(shown)

    def _first(self, key: Any, reset_key: Any) -> Any:
        shown, state = self._env.reset(reset_key)
        agents = len(self._env.agents)
        carried = {
            "keys": key,
            "state": state,
            "elapsed": jnp.zeros((), jnp.int32),
            "left": jnp.zeros(agents, bool),
            "over": jnp.zeros((), bool),
        }
        none, every = jnp.zeros(agents, bool), jnp.ones(agents, bool)
        return carried, (shown, jnp.stack([none, none, every, every, every]))

    def _ticked(self, carried: Any, actions: Any) -> Any:
        keys = jax.vmap(lambda key: jax.random.split(key, 3))(carried["keys"])
        by_agent = {
            agent: actions[name][:, column]
            for name, agents in self.policy_agents.items()
            for column, agent in enumerate(agents)
        }
        stepped = jax.vmap(self._next)(keys[:, 0], keys[:, 1], carried, by_agent)

        def with_new_episodes() -> Any:
            started = jax.vmap(self._first)(keys[:, 0], keys[:, 2])

            def choose(new: Any, old: Any) -> Any:
                over = carried["over"].reshape(-1, *[1] * (old.ndim - 1))
                return jnp.where(over, new, old).astype(old.dtype)

            return jax.tree.map(choose, started, stepped)

        # Most ticks begin no episode, and need not compute one.
        carried, shown = jax.lax.cond(carried["over"].any(), with_new_episodes, lambda: stepped)
        return carried, self._by_policy(shown)

    def _next(self, key: Any, step_key: Any, carried: Any, actions: Any) -> Any:
        elapsed = carried["elapsed"] + 1
        shown, state = self._env.step(step_key, carried["state"], actions, elapsed)
        alive = ~carried["left"]
        over = shown.over | (shown.done | carried["left"]).all()
        terminated = alive & (shown.done | over) & (shown.in_time | ~over)
        truncated = alive & (shown.done | over) & ~terminated
        if self._limit:
            out_of_time = elapsed >= self._limit
            truncated |= alive & ~terminated & out_of_time
            over |= out_of_time
        ended = terminated | truncated
        new = {
            "keys": key,
            "state": state,
            "elapsed": elapsed,
            "left": carried["left"] | ended,
            "over": over,
        }
        shown = shown._replace(reward=jnp.where(alive, shown.reward, 0.0))
        flags = [terminated, truncated, jnp.zeros_like(alive), alive, alive & ~ended]
        return new, (shown, jnp.stack(flags))

    def _by_policy(self, both: tuple[Shown, Any]) -> Any:
        """The rows of each policy, env-major."""
        shown, flags = both
        found = {}
        for name, agents in self.policy_agents.items():
            columns = [self._env.agents.index(agent) for agent in agents]
            own = flags[:, :, np.array(columns)]
            alive, turn = _rows(own[:, 3]), _rows(own[:, 4])
            obs = jax.tree.map(lambda *leaves: _stacked(leaves), *[shown.obs[a] for a in agents])
            masks = None
            if shown.masks is not None:
                masks = _stacked([shown.masks[agent] for agent in agents]) | ~turn[:, None]
            found[name] = {
                # Rows of agents that have left are zero.
                "obs": jax.tree.map(lambda leaf, alive=alive: _where(alive, leaf), obs),
                "masks": masks,
                "reward": _rows(shown.reward[:, np.array(columns)]),
                "flags": own.transpose(1, 0, 2).reshape(len(_FLAGS), -1),
            }
        return found, shown.env_state

    def _published(self, shown: Any, call: str) -> dict[str, EnvStep]:
        """Puts a tick into the records, and raises if it has numbers that no network can use."""
        by_policy, env_state = shown
        for name, rows in self._rows.items():
            rows.take(by_policy[name], call)
        if self._env_state is not None:
            seen = self._env_state.take_over(jax.tree.map(np.asarray, env_state))
            broken = self._env_state.broken_row()
            if broken is not None:
                raise env_error(broken.problem, broken.row, call, broken.fix)
            for step in self._steps.values():
                step.env_state = seen
        return self._steps

    def render(self, index: int) -> np.ndarray:
        """Always raises: JAX environments draw in ways of their own."""
        raise EnvError("render: JAX environments cannot draw here. Run without videos.")

    def state(self) -> Tree | None:
        """All that `restore` needs; None if a state has keys that are no plain numbers."""
        leaves = jax.tree.leaves(self._carried)
        if any(jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended) for leaf in leaves):
            return None
        return {
            "carried": {str(i): np.array(leaf) for i, leaf in enumerate(leaves)},
            "steps": {name: step_state(step) for name, step in self._steps.items()},
        }

    def restore(self, state: Tree) -> dict[str, EnvStep]:
        """Continues from `state`."""
        self._on_call("reset", -1)
        seeds = np.zeros(self.num_envs, np.uint32)
        with env_call(-1, "restore"):
            self._carried, shown = self._start(seeds)
            self._compile()
        blank, shape = jax.tree.flatten(self._carried)
        saved = state["carried"]
        if [leaf.shape for leaf in blank] != [saved[str(i)].shape for i in range(len(saved))]:
            raise CheckpointError(
                "environment state: expected that of an environment with the same settings, got "
                "other shapes. Use the same settings, or start a new run."
            )
        leaves = [jnp.asarray(saved[str(i)], leaf.dtype) for i, leaf in enumerate(blank)]
        self._carried = jax.tree.unflatten(shape, leaves)
        self._published(shown, "restore")
        for name, rows in self._rows.items():
            rows.restore(state["steps"][name])
        return self._steps

    def close(self) -> None:
        """Frees the environments' states."""
        self._carried = None


class _PolicyRows:
    """The rows of one policy's agents, and their record."""

    def __init__(self, group: JaxGroup, agents: tuple[str, ...]) -> None:
        own, spec = group.spaces[agents[0]], group.spec.agents[agents[0]]
        self._agents = agents
        self._envs = group.num_envs
        count = group.num_envs * len(agents)
        self._obs = ObsBuffer(own.observation, count)
        self._actions = ActionAdapter(own.action)
        self._action = own.action
        self.step = blank_step(spec, self._obs.arrays, rows=count, envs=group.num_envs)
        self._masks = MaskRows(spec, self.step) if spec.has_action_mask else None
        self._none_final = np.zeros(count, bool)

    def env_actions(self, actions: np.ndarray) -> np.ndarray:
        """Actions [envs, agents, ...] as the environments take them."""
        batch = self._actions.batch(actions)
        batch = batch.reshape(self._envs, len(self._agents), *batch.shape[1:])
        return batch.astype(np.int32) if batch.dtype == np.int64 else batch

    def no_actions(self) -> np.ndarray:
        """Actions of the right shape and type."""
        count = self._envs * len(self._agents)
        return self.env_actions(np.zeros((count, *(self._action.shape or ())), self._action.dtype))

    def take(self, shown: dict[str, Any], call: str) -> None:
        """Takes over the arrays of a tick; only flags and masks are copied."""
        step = self.step
        step.obs = self._obs.take_over(jax.tree.map(np.asarray, shown["obs"]))
        step.reward[:] = shown["reward"]
        flags = np.asarray(shown["flags"])
        for name, values in zip(_FLAGS, flags, strict=True):
            getattr(step, name)[:] = values
        step.quiet = all_true(step.turn) and not step.is_first.any()
        if self._masks is not None and not self._masks.write_all(
            np.asarray(shown["masks"]), self._none_final
        ):
            raise env_error(
                "action_mask: expected at least one allowed action, got none", -1, call, _FIX_MASK
            )
        broken = self._obs.broken_row()
        if broken is not None:
            index, column = divmod(broken.row, len(self._agents))
            raise env_error(f"{self._agents[column]}: {broken.problem}", index, call, broken.fix)
        finite = np.isfinite(step.reward)
        if not all_true(finite):
            row = int(np.argmin(finite))
            index, column = divmod(row, len(self._agents))
            raise env_error(
                f"{self._agents[column]}: reward: expected a finite number, got {step.reward[row]}",
                index,
                call,
                FIX_NUMBERS,
            )

    def restore(self, state: dict[str, Tree]) -> None:
        """Writes a saved record back. Arrays that JAX owns are replaced, because they are fixed."""
        self.step.obs = jax.tree.map(np.array, self.step.obs)
        self.step.env_state = jax.tree.map(np.array, self.step.env_state)
        self.step.quiet = False
        restore_step(self.step, state)


def _stacked(leaves: Any) -> Any:
    """One array [envs * agents, ...] of an array [envs, ...] for each agent."""
    return _rows(jnp.stack(leaves, 1)) if len(leaves) > 1 else leaves[0]


def _rows(array: Any) -> Any:
    return array.reshape(-1, *array.shape[2:])


def _where(alive: Any, leaf: Any) -> Any:
    return jnp.where(alive.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, jnp.zeros((), leaf.dtype))
