"""From an experiment to a plan: layout and counts settled, specs known, every end of every stream
placed.

The plan is a value. `srl plan` prints it, every launcher runs it, and each worker process gets it
as JSON.
"""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from srl.data.spec import AgentSpec, EnvSpec
from srl.data.trajectory import TrajectorySpec
from srl.errors import ConfigError
from srl.experiment import Experiment, Graph, WorkerGroup, assign_agents, build_graph, check_graph
from srl.launch.placement import DEFAULT_HOSTS, Placed, spread
from srl.resolve import path_of, resolve
from srl.services.parameters import ParameterSpec
from srl.settings import convert, to_plain
from srl.streams.inference import InferenceSpec
from srl.streams.sample import SampleSpec
from srl.workers.wiring import (
    Carrier,
    InferencePlan,
    Plan,
    PolicyPlan,
    SamplePlan,
    WorkerPlan,
    build_policy,
)

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
    actor = experiment.actor
    # One core is left for the trainer; the other processes take turns on the rest.
    wanted = 1 if layout == "serial" else actor.count or max(1, cores - 1)
    groups = actor.groups or (2 if layout in ("shared", "remote") else 1)
    if not actor.groups and actor.envs % (wanted * groups):
        groups = 1
    count = wanted
    if not actor.count or layout == "serial":
        while actor.envs % (count * groups):
            count -= 1
    if actor.envs % (count * groups):
        raise ConfigError(
            f"actor.envs: expected a multiple of actor.count x actor.groups = {count} x {groups}, "
            f"got {actor.envs}. Change one of the three."
        )
    hosts = experiment.hosts or (DEFAULT_HOSTS if layout == "remote" else {})
    return dataclasses.replace(
        experiment,
        layout=layout,
        hosts=hosts,
        actor=dataclasses.replace(actor, count=count, groups=groups),
        trainer=dataclasses.replace(
            experiment.trainer, count=1 if layout == "serial" else experiment.trainer.count
        ),
    )


def process_names(graph: Graph, layout: str) -> Placed:
    """Where each worker of the graph runs."""
    placed: Placed = {}
    for name, group in graph.workers.items():
        for index in range(group.capacity):
            home = f"{group.beside or name}-{index}" if layout != "serial" else SERIAL_PROCESS
            placed.setdefault(home, []).append((name, group, index))
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
    placed = process_names(graph, experiment.layout)
    where = spread(placed, experiment.hosts)
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
        inference=_inference(policies, modules, workers, where, envs, actor.groups),
        samples=_samples(
            experiment, graph, env_spec, policies, modules, workers, where, base_versions or {}
        ),
        workers=tuple(workers),
    )
    check_plan(plan)
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


def _carrier(ends: list[WorkerPlan], where: dict[str, str]) -> Carrier:
    """The fastest carrier for where the ends are; `where` is the host of each process."""
    if len({end.process for end in ends}) == 1:
        return "inline"
    return "shm" if len({where[end.process] for end in ends}) == 1 else "tcp"


def _inference(
    policies: dict[str, PolicyPlan],
    modules: dict[str, Policy],
    workers: list[WorkerPlan],
    where: dict[str, str],
    envs: int,
    groups: int,
) -> dict[str, InferencePlan]:
    """An instance for each process that serves itself, or one that all share."""
    plans = {}
    for name, policy in policies.items():
        clients = [w for w in workers if name in w.asks]
        servers = [w for w in workers if name in w.serves]
        homes = {w.process for w in servers}
        if all(client.process in homes for client in clients):
            instances = [
                (
                    f"{name}@{home}",
                    [w for w in clients if w.process == home],
                    [w for w in servers if w.process == home],
                )
                for home in sorted(homes)
            ]
        else:
            instances = [(name, clients, servers)]
        for key, askers, answerers in instances:
            plans[key] = InferencePlan(
                policy=name,
                carrier=_carrier([*askers, *answerers], where),
                clients=tuple(w.name for w in askers),
                servers=tuple(w.name for w in answerers),
                spec=InferenceSpec(
                    name=key,
                    agent=policy.agent,
                    extras=modules[name].extras_spec,
                    policy_state=modules[name].state_spec,
                    rows=envs * len(policy.agents),
                    lanes_per_client=groups,
                    clients=tuple(w.process for w in askers),
                    servers=tuple(w.process for w in answerers),
                ),
            )
    return plans


def _samples(
    experiment: Experiment,
    graph: Graph,
    env_spec: EnvSpec,
    policies: dict[str, PolicyPlan],
    modules: dict[str, Policy],
    workers: list[WorkerPlan],
    where: dict[str, str],
    base_versions: dict[str, int],
) -> dict[str, SamplePlan]:
    actor = experiment.actor
    envs = actor.envs // (actor.count * actor.groups)
    plans = {}
    for name, node in graph.streams.items():
        policy, module = policies[node.policy], modules[node.policy]
        kind = resolve(policy.algorithm_class)
        config = convert(policy.algorithm, kind.Config, "algorithm")
        kind.check(config, module)
        sampling = kind.sampling(config)
        writers = [w for w in workers if name in w.writes]
        readers = [w for w in workers if name in w.reads]
        lanes = actor.count * actor.groups
        plans[name] = SamplePlan(
            policy=node.policy,
            carrier=_carrier([*writers, *readers], where),
            writers=tuple(w.name for w in writers),
            readers=tuple(w.name for w in readers),
            spec=SampleSpec(
                name=name,
                trajectory=TrajectorySpec(
                    length=sampling.length,
                    rows=envs * len(policy.agents),
                    envs=envs,
                    agent=policy.agent,
                    extras=module.extras_spec,
                    policy_state=module.state_spec,
                    env_state=env_spec.state,
                    burn_in=sampling.burn_in,
                    state_every=sampling.state_every,
                    cut=sampling.cut,
                    turn_based=env_spec.turn_based,
                ),
                slots=experiment.sample.slots or 2 * max(lanes, actor.groups * len(writers)),
                writers=tuple(w.process for w in writers),
                readers=tuple(w.process for w in readers),
                delivery=node.delivery,
                items_per_batch=lanes,
                max_policy_age=sampling.max_policy_age if node.bounds_age else None,
                base_version=base_versions.get(node.policy, 0),
            ),
        )
    return plans


def check_plan(plan: Plan) -> None:
    """Raises if the plan would stand still."""
    for name, stream in plan.samples.items():
        _check_turns(plan, stream)
        in_flight = plan.num_groups * len(stream.writers)
        if stream.spec.slots < in_flight:
            raise ConfigError(
                f"sample.slots: stream {name!r} expects at least {in_flight} slots, one for each "
                f"group that writes at once, got {stream.spec.slots}. Raise sample.slots."
            )


def _check_turns(plan: Plan, stream: SamplePlan) -> None:
    """Several trainers of a policy need an algorithm that knows of it, and equal parts."""
    readers, items = len(stream.readers), stream.spec.items_per_batch
    if stream.spec.delivery != "turn" or readers == 1:
        return
    kind = resolve(plan.policies[stream.policy].algorithm_class)
    if not kind.data_parallel:
        raise ConfigError(
            f"trainer.count: expected 1, because {kind.__name__} does not say that it learns with "
            f"several trainers (Algorithm.data_parallel), got {readers}."
        )
    if items % readers:
        raise ConfigError(
            f"trainer.count: expected a divisor of the {items} fragments of a batch (actor.count x "
            f"actor.groups), so that each trainer gets as many, got {readers}. Change one of the "
            "three."
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
