"""Starts JAX for environments, in the process that steps them.

XLA's threads and platform can only be chosen before JAX starts. A template never imports JAX,
because JAX has threads, and a fork copies only one of them.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from srl.envs.protocol import EnvConfig, EnvGroup, OnCall, PolicyAgents
from srl.errors import ConfigError, nearest
from srl.extras import import_extra, installed, require
from srl.resolve import resolve

_PLAYED = {
    "gymnax": (
        *("CartPole-v1", "Pendulum-v1", "Acrobot-v1", "MountainCar-v0", "MountainCarContinuous-v0"),
        *("Asterix-MinAtar", "Breakout-MinAtar", "Freeway-MinAtar", "SpaceInvaders-MinAtar"),
        *("Catch-bsuite", "DeepSea-bsuite", "MemoryChain-bsuite", "UmbrellaChain-bsuite"),
        *("DiscountingChain-bsuite", "FourRooms-misc", "MetaMaze-misc", "PointRobot-misc"),
        *("BernoulliBandit-misc", "GaussianBandit-misc", "Reacher-misc", "Swimmer-misc"),
        "Pong-misc",
    ),
    "jaxmarl": (
        *("MPE_simple_v3", "MPE_simple_tag_v3", "MPE_simple_world_comm_v3"),
        *("MPE_simple_spread_v3", "MPE_simple_crypto_v3", "MPE_simple_speaker_listener_v4"),
        *("MPE_simple_push_v3", "MPE_simple_adversary_v3", "MPE_simple_reference_v3"),
        *("MPE_simple_facmac_v1", "MPE_simple_facmac_3a_v1", "HeuristicEnemySMAX"),
        *("overcooked", "hanabi"),
    ),
}
"""Packages that make environments by name (`make(name)` and `registered_envs`), and the names that
have been played as groups."""


def jax_ids() -> list[str]:
    """Ids of JAX environments whose collection is installed; imports neither JAX nor them."""
    return [
        f"jax:{package}:{name}"
        for package, names in _PLAYED.items()
        if installed("jax") and installed(package)
        for name in names
    ]


def make_jax_group(
    config: EnvConfig,
    path: str,
    num_envs: int,
    policy_agents: PolicyAgents | None,
    on_call: OnCall,
) -> EnvGroup:
    """A group of the environment at `path`.

    A path is `gymnax:NAME`, `jaxmarl:NAME`, or the import path of a class or function.
    """
    if config.backend == "single":
        raise ConfigError(
            f"env.backend: expected auto or vector for {config.id!r}, got single. "
            "One call steps all JAX environments."
        )
    require("jax", f"environment {config.id!r}")
    _start(max(1, config.threads))
    from srl.envs.jax_group import JaxGroup

    return JaxGroup(_find(config, path), config, num_envs, policy_agents, on_call)


def _find(config: EnvConfig, path: str) -> Any:
    """The class or function that makes the environment."""
    package, _, name = path.partition(":")
    if not name:
        raise ConfigError(
            f"env {config.id!r}: expected jax:gymnax:NAME, jax:jaxmarl:NAME or "
            "jax:module:Class, got no colon."
        )
    if package not in _PLAYED:
        return resolve(path)
    module = import_extra(package, f"environment {config.id!r}")
    if name not in module.registered_envs:
        raise ConfigError(
            f"unknown environment {config.id!r}: {nearest(name, module.registered_envs)}"
        )

    def make(**args: Any) -> Any:
        made = module.make(name, **args)
        return made[0] if isinstance(made, tuple) else made

    return make


def _start(threads: int) -> None:
    """Imports JAX for the CPU with so many threads, unless this process has done so."""
    if "jax" in sys.modules:
        return
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    # XLA makes as many threads as there are processors, in every actor.
    os.environ.setdefault("NPROC", str(threads))
    flag = "--xla_cpu_multi_thread_eigen=false"
    if threads == 1 and flag not in os.environ.get("XLA_FLAGS", ""):
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {flag}".strip()
    import jax

    # The actor waits for each step, so another thread would only be slower.
    jax.config.update("jax_cpu_enable_async_dispatch", False)
