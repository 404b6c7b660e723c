"""SRL: reinforcement learning as a dataflow. `srl.train(...)` trains, `srl.load(...)` opens a run.

Names are imported when they are first used, so that `import srl` is fast.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from srl import errors as errors
    from srl.acting import ActingPolicy as ActingPolicy
    from srl.acting import load_policy as load_policy
    from srl.algorithms.a2c.config import A2CConfig as A2CConfig
    from srl.algorithms.appo.config import APPOConfig as APPOConfig
    from srl.algorithms.bc.config import BCConfig as BCConfig
    from srl.algorithms.config import AlgorithmConfig as AlgorithmConfig
    from srl.algorithms.config import Sampling as Sampling
    from srl.algorithms.dagger.config import DAggerConfig as DAggerConfig
    from srl.algorithms.dqn.config import DQNConfig as DQNConfig
    from srl.algorithms.impala.config import IMPALAConfig as IMPALAConfig
    from srl.algorithms.mappo.config import MAPPOConfig as MAPPOConfig
    from srl.algorithms.off_policy_config import OffPolicyConfig as OffPolicyConfig
    from srl.algorithms.ppo.config import PPOConfig as PPOConfig
    from srl.algorithms.qmix.config import QMIXConfig as QMIXConfig
    from srl.algorithms.sac.config import SACConfig as SACConfig
    from srl.algorithms.td3.config import TD3Config as TD3Config
    from srl.algorithms.vdn.config import VDNConfig as VDNConfig
    from srl.comparison import Comparison as Comparison
    from srl.comparison import compare as compare
    from srl.envs.protocol import EnvConfig as EnvConfig
    from srl.experiment import Experiment as Experiment
    from srl.experiment import PolicyConfig as PolicyConfig
    from srl.experiment import SampleConfig as SampleConfig
    from srl.graph import FragmentShape as FragmentShape
    from srl.graph import Graph as Graph
    from srl.graph import StreamNode as StreamNode
    from srl.graph import WorkerGroup as WorkerGroup
    from srl.launch.run.callbacks import Callback as Callback
    from srl.launch.run.callbacks import FinishedEpisode as FinishedEpisode
    from srl.policies.actor_critic_config import ActorCriticConfig as ActorCriticConfig
    from srl.policies.deterministic_config import DeterministicConfig as DeterministicConfig
    from srl.policies.q_network_config import QNetworkConfig as QNetworkConfig
    from srl.policies.squashed_gaussian_config import (
        SquashedGaussianConfig as SquashedGaussianConfig,
    )
    from srl.run import Run as Run
    from srl.run import load as load
    from srl.run import resume as resume
    from srl.run import train as train
    from srl.services.checkpoints import CheckpointConfig as CheckpointConfig
    from srl.services.metrics import LoggingConfig as LoggingConfig
    from srl.workers.actor import ActorConfig as ActorConfig
    from srl.workers.actor import ActorsConfig as ActorsConfig
    from srl.workers.configs import EvaluatorConfig as EvaluatorConfig
    from srl.workers.configs import InferenceConfig as InferenceConfig
    from srl.workers.configs import TrainerConfig as TrainerConfig

_EXPORTS = {
    "srl.run": ("Run", "load", "resume", "train"),
    "srl.acting": ("ActingPolicy", "load_policy"),
    "srl.launch.run.callbacks": ("Callback", "FinishedEpisode"),
    "srl.comparison": ("Comparison", "compare"),
    "srl.experiment": ("Experiment", "PolicyConfig", "SampleConfig"),
    "srl.graph": ("FragmentShape", "Graph", "StreamNode", "WorkerGroup"),
    "srl.algorithms.a2c.config": ("A2CConfig",),
    "srl.algorithms.appo.config": ("APPOConfig",),
    "srl.algorithms.impala.config": ("IMPALAConfig",),
    "srl.algorithms.bc.config": ("BCConfig",),
    "srl.algorithms.config": ("AlgorithmConfig", "Sampling"),
    "srl.algorithms.dagger.config": ("DAggerConfig",),
    "srl.algorithms.dqn.config": ("DQNConfig",),
    "srl.algorithms.mappo.config": ("MAPPOConfig",),
    "srl.algorithms.off_policy_config": ("OffPolicyConfig",),
    "srl.algorithms.ppo.config": ("PPOConfig",),
    "srl.algorithms.qmix.config": ("QMIXConfig",),
    "srl.algorithms.sac.config": ("SACConfig",),
    "srl.algorithms.td3.config": ("TD3Config",),
    "srl.algorithms.vdn.config": ("VDNConfig",),
    "srl.envs.protocol": ("EnvConfig",),
    "srl.policies.actor_critic_config": ("ActorCriticConfig",),
    "srl.policies.q_network_config": ("QNetworkConfig",),
    "srl.policies.deterministic_config": ("DeterministicConfig",),
    "srl.policies.squashed_gaussian_config": ("SquashedGaussianConfig",),
    "srl.services.checkpoints": ("CheckpointConfig",),
    "srl.services.metrics": ("LoggingConfig",),
    "srl.workers.actor": ("ActorConfig", "ActorsConfig"),
    "srl.workers.configs": ("EvaluatorConfig", "InferenceConfig", "TrainerConfig"),
}
_MODULE_OF = {name: module for module, names in _EXPORTS.items() for name in names}

__all__ = ["errors", *sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name == "errors":
        return importlib.import_module("srl.errors")
    if name == "__version__":
        return importlib.import_module("srl.version").VERSION
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'srl' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
