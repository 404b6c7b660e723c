"""Makes a group of environments from an environment's id.

CartPole-v1, ALE/Pong-v5                     Gymnasium
module:Name-v0, file.py:Name-v0              Gymnasium, once the module or file has registered it
envpool:Pong-v5                              EnvPool
pettingzoo:mpe2.simple_tag_v3                PettingZoo; `pettingzoo.` itself may be left out
jax:gymnax:CartPole-v1, jax:module:Class     JAX, by Gymnax's or JaxMARL's interface
hide_and_seek, hide_and_seek_fort            this package's own groups (`ids.OWN_GROUPS`)
module:Attr, file.py:Attr                    your class or function; what it makes decides the group
"""

from __future__ import annotations

import copy
import os
from typing import Any

import gymnasium

from srl.data.spec import EnvSpec
from srl.envs import factory, ids
from srl.envs.policy_agents import check_policy_agents
from srl.envs.protocol import EnvConfig, EnvGroup, OnCall, PolicyAgents
from srl.envs.spaces import AgentSpaces
from srl.envs.time_limit import time_limit
from srl.errors import ConfigError, SrlError
from srl.extras import require
from srl.resolve import resolve
from srl.tracebacks import USER_ERRORS

VECTOR_FROM = 8
"""With this many environments or more, CartPole's native vector environment beats copies."""

_SAME_AS_SINGLE = {"gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"}
"""Native vector environments that behave exactly as copies of the single environment."""


def make_group(
    config: EnvConfig,
    *,
    num_envs: int,
    policy_agents: PolicyAgents,
    on_call: OnCall,
    render: bool = False,
) -> EnvGroup:
    """Makes `num_envs` environments as one group; raises if `policy_agents` does not fit them."""
    if num_envs < 1:
        raise ConfigError(f"num_envs: expected at least 1, got {num_envs}.")
    if render:
        # Pictures are drawn in memory, so pygame should not look for a screen.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    group = _build(
        config, num_envs=num_envs, policy_agents=policy_agents, on_call=on_call, render=render
    )
    try:
        check_policy_agents(group.spec, policy_agents)
    except ConfigError:
        group.close()
        raise
    return group


def probe(config: EnvConfig) -> EnvSpec:
    """The spec of an environment: makes one, reads its spec, and closes it."""
    return _make_and_close(config).spec


def probe_both(config: EnvConfig) -> tuple[EnvSpec, dict[str, AgentSpaces]]:
    """The spec of an environment and the spaces of its agents."""
    group = _make_and_close(config)
    return group.spec, group.spaces


def probe_spaces(config: EnvConfig) -> dict[str, AgentSpaces]:
    """The spaces of an environment's agents."""
    return _make_and_close(config).spaces


def gymnasium_spec(config: EnvConfig) -> str | None:
    """The spec with which Gymnasium makes such an environment, as JSON; None if it cannot.

    The environments of this package's own Atari family have other wrappers than Gymnasium's.
    """
    if ":" in config.id or config.id not in gymnasium.registry:
        return None
    spec = copy.deepcopy(gymnasium.spec(config.id))
    if str(spec.entry_point).startswith("ale_py"):
        return None
    spec.kwargs.update(config.args)
    if config.max_episode_steps:
        spec.max_episode_steps = config.max_episode_steps
    try:
        return str(spec.to_json())
    except (TypeError, ValueError):
        return None


def _make_and_close(config: EnvConfig) -> EnvGroup:
    """Makes a group of one environment, closes it and returns it."""
    with time_limit(config):
        group = _build(
            config, num_envs=1, policy_agents=None, on_call=lambda call, index: None, render=False
        )
    group.close()
    return group


def _build(
    config: EnvConfig,
    *,
    num_envs: int,
    policy_agents: PolicyAgents | None,
    on_call: OnCall,
    render: bool,
) -> EnvGroup:
    """Makes a group without a check of its agents; any exception becomes an SrlError."""
    try:
        return _make_by_id(config, num_envs, policy_agents, on_call, render)
    except SrlError:
        raise
    except USER_ERRORS as error:
        raise factory.making_failed(config, error) from error


def _make_by_id(
    config: EnvConfig,
    num_envs: int,
    policy_agents: PolicyAgents | None,
    on_call: OnCall,
    render: bool,
) -> EnvGroup:
    prefix, _, rest = config.id.partition(":")
    if prefix == "envpool":
        from srl.envs.envpool_group import EnvPoolGroup

        return EnvPoolGroup(config, rest, num_envs, policy_agents, on_call, render)
    if prefix == "jax":
        from srl.envs.jax_start import make_jax_group

        return make_jax_group(config, rest, num_envs, policy_agents, on_call)
    if config.id in ids.OWN_GROUPS:
        require("mujoco", f"environment {config.id!r}")
        own: EnvGroup = resolve(ids.OWN_GROUPS[config.id])(
            config, num_envs, policy_agents, on_call, render
        )
        return own
    if prefix == "pettingzoo":
        make: Any = factory.pettingzoo_factory(config, rest, render)
    elif ":" in config.id and not ids.is_gymnasium_id(rest):
        make = factory.user_factory(config, render)
    else:
        return _make_gymnasium(config, num_envs, policy_agents, on_call, render)
    return _make_from_factory(make, config, num_envs, policy_agents, on_call, render)


def _make_gymnasium(
    config: EnvConfig,
    num_envs: int,
    policy_agents: PolicyAgents | None,
    on_call: OnCall,
    render: bool,
) -> EnvGroup:
    spec = ids.find_gymnasium(config.id)
    native = spec.vector_entry_point
    if config.backend == "vector" or (
        config.backend == "auto"
        and native in _SAME_AS_SINGLE
        and num_envs >= VECTOR_FROM
        and not render
    ):
        from srl.envs.vector_group import VectorGroup

        if native is None:
            raise ConfigError(
                f"env.backend: expected an id with a native vector environment, got {config.id!r} "
                "which has none. Set env.backend=single."
            )
        on_call("make", -1)
        return VectorGroup(
            factory.make_vector(config, spec, num_envs, render), num_envs, policy_agents, on_call
        )

    def make(index: int) -> Any:
        return factory.make_gymnasium(config, spec, render)

    return _make_from_factory(make, config, num_envs, policy_agents, on_call, render)


def _make_from_factory(
    make: factory.Factory,
    config: EnvConfig,
    num_envs: int,
    policy_agents: PolicyAgents | None,
    on_call: OnCall,
    render: bool,
) -> EnvGroup:
    """Makes the kind of group that fits the factory's environments."""
    vector = factory.vector_factory(make)
    if vector is not None:
        from srl.envs.vector_group import VectorGroup

        on_call("make", -1)
        return VectorGroup(vector(num_envs, render), num_envs, policy_agents, on_call)
    made: list[Any] = []
    try:
        for index in range(num_envs):
            on_call("make", index)
            made.append(make(index))
        return _group_of_copies(made, config, policy_agents, on_call)
    except BaseException:
        for env in made:
            if hasattr(env, "close"):
                env.close()
        raise


def _group_of_copies(
    made: list[Any], config: EnvConfig, policy_agents: PolicyAgents | None, on_call: OnCall
) -> EnvGroup:
    kind = factory.env_api(made[0], config.id)
    if config.backend == "vector":
        raise ConfigError(
            f"env.backend: expected a vector environment, got {config.id!r}, which is {kind}. "
            "Set env.backend=auto."
        )
    limit = config.max_episode_steps
    if kind == "gymnasium":
        factory.check_spaces(made[0], config.id)
    if kind == "parallel":
        from srl.envs.parallel_group import ParallelGroup

        return ParallelGroup(made, policy_agents, on_call, max_episode_steps=limit)
    if kind == "aec":
        from srl.envs.aec_group import AecGroup

        return AecGroup(made, policy_agents, on_call, max_episode_steps=limit)
    from srl.envs.gym_group import GymGroup

    if limit and not factory.has_time_limit(made[0], limit):
        made = [gymnasium.wrappers.TimeLimit(env, limit) for env in made]
    return GymGroup(made, policy_agents, on_call)
