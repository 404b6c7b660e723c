"""From an environment's id to a group of it.

CartPole-v1, ALE/Pong-v5, module:Name-v0     Gymnasium
envpool:Pong-v5                              EnvPool
pettingzoo:mpe2.simple_tag_v3                PettingZoo; `pettingzoo.` itself may be left out
module:Attr, file.py:Attr                    your class or function; what it makes decides the group
"""

from __future__ import annotations

import os
from typing import Any

import gymnasium

from srl.data.spec import EnvSpec
from srl.envs import making
from srl.envs.lanes import check_lanes
from srl.envs.limits import time_limit
from srl.envs.protocol import EnvConfig, EnvGroup, Lanes, OnCall
from srl.envs.spaces import AgentSpaces
from srl.errors import ConfigError

VECTOR_FROM = 8
"""Environments from which on CartPole's native vector environment is faster than copies of it."""

_SAME_AS_SINGLE = {"gymnasium.envs.classic_control.cartpole:CartPoleVectorEnv"}
"""Native vector environments that do exactly what copies of the single one do."""


def make_group(
    config: EnvConfig,
    *,
    num_envs: int,
    lanes: Lanes,
    on_call: OnCall,
    render: bool = False,
) -> EnvGroup:
    """`num_envs` environments as one group; raises if the lanes do not fit its agents."""
    if num_envs < 1:
        raise ConfigError(f"num_envs: expected at least 1, got {num_envs}.")
    if render:
        # Pictures are drawn in memory: pygame needs no screen, and should not look for one.
        os.environ.setdefault("SDL_VIDEODRIVER", "dummy")
    group = _build(config, num_envs=num_envs, lanes=lanes, on_call=on_call, render=render)
    try:
        check_lanes(group.spec, lanes)
    except ConfigError:
        group.close()
        raise
    return group


def probe(config: EnvConfig) -> EnvSpec:
    """What an environment declares: makes one, reads its spec, closes it."""
    return _made_once(config).spec


def probe_spaces(config: EnvConfig) -> dict[str, AgentSpaces]:
    """The spaces of an environment's agents."""
    return _made_once(config).spaces


def _made_once(config: EnvConfig) -> EnvGroup:
    """A group that is closed already."""
    with time_limit(config):
        group = _build(
            config, num_envs=1, lanes=None, on_call=lambda call, index: None, render=False
        )
    group.close()
    return group


def list_envs() -> list[str]:
    """Ids that work here: Gymnasium's and Atari's, then the optional packages' own."""
    names = making.gymnasium_ids()
    names += [f"envpool:{name}" for name in making.envpool_ids()]
    names += [f"pettingzoo:{name}" for name in making.pettingzoo_ids()]
    return names


def _build(
    config: EnvConfig, *, num_envs: int, lanes: Lanes | None, on_call: OnCall, render: bool
) -> EnvGroup:
    prefix, _, rest = config.id.partition(":")
    if prefix == "envpool":
        from srl.envs.envpool_group import EnvPoolGroup

        return EnvPoolGroup(config, rest, num_envs, lanes, on_call, render)
    if prefix == "pettingzoo":
        factory: Any = making.pettingzoo_factory(config, rest, render)
    elif ":" in config.id and not making.is_gymnasium_id(rest):
        factory = making.user_factory(config, render)
    else:
        return _gymnasium(config, num_envs, lanes, on_call, render)
    return _grouped(factory, config, num_envs, lanes, on_call, render)


def _gymnasium(
    config: EnvConfig, num_envs: int, lanes: Lanes | None, on_call: OnCall, render: bool
) -> EnvGroup:
    spec = making.find_gymnasium(config.id)
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
            making.make_vector(config, spec, num_envs, render), num_envs, lanes, on_call
        )

    def factory(index: int) -> Any:
        return making.make_gymnasium(config, spec, render)

    return _grouped(factory, config, num_envs, lanes, on_call, render)


def _grouped(
    factory: making.Factory,
    config: EnvConfig,
    num_envs: int,
    lanes: Lanes | None,
    on_call: OnCall,
    render: bool,
) -> EnvGroup:
    """The group that fits what the factory makes."""
    vector = making.makes_vector(factory)
    if vector is not None:
        from srl.envs.vector_group import VectorGroup

        on_call("make", -1)
        return VectorGroup(vector(num_envs, render), num_envs, lanes, on_call)
    made: list[Any] = []
    try:
        for index in range(num_envs):
            on_call("make", index)
            made.append(factory(index))
        return _group_of(made, config, lanes, on_call)
    except BaseException:
        for env in made:
            if hasattr(env, "close"):
                env.close()
        raise


def _group_of(made: list[Any], config: EnvConfig, lanes: Lanes | None, on_call: OnCall) -> EnvGroup:
    kind = making.kind_of(made[0], config.id)
    if config.backend == "vector":
        raise ConfigError(
            f"env.backend: expected an environment that is a vector itself, got {config.id!r}, "
            f"{kind}. Set env.backend=auto."
        )
    limit = config.max_episode_steps
    if kind == "parallel":
        from srl.envs.parallel_group import ParallelGroup

        return ParallelGroup(made, lanes, on_call, max_episode_steps=limit)
    if kind == "aec":
        from srl.envs.aec_group import AecGroup

        return AecGroup(made, lanes, on_call, max_episode_steps=limit)
    from srl.envs.gym_group import GymGroup

    if limit and not making.limits_itself(made[0], limit):
        made = [gymnasium.wrappers.TimeLimit(env, limit) for env in made]
    return GymGroup(made, lanes, on_call)
