"""The streams of a plan: which worker is at which end of which, and what carries it.

Where a policy has several trainers, each of its sample streams is one for each of them, all the way
from the actors, so that every trainer has a batch of its own by itself. Actors are divided lane by
lane, workers in between one by one.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from srl.data.spec import EnvSpec
from srl.data.trajectory import TrajectorySpec
from srl.errors import ConfigError
from srl.experiment import Experiment, Graph, WorkerGroup
from srl.resolve import resolve
from srl.settings import convert
from srl.streams.inference import InferenceSpec
from srl.streams.sample import SampleSpec
from srl.workers.wiring import (
    Carrier,
    InferencePlan,
    Plan,
    PolicyPlan,
    SamplePlan,
    WorkerPlan,
)

if TYPE_CHECKING:
    from srl.algorithms.protocol import Sampling
    from srl.policies.protocol import Policy


def own_streams(graph: Graph, group: WorkerGroup, index: int, groups: int) -> WorkerGroup:
    """A group as one of its workers is to see it: with the streams that are its own."""
    lanes = _lanes(group, groups)

    def parts(names: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(
            _part_name(name, part, graph.parts(name))
            for name in names
            for part in parts_of(index, group.count, lanes, graph.parts(name))
        )

    return dataclasses.replace(group, reads=parts(group.reads), writes=parts(group.writes))


def _lanes(worker: WorkerGroup | WorkerPlan, groups: int) -> int:
    """Fragments that a worker writes at once: an actor one for each of its groups."""
    return groups if worker.asks else 1


def _part_name(stream: str, part: int, parts: int) -> str:
    return f"{stream}@{part}" if parts > 1 else stream


def parts_of(index: int, count: int, lanes: int, parts: int) -> list[int]:
    """Which parts of a stream one of `count` workers is at. Lane n is at part n mod `parts`; where
    there are fewer lanes than parts, each is at several."""
    own = range(index * lanes, (index + 1) * lanes)
    every = count * lanes
    if every >= parts or index >= count:
        return sorted({lane % parts for lane in own})
    return [part for part in range(parts) if part % every in own]


def _carrier(ends: list[WorkerPlan], where: dict[str, str]) -> Carrier:
    """The fastest carrier for where the ends are; `where` is the host of each process."""
    if len({end.process for end in ends}) == 1:
        return "inline"
    return "shm" if len({where[end.process] for end in ends}) == 1 else "tcp"


def plan_inference(
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
    """Every sample stream of the graph, once for each trainer of its policy."""
    actor = experiment.actor
    envs, lanes = actor.envs // (actor.count * actor.groups), actor.count * actor.groups
    plans, patience = {}, experiment.sample.patience_seconds
    for stream, node in graph.streams.items():
        policy, module, parts = policies[node.policy], modules[node.policy], graph.parts(stream)
        kind = resolve(policy.algorithm_class)
        config = convert(policy.algorithm, kind.Config, "algorithm")
        kind.check(config, module)
        _check_trainers(kind, lanes, parts)
        sampling = kind.sampling(config)
        trajectory = _trajectory(sampling, envs, env_spec, policy, module)
        for part in range(parts):
            name = _part_name(stream, part, parts)
            writers = [w for w in workers if name in w.writes]
            readers = [w for w in workers if name in w.reads]
            at_once = _written_at_once(writers, actor.groups, part, parts)
            carrier = _carrier([*writers, *readers], where)
            plans[name] = SamplePlan(
                stream=stream,
                part=part,
                parts=parts,
                policy=node.policy,
                carrier=carrier,
                writers=tuple(w.name for w in writers),
                readers=tuple(w.name for w in readers),
                spec=SampleSpec(
                    name=name,
                    trajectory=trajectory,
                    slots=-(-experiment.sample.slots // parts) or 2 * max(lanes // parts, at_once),
                    writers=tuple(w.process for w in writers),
                    readers=tuple(w.process for w in readers),
                    delivery=node.delivery,
                    items_per_batch=lanes // parts,
                    max_policy_age=sampling.max_policy_age if node.bounds_age else None,
                    base_version=base_versions.get(node.policy, 0),
                    # In one thread nobody goes on while another is overdue.
                    patience_seconds=0.0 if carrier == "inline" else patience,
                ),
            )
    return plans


def _trajectory(
    sampling: Sampling, envs: int, env_spec: EnvSpec, policy: PolicyPlan, module: Policy
) -> TrajectorySpec:
    return TrajectorySpec(
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
    )


def _written_at_once(writers: list[WorkerPlan], groups: int, part: int, parts: int) -> int:
    """Fragments of one part of a stream that are being written at the same time."""
    count = 0
    for writer in writers:
        lanes = _lanes(writer, groups)
        own = range(writer.index * lanes, (writer.index + 1) * lanes)
        count += max(1, sum(lane % parts == part for lane in own))
    return count


def _check_trainers(kind: type, lanes: int, trainers: int) -> None:
    """Several trainers of a policy need an algorithm that knows of it, and equal parts."""
    if trainers == 1:
        return
    if not kind.data_parallel:  # type: ignore[attr-defined]
        raise ConfigError(
            f"trainer.count: expected 1, because {kind.__name__} does not say that it learns with "
            f"several trainers (Algorithm.data_parallel), got {trainers}."
        )
    if lanes % trainers:
        raise ConfigError(
            f"trainer.count: expected a divisor of the {lanes} fragments of a batch (actor.count x "
            f"actor.groups), so that each trainer gets as many, got {trainers}. Change one of the "
            "three."
        )


def check_slots(plan: Plan) -> None:
    """Raises if writers would wait for each other's slots for ever."""
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
