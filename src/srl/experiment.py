"""What to run: the settings, and the graph that follows from them."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from srl.algorithms.config import AlgorithmConfig
from srl.algorithms.registry import algorithm_config
from srl.casting import MAIN, actor_groups, check_actors, num_actors
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError
from srl.graph import Graph, StreamNode, WorkerGroup
from srl.resolve import resolve
from srl.resources import RayConfig, ResourcesConfig, SlurmConfig
from srl.services.checkpoints import CheckpointConfig
from srl.services.metrics import LoggingConfig
from srl.settings import convert
from srl.settings_objects import PARTS, Settings, make_default, make_plain, merged
from srl.tracebacks import user_code
from srl.workers.actor import ActorConfig, ActorsConfig
from srl.workers.configs import EvaluatorConfig, InferenceConfig, TrainerConfig

Layout = Literal["auto", "serial", "inline", "shared", "remote"]
Launcher = Literal["processes", "ray", "slurm", "manual"]


@dataclass(frozen=True, kw_only=True)
class SampleConfig:
    """Settings of the sample streams."""

    slots: int = 0
    """Fragments that a policy's sample stream holds, for all trainers together; 0 is twice the
    number that the groups write at once."""
    patience_seconds: float = 1.0
    """Where policy age is bounded, a fragment is overdue when it takes longer than this, and four
    times as long as its writer usually takes. Others then take its ticket. 0 waits until the
    writer's death is certain."""

    def __post_init__(self) -> None:
        for name in ("slots", "patience_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"sample.{name}: expected at least 0, got {getattr(self, name)}.")


SEEDS = 1 << 32
"""The number of possible seeds, which begin at 0."""
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")
"""Valid names of policies and hosts: files of a run have these names."""


@dataclass(frozen=True, kw_only=True)
class PolicyConfig:
    """One policy of an experiment: which agents it controls, and where its weights come from."""

    agents: tuple[str, ...] = ("*",)
    """Name patterns of its agents; each agent belongs to the first policy that matches. A policy
    without patterns plays only where `actors` name it."""
    mode: Literal["train", "frozen", "random"] = "train"
    """`train` has a trainer of its own, `frozen` plays fixed weights, `random` plays at random."""
    source: str = ""
    """RUN or RUN@CHECKPOINT[:POLICY] with its first weights (needed for `frozen`). `best` is the
    checkpoint at which that policy scored best."""
    source_policy: str = ""
    """The policy's name in that run; empty takes the name in `source`, its own name, or the only
    policy there."""
    network: Settings = field(default_factory=make_default())
    """Settings that differ from the experiment's `network`; in Python also a settings object."""
    algorithm: Settings = field(default_factory=make_default())
    """Settings that differ from the experiment's `algorithm`; in Python also a settings object."""

    def __post_init__(self) -> None:
        make_plain(self, "policies.")
        if self.mode == "frozen" and not self.source:
            raise ConfigError(
                "policies: a frozen policy expects a source (RUN or RUN@best), got none."
            )

    @property
    def origin(self) -> tuple[str, str]:
        """The source of its first weights."""
        return self.source, self.source_policy


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """Everything that decides what a run does; a run stores it in `config.yaml`."""

    env: EnvConfig
    name: str = ""
    """The run's name; empty takes the environment's name."""
    algorithm: Settings = field(default_factory=make_default(name="ppo"))
    """`name` (or import path) of the algorithm, and its settings. In Python also a settings object,
    like `PPOConfig(epochs=8)`."""
    network: Settings = field(default_factory=make_default(name=""))
    """`name` (or import path) of the policy class, and its settings; an empty name takes the
    algorithm's own. In Python also a settings object, like `ActorCriticConfig(recurrent="lstm")`.
    """
    policies: dict[str, PolicyConfig] = field(default_factory=lambda: {"default": PolicyConfig()})
    """The policies, by name."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    actors: dict[str, ActorsConfig] = field(default_factory=dict)
    """Further groups of actors, by name: with other arguments of the environment, or other policies
    for its agents."""
    inference: InferenceConfig = field(default_factory=InferenceConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    evaluator: EvaluatorConfig = field(default_factory=EvaluatorConfig)
    sample: SampleConfig = field(default_factory=SampleConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    logging: LoggingConfig = field(default_factory=LoggingConfig)
    resources: ResourcesConfig = field(default_factory=ResourcesConfig)
    ray: RayConfig = field(default_factory=RayConfig)
    slurm: SlurmConfig = field(default_factory=SlurmConfig)
    layout: Layout = "auto"
    """`serial` (one thread), `inline` (a policy in each actor), `shared` (policy workers), `remote`
    (policy workers, spread over `hosts`), `auto`."""
    hosts: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Other hosts by name, each with the worker groups that it may hold, like
    `{a: [actor], b: [actor, policy]}`. All other groups run on the head's host. If it is empty in
    layout `remote`, one host has the actors and another has the policy workers."""
    launcher: Launcher = "processes"
    """What starts the host agents: `processes` (on this machine), `ray`, `slurm`, or `manual` (a
    person runs `srl worker`)."""
    listen: str = ""
    """This machine's address for other hosts, with or without a port (10.0.0.1:5555). Empty takes
    what the launcher needs: loopback for `processes`."""
    bridge_port: int = 0
    """Port of this machine's bridge, which carries all data to and from other hosts; 0 takes any
    free port. On other hosts `srl worker --bind` sets it."""
    pack_pixels: bool = False
    """Compresses pixels (lz4) between hosts, for networks that are slower than the compression."""
    host_silence_seconds: float = 20.0
    """A host that is silent for this long counts as lost; its workers are started elsewhere."""
    steps: int = 0
    """Environment steps to train for; schedules run over them. 0 trains until another limit."""
    seconds: float = 0.0
    """Seconds to train for; 0 has no limit."""
    until: str = ""
    """A condition that ends the run, like `return>=475`, or `return/POLICY>=475` where several
    policies learn."""
    seed: int = 1
    """The seed of all randomness."""
    max_restarts: int = 3
    """How often a killed worker is started again within `restart_window_seconds`. Kinds of workers
    may have their own limits (`actor.max_restarts`, ...)."""
    restart_window_seconds: float = 600.0
    """Restarts that are longer ago than this do not count."""
    silence_seconds: float = 60.0
    """A worker process is killed and started again if its loop stands still, and it uses no CPU
    time, for this long. If ten times its longest loop is longer, that is the limit."""
    stopped_seconds: float = 2.0
    """A process that a signal (SIGSTOP) has stopped for this long is killed and started again."""
    stall_seconds: float = 30.0
    """A run fails when all workers wait and none makes progress for this long; 0 lets it wait for
    ever."""
    dataflow: str = ""
    """Import path of a function that changes the graph of workers and streams."""

    def __post_init__(self) -> None:
        make_plain(self)
        for name in ("steps", "seconds", "max_restarts", "seed", "stall_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"{name}: expected at least 0, got {getattr(self, name)}.")
        for name in (
            *("silence_seconds", "stopped_seconds"),
            *("host_silence_seconds", "restart_window_seconds"),
        ):
            if getattr(self, name) <= 0:
                raise ConfigError(f"{name}: expected more than 0, got {getattr(self, name)}.")
        if self.seed >= SEEDS:
            raise ConfigError(f"seed: expected less than {SEEDS}, got {self.seed}.")
        if not 0 <= self.bridge_port < 65536:
            raise ConfigError(f"bridge_port: expected a port, or 0, got {self.bridge_port}.")
        if not self.policies:
            raise ConfigError("policies: expected at least one, got none.")
        for part in ("policies", "hosts", "actors"):
            for name in getattr(self, part):
                if not NAME.fullmatch(name):
                    raise ConfigError(
                        f"{part}: expected names of up to 64 letters, digits, '_', '.' and '-' "
                        f"that begin with a letter, a digit or '_', got {name!r}. Rename it."
                    )
        check_actors(self)
        for part in PARTS:
            if "name" not in getattr(self, part):
                raise ConfigError(f"{part}.name: expected a name or an import path, got none.")


ALGORITHM_FREE = frozenset(
    {
        *("name", "steps", "seconds", "until", "layout", "inference", "evaluator"),
        *("checkpoint", "logging", "sample", "max_restarts"),
        *("silence_seconds", "stopped_seconds", "stall_seconds"),
        *("hosts", "launcher", "listen", "host_silence_seconds", "restart_window_seconds"),
        *("actor.max_count", "actor.max_restarts", "env.max_failures", "env.failure_steps"),
        *("trainer", "actor.count", "actor.groups", "actor.keep_core", "env.threads"),
        *("env.step_timeout_seconds", "env.reset_timeout_seconds", "resources", "ray", "slurm"),
        *("pack_pixels", "bridge_port", "network.kernels", "policies.*.network.kernels"),
        *("algorithm.replay_beside_trainer", "policies.*.algorithm.replay_beside_trainer"),
    }
)
"""Settings that may change when a run is resumed, because they do not change what is learned. `*`
is the name of a policy."""


def with_networks(experiment: Experiment) -> Experiment:
    """The experiment in which networks without a name have the names of their algorithms'.

    It imports the algorithms, so it is not for runs that are not trusted.
    """
    common = experiment.algorithm["name"]
    own_network = algorithm_config(common).network
    if not experiment.network["name"]:
        network = {**experiment.network, "name": own_network}
        experiment = dataclasses.replace(experiment, network=network)
    if experiment.network["name"] != own_network:
        return experiment
    policies = dict(experiment.policies)
    for name, policy in policies.items():
        own = policy.algorithm.get("name", common)
        if own != common and "name" not in policy.network:
            network = {**policy.network, "name": algorithm_config(own).network}
            policies[name] = dataclasses.replace(policy, network=network)
    return dataclasses.replace(experiment, policies=policies)


def algorithm_of_policy(experiment: Experiment, policy: str) -> AlgorithmConfig:
    """The settings of the algorithm that trains a policy."""
    settings = merged(experiment.algorithm, experiment.policies[policy].algorithm)
    kind = algorithm_config(settings.pop("name"))
    config: AlgorithmConfig = convert(settings, kind, "algorithm")
    return config


def build_graph(experiment: Experiment) -> Graph:
    """The graph of an experiment whose layout and counts are decided."""
    trained = tuple(n for n, p in experiment.policies.items() if p.mode == "train")
    inline = experiment.layout == "inline"
    # Trainers that may be on several hosts must know the newest version on every host.
    apart = experiment.trainer.count > 1 and experiment.trainer.trust_network
    workers = {
        f"trainer-{name}" if len(trained) > 1 else "trainer": WorkerGroup(
            kind="srl.workers.trainer:TrainerWorker",
            count=experiment.trainer.count,
            reads=(name,),
            trains=(name,),
            follows=(name,) if apart else (),
            max_restarts=experiment.trainer.max_restarts,
            threads=experiment.trainer.threads,
        )
        for name in trained
    }
    groups = actor_groups(experiment)
    if inline:
        for name, group in groups.items():
            workers[name.replace("actor", "policy", 1)] = _policy_workers(
                experiment, tuple(group.agents), beside=name
            )
    else:
        workers["policy"] = _policy_workers(experiment, tuple(experiment.policies))
    for name, group in groups.items():
        plays = tuple(policy for policy in experiment.policies if policy in group.agents)
        learns = tuple(policy for policy in plays if policy in trained)
        workers[name] = WorkerGroup(
            kind="srl.workers.actor:ActorWorker",
            count=num_actors(experiment, group),
            max_count=experiment.actor.max_count if name == MAIN else 0,
            requests=plays,
            writes=learns,
            follows=learns,
            max_restarts=experiment.actor.max_restarts,
        )
    if experiment.evaluator.count:
        workers["evaluator"] = WorkerGroup(
            kind="srl.workers.evaluator:EvaluatorWorker",
            count=experiment.evaluator.count,
            follows=tuple(groups[MAIN].agents),
            max_restarts=experiment.evaluator.max_restarts,
        )
    graph = Graph(workers=workers, streams={name: StreamNode(policy=name) for name in trained})
    for name in trained:
        algorithm = algorithm_of_policy(experiment, name)
        change = functools.partial(algorithm.dataflow, policy=name)
        graph = _changed(graph, change, f"{type(algorithm).__name__}.dataflow")
    if experiment.dataflow:
        graph = _changed(graph, resolve(experiment.dataflow), f"dataflow {experiment.dataflow!r}")
    return graph


def _policy_workers(
    experiment: Experiment, policies: tuple[str, ...], beside: str = ""
) -> WorkerGroup:
    """The policy workers of some policies, `beside` a group of actors or by themselves."""
    groups, inference = actor_groups(experiment), experiment.inference
    count, max_count = inference.count, inference.max_count
    if beside:
        count = num_actors(experiment, groups[beside])
        max_count = experiment.actor.max_count if beside == MAIN else 0
    return WorkerGroup(
        kind="srl.workers.policy:PolicyWorker",
        count=count,
        max_count=max_count,
        serves=policies,
        follows=policies,
        beside=beside,
        max_restarts=inference.max_restarts,
        threads=inference.threads,
    )


def _changed(graph: Graph, change: Callable[[Graph], Graph], name: str) -> Graph:
    """The graph as a function of the user, or of an algorithm, changes it."""
    with user_code(name):
        changed = change(graph)
    if not isinstance(changed, Graph):
        raise ConfigError(
            f"{name}: expected it to return a Graph, got {type(changed).__name__}. Return what "
            "`graph.insert(...)` returns."
        )
    return changed
