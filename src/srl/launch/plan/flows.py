"""The topology of a plan as it is drawn: boxes of like processes, and the flows between and inside
them. `srl plan` draws it before a run, and `srl watch` while it goes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from srl.launch.cluster.node import HEAD_HOST
from srl.launch.plan.facts import inference_text, sample_text
from srl.launch.plan.memory import region_bytes, size_text
from srl.plan import Plan, WorkerPlan

Kind = Literal["inference", "sample", "weights"]


@dataclass(frozen=True)
class Flow:
    """One arrow: a stream, or a policy's weights."""

    kind: Kind
    source: str
    target: str
    title: str
    detail: str
    carries: tuple[str, ...] = ()
    """Keys of its sample streams in the plan, or names of the policies it is for."""

    @property
    def both_ways(self) -> bool:
        """Whether data flows both ways: requests to the target, replies to the source."""
        return self.kind == "inference"


def find_frames(plan: Plan, where: Mapping[str, str]) -> dict[str, str]:
    """The name of the frame around each process; empty where there is only one host. Hosts that
    hold the same groups share a frame."""
    holds: dict[str, set[str]] = {}
    for process, workers in plan.processes.items():
        holds.setdefault(where[process], set()).update(worker.group for worker in workers)
    if len(holds) == 1:
        return dict.fromkeys(plan.processes, "")
    alike: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for host, groups in holds.items():
        alike.setdefault((host == HEAD_HOST, tuple(sorted(groups))), []).append(host)
    names = {host: _hosts_text(hosts) for hosts in alike.values() for host in hosts}
    return {process: names[where[process]] for process in plan.processes}


def _hosts_text(hosts: list[str]) -> str:
    if len(hosts) == 1:
        return f"host {hosts[0]}"
    if len(hosts) == 2:
        return f"hosts {hosts[0]}, {hosts[1]}"
    return f"hosts {hosts[0]} … {hosts[-1]} ({len(hosts)})"


def find_boxes(plan: Plan, frames: Mapping[str, str]) -> dict[str, str]:
    """The box of each process. One box has all processes with the same groups of workers in the
    same frame."""
    return {
        process: "+".join((*sorted({worker.group for worker in workers}), frames[process]))
        for process, workers in plan.processes.items()
    }


def column_of(workers: list[WorkerPlan]) -> int:
    """The column of a box: processes that step environments, those that answer or work in between,
    and those that train."""
    if any(worker.requests for worker in workers):
        return 0
    return 2 if any(worker.trains for worker in workers) else 1


def find_flows(plan: Plan, box_of: Mapping[str, str]) -> list[Flow]:
    """The flows between boxes, each once. `box_of` maps a process to its box."""
    boxes = {worker.name: box_of[worker.process] for worker in plan.workers}
    sizes = region_bytes(plan)
    found: dict[tuple[str, str, str], Flow] = {}

    def add(
        kind: Kind, name: str, sources: set[str], targets: set[str], detail: str, key: str
    ) -> None:
        for source in sorted(sources):
            for target in sorted(targets):
                if source != target:
                    title = f"{kind} {name}"
                    flow = found.get((title, source, target))
                    # The parts of a stream are one arrow.
                    carries = tuple(dict.fromkeys((*flow.carries, key))) if flow else (key,)
                    detail = flow.detail if flow else detail
                    flow = Flow(kind, source, target, title, detail, carries)
                    found[title, source, target] = flow

    for key, stream in plan.inference.items():
        clients = {boxes[name] for name in stream.clients}
        servers = {boxes[name] for name in stream.servers}
        size = size_text(sizes[f"inference/{key}"])
        detail = f"{stream.carrier} · {inference_text(stream)} · {size}"
        add("inference", stream.policy, clients, servers, detail, stream.policy)
    for name, policy in plan.policies.items():
        trainers = {boxes[w.name] for w in plan.workers if name in w.trains}
        # Actors follow only the version, to bound policy age; they read no weights.
        readers = {boxes[w.name] for w in plan.workers if name in w.follows and not w.requests}
        size = size_text(sizes[f"parameters/{policy.name}"])
        add("weights", name, trainers, readers, size, name)
    for key, sample in plan.samples.items():
        writers = {boxes[name] for name in sample.writers}
        readers = {boxes[name] for name in sample.readers}
        size = size_text(sizes[f"sample/{key}"])
        times = f"{sample.parts} x " if sample.parts > 1 else ""
        detail = f"{sample.carrier} · {times}{sample_text(sample)} · {times}{size}"
        add("sample", sample.stream, writers, readers, detail, key)
    return _merge(list(found.values()))


def _merge(flows: list[Flow]) -> list[Flow]:
    """Merges requests, or weights, of several policies between the same boxes into one arrow."""
    merged: dict[tuple[str, ...], Flow] = {}
    for flow in flows:
        key = (flow.kind, flow.source, flow.target)
        if flow.kind == "sample" or key not in merged:
            merged[(*key, flow.title) if flow.kind == "sample" else key] = flow
            continue
        known = merged[key]
        title = f"{known.title}, {flow.title.removeprefix(flow.kind).strip()}"
        first, more = known.detail.split(" · "), flow.detail.split(" · ")
        detail = f"{first[0]} · {first[-1]} + {more[-1]}" if len(first) > 1 else first[0]
        carries = (*known.carries, *flow.carries)
        merged[key] = dataclasses.replace(known, title=title, detail=detail, carries=carries)
    return list(merged.values())


def inner_flows(plan: Plan, process: str) -> list[Flow]:
    """The streams whose ends are all in one process."""
    members = {worker.name for worker in plan.workers if worker.process == process}
    found = []
    for s in plan.inference.values():
        if members.issuperset((*s.clients, *s.servers)):
            detail = f"inline · {inference_text(s)}"
            flow = Flow("inference", process, process, f"inference {s.policy}", detail, (s.policy,))
            found.append(flow)
    for key, sample in plan.samples.items():
        if members.issuperset((*sample.writers, *sample.readers)):
            detail = f"{sample.carrier} · {sample_text(sample)}"
            found.append(Flow("sample", process, process, f"sample {key}", detail, (key,)))
    return found
