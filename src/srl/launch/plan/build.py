"""Makes the plan of an experiment: layout and counts are set, specs are known, and every end of
every stream is placed.

The plan is a value. `srl plan` prints it, every layout runs it, and each worker process gets its
part of it as JSON.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from srl.algorithms.registry import algorithm_config
from srl.casting import actor_groups, assign_agents, cast_policies
from srl.data.codec import load_state
from srl.data.spec import AgentSpec, EnvSpec, TeamSpec
from srl.errors import ConfigError
from srl.experiment import (
    Experiment,
    PolicyConfig,
    algorithm_of_policy,
    build_graph,
    with_networks,
)
from srl.graph import Graph, WorkerGroup, check_graph
from srl.launch.plan.defaults import choose_counts
from srl.launch.plan.placement import Placed, default_hosts, spread
from srl.launch.plan.streams import check_slots, own_streams, plan_inference, plan_samples
from srl.plan import ActorPlan, Plan, PolicyPlan, SamplePlan, WorkerPlan
from srl.policies.registry import policy_config
from srl.resolve import path_of, resolve
from srl.services.checkpoints import CheckpointConfig
from srl.services.metric_names import MetricNames, agent_sides
from srl.services.parameters import ParameterSpec
from srl.services.policy_metrics import MAIN_ACTORS
from srl.settings import convert, to_plain
from srl.settings_objects import merged
from srl.tracebacks import user_code
from srl.workers.devices import has_gpu_driver, require_device
from srl.workers.wiring import build_policy, load_weights, needed_shapes, shapes_of
from srl.workers.worker import Worker

if TYPE_CHECKING:
    from srl.policies.protocol import Policy

SERIAL_PROCESS = "serial"


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_device(wanted: str) -> str:
    """The device that `auto` stands for."""
    if wanted != "auto":
        return wanted
    if not has_gpu_driver():
        # Without importing torch: the import would delay the start of the worker processes.
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def check_devices(experiment: Experiment) -> None:
    """Raises if this machine lacks a device that the settings name.

    Workers on other hosts check their devices themselves. So do workers of a machine with a GPU,
    because the head would have to import torch for it.
    """
    if experiment.layout == "remote" or experiment.hosts or experiment.launcher in ("ray", "slurm"):
        return
    for setting, device in (
        ("trainer.device", experiment.trainer.device),
        ("inference.device", experiment.inference.device),
    ):
        named = device not in ("", "auto")
        if named and not (device.startswith("cuda") and has_gpu_driver()):
            require_device(device, setting)


def resolve_settings(experiment: Experiment, cores: int, device: str) -> Experiment:
    """Replaces every `auto` and 0 by a value that suits the machine, and fills in defaults."""
    experiment = filled_in(experiment)
    layout = experiment.layout
    if layout == "serial" and experiment.hosts:
        raise ConfigError(
            "layout: expected one with several processes, because hosts are set, got serial."
        )
    if layout == "auto" and (experiment.hosts or experiment.launcher in ("ray", "slurm")):
        layout = "remote"
    elif layout == "auto" and cores == 1:
        layout = "serial"
    elif layout == "auto":
        layout = "shared" if device.startswith("cuda") else "inline"
    chosen = choose_counts(dataclasses.replace(experiment, layout=layout), cores, device)
    if layout == "remote" and not experiment.hosts:
        chosen = dataclasses.replace(chosen, hosts=default_hosts(build_graph(chosen)))
    return chosen


def process_names(graph: Graph, experiment: Experiment) -> Placed:
    """The processes of a graph with their workers. Each worker has a group of its own, reduced to
    the streams that this worker uses."""
    placed: Placed = {}
    serial = experiment.layout == "serial"
    for name, group in graph.workers.items():
        for index in range(group.capacity):
            process = SERIAL_PROCESS if serial else f"{group.beside or name}-{index}"
            own = own_streams(graph, group, index, experiment.actor.groups)
            placed.setdefault(process, []).append((name, own, index))
    return placed


def first_processes(placed: Placed) -> set[str]:
    """The processes that a run starts with. The others start only when the run is scaled."""
    return {
        process
        for process, members in placed.items()
        if any(index < group.count for _, group, index in members)
    }


def plan_policies(experiment: Experiment, env_spec: EnvSpec) -> dict[str, PolicyPlan]:
    """Each policy's agents, classes and settings; the shapes of weights are not known yet."""
    from srl.algorithms.registry import find_algorithm
    from srl.policies.registry import find_policy

    plans = {}
    casts = cast_policies(experiment, list(env_spec.agents))
    for name, config in experiment.policies.items():
        played = {group: cast[name] for group, cast in casts.items() if name in cast}
        agents = next(iter(played.values()))
        _check_numbers(name, played)
        network = merged(experiment.network, config.network)
        algorithm = merged(experiment.algorithm, config.algorithm)
        policy_class = find_policy("random" if config.mode == "random" else network.pop("name"))
        algorithm_class = find_algorithm(algorithm.pop("name"))
        convert(algorithm, algorithm_class.Config, "algorithm")
        if config.mode == "random":
            network = {}
        plans[name] = PolicyPlan(
            name=name,
            mode=config.mode,
            agents=agents,
            agent=_common_spec(name, [a for own in played.values() for a in own], env_spec),
            team=TeamSpec(
                num_agents=len(agents),
                env_state=env_spec.env_state,
                turn_based=env_spec.turn_based,
            ),
            policy_class=path_of(policy_class),
            network=network,
            algorithm_class=path_of(algorithm_class),
            algorithm=algorithm,
            handles_stale_samples=algorithm_class.handles_stale_samples,
            parameters=ParameterSpec(policy=name, shapes={}),
        )
    return plans


def _check_numbers(policy: str, played: Mapping[str, tuple[str, ...]]) -> None:
    """Raises unless a policy plays equally many agents in all groups of actors: its fragments are
    equally wide."""
    if len({len(agents) for agents in played.values()}) > 1:
        got = ", ".join(f"{len(agents)} in {group}" for group, agents in played.items())
        raise ConfigError(
            f"actors: expected policy {policy!r} to play equally many agents wherever it plays, "
            f"got {got}. Change the patterns, or give the other agents to another policy."
        )


def _plan_actors(experiment: Experiment, graph: Graph, env_spec: EnvSpec) -> dict[str, ActorPlan]:
    """What each group of actors plays."""
    found, first = {}, 0
    casts = cast_policies(experiment, list(env_spec.agents))
    for name, group in actor_groups(experiment).items():
        found[name] = ActorPlan(agents=casts[name], env_args=group.env_args, first_group=first)
        # A dataflow may have put something else in their place.
        capacity = graph.workers[name].capacity if name in graph.workers else 0
        first += capacity * experiment.actor.groups
    return found


def learning_policies(policies: Mapping[str, PolicyConfig]) -> list[str]:
    """The policies that are trained."""
    return [name for name, policy in policies.items() if policy.mode == "train"]


def metric_names(
    policies: Mapping[str, PolicyConfig], env_spec: EnvSpec | None, actors: Collection[str] = ()
) -> MetricNames:
    """The names of a run's metrics. Without an environment spec they contain no agent names.
    `actors` are the names of further groups of actors."""
    learning = learning_policies(policies)
    groups = (MAIN_ACTORS, *actors) if actors else ()
    if env_spec is None:
        return MetricNames(dict.fromkeys(policies), learning, groups)
    agents = assign_agents(policies, list(env_spec.agents), idle=True)
    sides = {
        name: agent_sides(policy.agents, agents.get(name, ()), turn_based=env_spec.turn_based)
        for name, policy in policies.items()
        # `srl eval --policy` may leave a policy without agents.
        if name in agents or not policy.agents
    }
    return MetricNames(sides, learning, groups)


def _common_spec(policy: str, agents: Sequence[str], env_spec: EnvSpec) -> AgentSpec:
    spec = env_spec.agents[agents[0]]
    for agent in agents[1:]:
        if env_spec.agents[agent] != spec:
            raise ConfigError(
                f"policies.{policy}: expected agents with equal spaces, got different ones for "
                f"{agents[0]!r} and {agent!r}. Give them policies of their own."
            )
    return spec


def make_plan(
    experiment: Experiment,
    env_spec: EnvSpec,
    device: str,
    *,
    base_versions: dict[str, int] | None = None,
) -> tuple[Plan, dict[str, Policy]]:
    """Returns the plan of a resolved experiment, and its policies with their first weights. See
    also `with_weights`."""
    graph = build_graph(experiment)
    check_graph(graph)
    _check_steps(experiment)
    drafts = _policy_drafts(experiment, env_spec, graph)
    for draft in drafts.values():
        needed_shapes(draft, experiment.seed)
    modules = {name: build_policy(draft, experiment.seed) for name, draft in drafts.items()}
    placed = process_names(graph, experiment)
    where = spread(placed, experiment.hosts, apart=experiment.trainer.trust_network)
    workers = [
        _worker(name, group, index, process, experiment.checkpoint)
        for process, members in placed.items()
        for name, group, index in members
    ]
    policies = {
        name: msgspec.structs.replace(
            draft,
            parameters=ParameterSpec(
                policy=name,
                shapes=shapes_of(modules[name]),
                readers=tuple(sorted({w.process for w in workers if name in w.follows})),
            ),
        )
        for name, draft in drafts.items()
    }
    actor = experiment.actor
    envs = actor.envs // (actor.count * actor.groups)
    samples = plan_samples(
        experiment, graph, env_spec, policies, modules, workers, where, base_versions or {}
    )
    plan = Plan(
        experiment=to_plain(experiment),
        env_spec=env_spec,
        actors=_plan_actors(experiment, graph, env_spec),
        envs_per_group=envs,
        num_groups=actor.groups,
        explore={name: plan_exploration(experiment, name) for name in experiment.policies},
        device=device,
        policies=policies,
        inference=plan_inference(policies, modules, workers, where, envs, actor.groups),
        samples=samples,
        workers=tuple(_with_memory(worker, samples) for worker in workers),
    )
    check_slots(plan)
    return plan, modules


def _check_steps(experiment: Experiment) -> None:
    """Raises if the run would end before a policy has learned anything."""
    if not experiment.steps:
        return
    for name in learning_policies(experiment.policies):
        config = algorithm_of_policy(experiment, name)
        with user_code(f"{type(config).__name__}.check_steps"):
            config.check_steps(experiment.steps)


def _policy_drafts(
    experiment: Experiment, env_spec: EnvSpec, graph: Graph
) -> dict[str, PolicyPlan]:
    """The policies of an experiment, and those of other runs that its workers load."""
    drafts = plan_policies(experiment, env_spec)
    if not graph.loaded():
        return drafts
    from srl.launch.plan.sources import plan_loaded

    return {**drafts, **plan_loaded(graph, drafts)}


def plan_exploration(experiment: Experiment, policy: str) -> list[float]:
    """How much a policy explores in each environment of all actors, or one number for all. Policies
    that are not trained sample their actions."""
    num_envs = experiment.actor.envs
    if experiment.policies[policy].mode != "train":
        return [1.0]
    config = algorithm_of_policy(experiment, policy)
    with user_code(f"{type(config).__name__}.explore"):
        explore = [float(share) for share in config.explore(num_envs)]
    if len(explore) != num_envs or not all(0 <= share <= 1 for share in explore):
        raise ConfigError(
            f"{type(config).__name__}.explore: expected {num_envs} numbers from 0 to 1, one for "
            f"each environment, got {len(explore)}: {explore!r:.100}."
        )
    # Each process gets the plan, and most algorithms explore alike everywhere.
    return explore if len(set(explore)) > 1 else explore[:1]


def with_weights(plan: Plan, policies: Mapping[str, Policy], files: Mapping[str, Path]) -> Plan:
    """Returns the plan with the weights `files` that its policies start with. Also loads these
    files into `policies`."""
    for name in files.keys() & policies.keys():
        load_weights(policies[name], load_state(files[name]), name)
    return msgspec.structs.replace(
        plan,
        policies={
            name: msgspec.structs.replace(policy, weights=str(files.get(name, "")))
            for name, policy in plan.policies.items()
        },
    )


def _worker(
    name: str, group: WorkerGroup, index: int, process: str, checkpoint: CheckpointConfig
) -> WorkerPlan:
    kind = resolve(group.kind)
    if not (isinstance(kind, type) and issubclass(kind, Worker)):
        raise ConfigError(
            f"graph: {name!r}: expected kind to name a subclass of srl.workers.worker.Worker, got "
            f"{group.kind!r}, which is {kind!r:.100}."
        )
    return WorkerPlan(
        name=f"{name}/{index}",
        group=name,
        index=index,
        kind=group.kind,
        process=process,
        serves=group.serves,
        requests=group.requests,
        reads=group.reads,
        writes=group.writes,
        trains=group.trains,
        follows=group.follows,
        settings=group.settings,
        restarts=group.restarts,
        max_restarts=group.max_restarts,
        threads=group.threads,
        # Of several trainers of a policy only the first one writes.
        in_every_checkpoint=kind.is_saved(checkpoint) and not (group.trains and index),
    )


def _with_memory(worker: WorkerPlan, samples: dict[str, SamplePlan]) -> WorkerPlan:
    """A worker's plan with the memory that it will take."""
    kind: type[Worker] = resolve(worker.kind)
    with user_code(f"{kind.__name__}.memory_bytes"):
        needed = kind.memory_bytes(worker, samples)
    return msgspec.structs.replace(worker, memory_bytes=needed)


def algorithm_settings(experiment: Experiment) -> dict[str, Any]:
    """All settings of the algorithm with their defaults filled in."""
    plain = dict(experiment.algorithm)
    name = plain.pop("name")
    return {"name": name, **to_plain(convert(plain, algorithm_config(name), "algorithm"))}


def network_settings(experiment: Experiment) -> dict[str, Any]:
    """All settings of the policy class with their defaults filled in."""
    plain = dict(experiment.network)
    name = plain.pop("name")
    return {"name": name, **to_plain(convert(plain, policy_config(name), "network"))}


def filled_in(experiment: Experiment) -> Experiment:
    """The experiment with the defaults of its algorithm and its network filled in."""
    experiment = with_networks(experiment)
    return dataclasses.replace(
        experiment,
        algorithm=algorithm_settings(experiment),
        network=network_settings(experiment),
    )
