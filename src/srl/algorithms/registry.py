"""The algorithms with a short name; any other is found by its import path."""

from __future__ import annotations

from typing import TYPE_CHECKING

from srl.errors import ConfigError, nearest
from srl.resolve import owner_of, resolve

if TYPE_CHECKING:
    from srl.algorithms.config import AlgorithmConfig
    from srl.algorithms.protocol import Algorithm

ALGORITHMS = {
    "ppo": "srl.algorithms.ppo.learner:PPO",
    "appo": "srl.algorithms.appo.learner:APPO",
    "dqn": "srl.algorithms.dqn.learner:DQN",
    "impala": "srl.algorithms.impala.learner:IMPALA",
    "a2c": "srl.algorithms.a2c.learner:A2C",
    "sac": "srl.algorithms.sac.learner:SAC",
    "td3": "srl.algorithms.td3.learner:TD3",
    "bc": "srl.algorithms.bc.learner:BC",
    "dagger": "srl.algorithms.dagger.learner:DAgger",
    "mappo": "srl.algorithms.mappo.learner:MAPPO",
    "vdn": "srl.algorithms.vdn.learner:VDN",
    "qmix": "srl.algorithms.qmix.learner:QMIX",
}
_CONFIGS = {
    "ppo": "srl.algorithms.ppo.config:PPOConfig",
    "appo": "srl.algorithms.appo.config:APPOConfig",
    "dqn": "srl.algorithms.dqn.config:DQNConfig",
    "impala": "srl.algorithms.impala.config:IMPALAConfig",
    "a2c": "srl.algorithms.a2c.config:A2CConfig",
    "sac": "srl.algorithms.sac.config:SACConfig",
    "td3": "srl.algorithms.td3.config:TD3Config",
    "bc": "srl.algorithms.bc.config:BCConfig",
    "dagger": "srl.algorithms.dagger.config:DAggerConfig",
    "mappo": "srl.algorithms.mappo.config:MAPPOConfig",
    "vdn": "srl.algorithms.vdn.config:VDNConfig",
    "qmix": "srl.algorithms.qmix.config:QMIXConfig",
}
"""Settings classes that can be imported without the algorithm, which would import torch."""


def find_algorithm(name: str) -> type[Algorithm]:
    """The algorithm behind a short name or an import path (`module:Class`, `file.py:Class`)."""
    from srl.algorithms.config import AlgorithmConfig
    from srl.algorithms.protocol import Algorithm

    if name not in ALGORITHMS and ":" not in name:
        raise ConfigError(f"algorithm: no algorithm is named {name!r}; {nearest(name, ALGORITHMS)}")
    found = resolve(ALGORITHMS.get(name, name))
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        raise ConfigError(
            f"algorithm: expected a subclass of srl.algorithms.protocol.Algorithm, got {found!r}."
        )
    config = getattr(found, "Config", None)
    if not (isinstance(config, type) and issubclass(config, AlgorithmConfig)):
        raise ConfigError(
            f"algorithm {name!r}: expected a dataclass `Config` in the class that derives from "
            f"srl.AlgorithmConfig, with the settings algorithm.* as its fields, got {config!r}."
        )
    if config.sampling is AlgorithmConfig.sampling:
        raise ConfigError(
            f"algorithm {name!r}: expected {config.__name__} to have a method `sampling` that "
            "returns an srl.Sampling (the fragments that the algorithm wants), got none."
        )
    return found


def algorithm_config(name: str) -> type[AlgorithmConfig]:
    """The settings class of an algorithm, by short name or import path."""
    return resolve(_CONFIGS[name]) if name in _CONFIGS else find_algorithm(name).Config


def algorithm_of(config: object, where: str) -> str:
    """The short name or import path of the algorithm that a settings object belongs to."""
    return owner_of(config, _CONFIGS, ALGORITHMS, "srl.algorithms.protocol:Algorithm", where)
