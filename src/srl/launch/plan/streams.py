"""The streams of a plan: which workers are at their ends, and what carries them.

If a policy has several trainers, each of its sample streams is split into parts: one for each
trainer, all the way from the actors. So every trainer fills its part of a batch by itself. Each
agent batch of an actor writes into one part; workers in between are divided one by one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from srl.algorithms.config import AlgorithmConfig, Sampling
from srl.data.spec import EnvSpec
from srl.data.table import TableSpec
from srl.data.trajectory import TrajectorySpec
from srl.errors import ConfigError
from srl.experiment import Experiment, algorithm_of_policy
from srl.graph import FragmentShape, Graph, WorkerGroup
from srl.plan import Carrier, InferencePlan, Plan, PolicyPlan, SamplePlan, WorkerPlan
from srl.resolve import resolve
from srl.streams.inference import InferenceSpec
from srl.streams.sample import SampleSpec
from srl.tracebacks import user_code
from srl.workers.actor import ActorConfig

if TYPE_CHECKING:
    from srl.algorithms.protocol import Algorithm
    from srl.policies.protocol import Policy


def own_streams(graph: Graph, group: WorkerGroup, index: int, groups: int) -> WorkerGroup:
    """Returns a copy of a group for one of its workers, with the parts of streams that this worker
    uses."""
    agent_batches = _num_agent_batches(group, groups)

    def parts(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            _part_name(name, part, graph.parts(name))
            for name in names
            for part in parts_of(index, group.count, agent_batches, graph.parts(name))
        )

    return dataclasses.replace(group, reads=parts(group.reads), writes=parts(group.writes))


def _num_agent_batches(worker: WorkerGroup | WorkerPlan, groups: int) -> int:
    """Agent batches of a worker for one policy, which is how many fragments it writes at once: an
    actor has one for each of its groups, any other worker has one."""
    return groups if worker.requests else 1


def _part_name(stream: str, part: int, parts: int) -> str:
    return f"{stream}@{part}" if parts > 1 else stream


def parts_of(index: int, count: int, agent_batches: int, parts: int) -> list[int]:
    """The parts of a stream that one of `count` workers uses.

    Agent batch n uses part n mod `parts`; `agent_batches` is their number in each worker. If there
    are fewer agent batches than parts, each one uses several parts.
    """
    own = range(index * agent_batches, (index + 1) * agent_batches)
    total = count * agent_batches
    if total >= parts or index >= count:
        return sorted({agent_batch % parts for agent_batch in own})
    return [part for part in range(parts) if part % total in own]


def _carrier(ends: list[WorkerPlan], where: dict[str, str]) -> Carrier:
    """The fastest carrier for where the ends are; `where` is the host of each process."""
    if len({end.process for end in ends}) == 1:
        return "inline"
    return "shm" if len({where[end.process] for end in ends}) == 1 else "tcp"


def _sample_carrier(ends: list[WorkerPlan], where: dict[str, str]) -> Carrier:
    """The carrier of a sample stream. Its slots and accounts outlive the processes at its ends, so
    they are in private memory only where the whole run is one process."""
    carrier = _carrier(ends, where)
    return "shm" if carrier == "inline" and len(where) > 1 else carrier


def plan_inference(
    policies: dict[str, PolicyPlan],
    modules: dict[str, Policy],
    workers: list[WorkerPlan],
    where: dict[str, str],
    envs: int,
    groups: int,
) -> dict[str, InferencePlan]:
    """The inference streams of every policy: one for each process if every client has a server in
    its own process, else one that all processes share."""
    plans = {}
    for name, policy in policies.items():
        clients = [w for w in workers if name in w.requests]
        servers = [w for w in workers if name in w.serves]
        processes = {w.process for w in servers}
        if all(client.process in processes for client in clients):
            instances = [
                (
                    f"{name}@{process}",
                    [w for w in clients if w.process == process],
                    [w for w in servers if w.process == process],
                )
                for process in sorted(processes.intersection(c.process for c in clients))
            ]
        else:
            instances = [(name, clients, servers)]
        for key, own_clients, own_servers in instances:
            plans[key] = InferencePlan(
                policy=name,
                carrier=_carrier([*own_clients, *own_servers], where),
                clients=tuple(w.name for w in own_clients),
                servers=tuple(w.name for w in own_servers),
                spec=InferenceSpec(
                    name=key,
                    agent=policy.agent,
                    extras=modules[name].extras_spec,
                    policy_state=modules[name].state_spec,
                    rows=envs * len(policy.agents),
                    slots_per_client=groups,
                    clients=tuple(w.process for w in own_clients),
                    servers=tuple(w.process for w in own_servers),
                ),
            )
    return plans


def plan_samples(
    experiment: Experiment,
    graph: Graph,
    env_spec: EnvSpec,
    policies: dict[str, PolicyPlan],
    modules: dict[str, Policy],
    workers: list[WorkerPlan],
    where: dict[str, str],
    base_versions: dict[str, int],
) -> dict[str, SamplePlan]:
    """Every sample stream of the graph, in its parts."""
    actor = experiment.actor
    envs = actor.envs // (actor.count * actor.groups)
    plans, patience = {}, experiment.sample.patience_seconds
    wanted = {
        name: _check_algorithm(algorithm_of_policy(experiment, name), policies[name], modules[name])
        for name in dict.fromkeys(node.policy for node in graph.streams.values())
    }
    for stream, node in graph.streams.items():
        policy, parts = policies[node.policy], graph.parts(stream)
        sampling = wanted[node.policy]
        max_policy_age = sampling.max_policy_age if node.bounds_age else None
        if sampling.max_policy_age is not None and not node.has_tables:
            _check_bounded(stream, graph, sampling)
        per_batch = _fragments_per_batch(stream, graph, actor, policy, parts)
        shape = node.shape or sampling
        record = _record(shape, envs, env_spec, policy, modules[node.policy])
        for part in range(parts):
            name = _part_name(stream, part, parts)
            writers = [w for w in workers if name in w.writes]
            readers = [w for w in workers if name in w.reads]
            at_once = _written_at_once(writers, actor.groups, part, parts)
            in_one_process = len({end.process for end in (*writers, *readers)}) == 1
            carrier = _sample_carrier([*writers, *readers], where)
            plans[name] = SamplePlan(
                stream=stream,
                part=part,
                parts=parts,
                policy=node.policy,
                carrier=carrier,
                writers=tuple(w.name for w in writers),
                readers=tuple(w.name for w in readers),
                at_once=at_once,
                spec=SampleSpec(
                    name=name,
                    record=record,
                    slots=-(-experiment.sample.slots // parts) or 2 * max(per_batch, at_once),
                    writers=tuple(w.process for w in writers),
                    readers=tuple(w.process for w in readers),
                    delivery=node.delivery,
                    fragments_per_batch=per_batch,
                    max_policy_age=max_policy_age,
                    base_version=base_versions.get(node.policy, 0),
                    # In one thread nothing else can go on while a fragment is overdue.
                    patience_seconds=0.0 if in_one_process else patience,
                ),
            )
    return plans


def _record(
    shape: FragmentShape | TableSpec,
    envs: int,
    env_spec: EnvSpec,
    policy: PolicyPlan,
    module: Policy,
) -> TrajectorySpec | TableSpec:
    """The layout of what a stream carries."""
    if isinstance(shape, TableSpec):
        return shape
    envs = envs if shape.envs is None else shape.envs
    return TrajectorySpec(
        length=shape.length,
        rows=envs * len(policy.agents),
        envs=envs,
        agent=policy.agent,
        extras=module.extras_spec,
        policy_state=module.state_spec,
        env_state=env_spec.env_state,
        row=shape.row or None,
        burn_in=shape.burn_in,
        bootstrap=shape.bootstrap,
        state_every=shape.state_every,
        cut=shape.cut,
        turn_based=env_spec.turn_based,
    )


def _written_at_once(writers: list[WorkerPlan], groups: int, part: int, parts: int) -> int:
    """How many fragments of one part of a stream are written at the same time."""
    count = 0
    for writer in writers:
        agent_batches = _num_agent_batches(writer, groups)
        own = range(writer.index * agent_batches, (writer.index + 1) * agent_batches)
        count += max(1, sum(agent_batch % parts == part for agent_batch in own))
    return count


def _check_algorithm(config: AlgorithmConfig, policy: PolicyPlan, module: Policy) -> Sampling:
    """The fragments that an algorithm wants; raises if it cannot learn this policy from them."""
    kind = resolve(policy.algorithm_class)
    with user_code(f"algorithm {policy.algorithm_class!r}"):
        kind.check(config, module)
        sampling = config.sampling()
    if not isinstance(sampling, Sampling):
        raise ConfigError(
            f"algorithm {policy.algorithm_class!r}: expected {type(config).__name__}.sampling() to "
            f"return an srl.Sampling, got {sampling!r:.100}."
        )
    _check_age(kind, sampling)
    return sampling


def _check_bounded(stream: str, graph: Graph, sampling: Sampling) -> None:
    """Raises where a bound on policy age would wait for fragments whose number nobody knows."""
    node = graph.streams[stream]
    problem = ""
    if graph.upstream(stream) and node.ratio is None:
        problem = f"what writes stream {stream!r} writes no fixed number of fragments for each one"
    elif node.split == "readers":
        problem = f"each reader of stream {stream!r} has a part of it, and not each trainer"
    if problem:
        raise ConfigError(
            f"algorithm.max_policy_age: expected null, because {problem}, got "
            f"{sampling.max_policy_age}. Set algorithm.max_policy_age=null, or change the dataflow."
        )


def _fragments_per_batch(
    stream: str, graph: Graph, actor: ActorConfig, policy: PolicyPlan, parts: int
) -> int:
    """Fragments of one part of a stream that make a batch; raises unless all get equal parts."""
    actors = sum(
        group.count
        for group in graph.workers.values()
        if policy.name in group.requests
        and any(graph.streams[written].policy == policy.name for written in group.writes)
    )
    agent_batches = (actors or actor.count) * actor.groups
    total = graph.fragments_per_batch(stream, agent_batches)
    of_trainers = graph.streams[stream].split == "trainers"
    if of_trainers and parts > 1:
        kind = resolve(policy.algorithm_class)
        if not kind.data_parallel:
            raise ConfigError(
                f"trainer.count: expected 1, because {kind.__name__} does not say that it learns "
                f"with several trainers (Algorithm.data_parallel), got {parts}."
            )
    if total.denominator > 1:
        raise ConfigError(
            f"graph: stream {stream!r}: expected a whole number of fragments in a batch, got "
            f"{total}: {agent_batches} (actor.count x actor.groups), times the ratios of the "
            "streams on the way. Change one of them."
        )
    if of_trainers and total.numerator % parts:
        raise ConfigError(
            f"trainer.count: expected a divisor of the {total} fragments of a batch "
            f"(actor.count x actor.groups), so that all trainers get equal parts, got {parts}. "
            "Change one of the three."
        )
    return -(-total.numerator // parts)


def _check_age(kind: type[Algorithm], sampling: Sampling) -> None:
    """Raises unless the algorithm is right for data as old as it may be."""
    age = sampling.max_policy_age
    if age == 0 or kind.handles_stale_samples:
        return
    got = "none (no limit)" if age is None else age
    raise ConfigError(
        f"algorithm.max_policy_age: expected 0, because {kind.__name__} does not declare how its "
        "loss treats samples that an older version of the policy took "
        f"(Algorithm.handles_stale_samples), got {got}. Set algorithm.max_policy_age=0, or let the "
        "loss correct for such samples (in a subclass of PPO: set_proximal and weighted_advantage "
        f"of the minibatch) and set handles_stale_samples = True in {kind.__name__}."
    )


def check_slots(plan: Plan) -> None:
    """Raises if a stream has so few slots that writers would wait for each other for ever."""
    workers = {worker.name: worker for worker in plan.workers}
    for name, stream in plan.samples.items():
        writers = [workers[writer] for writer in stream.writers]
        least = _written_at_once(writers, plan.num_groups, stream.part, stream.parts)
        if stream.spec.slots < least:
            raise ConfigError(
                f"sample.slots: stream {name!r} expects at least {least} slots, one for each group "
                f"that writes at once, got {stream.spec.slots}. Raise sample.slots to "
                f"{least * stream.parts}."
            )
