"""From an experiment to a plan: layout and counts settled, specs known, every end of every stream
placed.

The plan is a value. `srl plan` prints it, every launcher runs it, and each worker process gets its
part of it as JSON.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from srl.data.spec import AgentSpec, EnvSpec
from srl.errors import ConfigError
from srl.experiment import Experiment, Graph, WorkerGroup, assign_agents, build_graph, check_graph
from srl.launch.counts import settle_counts
from srl.launch.placement import DEFAULT_HOSTS, Placed, spread
from srl.launch.plan_streams import check_slots, own_streams, plan_inference, plan_samples
from srl.resolve import path_of, resolve
from srl.services.parameters import ParameterSpec
from srl.settings import convert, to_plain
from srl.workers.wiring import Plan, PolicyPlan, WorkerPlan, build_policy

if TYPE_CHECKING:
    from srl.policies.protocol import Policy

SERIAL_PROCESS = "serial"
GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files that a machine with a GPU has: NVIDIA's driver, WSL's, AMD's."""


def available_cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def choose_device(wanted: str) -> str:
    """The device that `auto` stands for."""
    if wanted != "auto":
        return wanted
    if not any(Path(driver).exists() for driver in GPU_DRIVERS):
        # Asking torch would hold up the start of the worker processes by its import.
        return "cpu"
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def settle(experiment: Experiment, cores: int, device: str) -> Experiment:
    """Replaces every `auto` and 0 by what suits the machine."""
    layout = experiment.layout
    if layout == "serial" and experiment.hosts:
        raise ConfigError("layout: expected one with processes where there are hosts, got serial.")
    if layout == "auto" and (experiment.hosts or experiment.launcher in ("ray", "slurm")):
        layout = "remote"
    elif layout == "auto" and cores == 1:
        layout = "serial"
    elif layout == "auto":
        layout = "shared" if device.startswith("cuda") else "inline"
    hosts = experiment.hosts or (DEFAULT_HOSTS if layout == "remote" else {})
    return settle_counts(dataclasses.replace(experiment, layout=layout, hosts=hosts), cores, device)


def process_names(graph: Graph, experiment: Experiment) -> Placed:
    """Where each worker of the graph runs, each with the streams that are its own."""
    placed: Placed = {}
    serial = experiment.layout == "serial"
    for name, group in graph.workers.items():
        for index in range(group.capacity):
            home = SERIAL_PROCESS if serial else f"{group.beside or name}-{index}"
            own = own_streams(graph, group, index, experiment.actor.groups)
            placed.setdefault(home, []).append((name, own, index))
    return placed


def first_processes(placed: Placed) -> set[str]:
    """The processes that a run begins with; the others are room for more."""
    return {
        process
        for process, members in placed.items()
        if any(index < group.count for _, group, index in members)
    }


def plan_policies(experiment: Experiment, env_spec: EnvSpec) -> dict[str, PolicyPlan]:
    """Each policy's agents, classes and settings; weights are not known yet."""
    from srl.algorithms.registry import find_algorithm
    from srl.policies.registry import find_policy

    plans = {}
    for name, agents in assign_agents(experiment.policies, list(env_spec.agents)).items():
        config = experiment.policies[name]
        network = {**experiment.network, **config.network}
        algorithm = {**experiment.algorithm, **config.algorithm}
        policy_class = find_policy("random" if config.mode == "random" else network.pop("name"))
        algorithm_class = find_algorithm(algorithm.pop("name"))
        convert(algorithm, algorithm_class.Config, "algorithm")
        if config.mode == "random":
            network = {}
        plans[name] = PolicyPlan(
            name=name,
            mode=config.mode,
            agents=agents,
            agent=_common_spec(name, agents, env_spec),
            policy_class=path_of(policy_class),
            network=network,
            algorithm_class=path_of(algorithm_class),
            algorithm=algorithm,
            parameters=ParameterSpec(policy=name, shapes={}),
        )
    return plans


def _common_spec(policy: str, agents: tuple[str, ...], env_spec: EnvSpec) -> AgentSpec:
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
    weights: dict[str, str] | None = None,
) -> tuple[Plan, dict[str, Policy]]:
    """The plan of a settled experiment, and its policies with their first weights.

    `weights` names files of weights that policies start with.
    """
    graph = build_graph(experiment)
    check_graph(graph)
    drafts = {
        name: msgspec.structs.replace(draft, weights=(weights or {}).get(name, ""))
        for name, draft in plan_policies(experiment, env_spec).items()
    }
    modules = {name: build_policy(draft, experiment.seed) for name, draft in drafts.items()}
    placed = process_names(graph, experiment)
    where = spread(placed, experiment.hosts, apart=experiment.trainer.trust_network)
    workers = [
        _worker(name, group, index, process)
        for process, members in placed.items()
        for name, group, index in members
    ]
    policies = {
        name: msgspec.structs.replace(
            draft,
            parameters=ParameterSpec(
                policy=name,
                shapes={
                    key: (tuple(t.shape), str(t.dtype).removeprefix("torch."))
                    for key, t in modules[name].state_dict().items()
                },
                readers=tuple(sorted({w.process for w in workers if name in w.follows})),
            ),
        )
        for name, draft in drafts.items()
    }
    actor = experiment.actor
    envs = actor.envs // (actor.count * actor.groups)
    plan = Plan(
        experiment=to_plain(experiment),
        env_spec=env_spec,
        lanes={name: policy.agents for name, policy in policies.items()},
        envs_per_group=envs,
        num_groups=actor.groups,
        device=device,
        policies=policies,
        inference=plan_inference(policies, modules, workers, where, envs, actor.groups),
        samples=plan_samples(
            experiment, graph, env_spec, policies, modules, workers, where, base_versions or {}
        ),
        workers=tuple(workers),
    )
    check_slots(plan)
    return plan, modules


def _worker(name: str, group: WorkerGroup, index: int, process: str) -> WorkerPlan:
    return WorkerPlan(
        name=f"{name}/{index}",
        group=name,
        index=index,
        kind=group.kind,
        process=process,
        serves=group.serves,
        asks=group.asks,
        reads=group.reads,
        writes=group.writes,
        trains=group.trains,
        follows=group.follows,
        settings=group.settings,
        restarts=group.restarts,
        max_restarts=group.max_restarts,
        threads=group.threads,
        # What trainers learn together the first of them writes.
        in_every_checkpoint=resolve(group.kind).in_every_checkpoint
        and not (group.trains and index),
    )


def encode_plan(plan: Plan) -> bytes:
    """The plan as JSON."""
    return msgspec.json.encode(plan)


def decode_plan(data: bytes | str) -> Plan:
    """The inverse of `encode_plan`."""
    return msgspec.json.decode(data, type=Plan)


def algorithm_settings(experiment: Experiment) -> dict[str, Any]:
    """All settings of the algorithm with their defaults filled in."""
    from srl.algorithms.registry import find_algorithm

    plain = dict(experiment.algorithm)
    kind = find_algorithm(plain.pop("name"))
    return {
        "name": experiment.algorithm["name"],
        **to_plain(convert(plain, kind.Config, "algorithm")),
    }


def network_settings(experiment: Experiment) -> dict[str, Any]:
    """All settings of the policy class with their defaults filled in."""
    from srl.policies.registry import find_policy

    plain = dict(experiment.network)
    kind = find_policy(plain.pop("name"))
    return {"name": experiment.network["name"], **to_plain(convert(plain, kind.Config, "network"))}
