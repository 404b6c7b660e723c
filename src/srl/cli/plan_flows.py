"""The flows of a drawn plan: those between boxes, and those inside one box."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Literal

from srl.cli.plan_facts import inference_text, sample_text
from srl.launch.plan.memory import region_bytes, size_text
from srl.workers.wiring import Plan

Kind = Literal["inference", "sample", "weights"]


@dataclass(frozen=True)
class Flow:
    """One arrow: a stream, or a policy's weights."""

    kind: Kind
    source: str
    target: str
    title: str
    detail: str

    @property
    def both_ways(self) -> bool:
        """Whether data flows both ways: requests to the target, replies to the source."""
        return self.kind == "inference"


def find_flows(plan: Plan, box_of: dict[str, str]) -> list[Flow]:
    """The flows between boxes, each once. `box_of` maps a process to its box."""
    boxes = {worker.name: box_of[worker.process] for worker in plan.workers}
    sizes = region_bytes(plan)
    found: dict[tuple[str, str, str], Flow] = {}

    def add(kind: Kind, name: str, sources: set[str], targets: set[str], detail: str) -> None:
        for source in sorted(sources):
            for target in sorted(targets):
                if source != target:
                    flow = Flow(kind, source, target, f"{kind} {name}", detail)
                    found.setdefault((flow.title, source, target), flow)

    for key, stream in plan.inference.items():
        clients = {boxes[name] for name in stream.clients}
        servers = {boxes[name] for name in stream.servers}
        size = size_text(sizes[f"inference/{key}"])
        detail = f"{stream.carrier} · {inference_text(stream)} · {size}"
        add("inference", stream.policy, clients, servers, detail)
    for name, policy in plan.policies.items():
        trainers = {boxes[w.name] for w in plan.workers if name in w.trains}
        # Actors follow only the version, to bound policy age; they read no weights.
        readers = {boxes[w.name] for w in plan.workers if name in w.follows and not w.requests}
        add("weights", name, trainers, readers, size_text(sizes[f"parameters/{policy.name}"]))
    for key, sample in plan.samples.items():
        writers = {boxes[name] for name in sample.writers}
        readers = {boxes[name] for name in sample.readers}
        size = size_text(sizes[f"sample/{key}"])
        times = f"{sample.parts} x " if sample.parts > 1 else ""
        detail = f"{sample.carrier} · {times}{sample_text(sample)} · {times}{size}"
        add("sample", sample.stream, writers, readers, detail)
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
        merged[key] = dataclasses.replace(known, title=title, detail=detail)
    return list(merged.values())


def inner_flows(plan: Plan, process: str) -> list[Flow]:
    """The streams whose ends are all in one process."""
    members = {worker.name for worker in plan.workers if worker.process == process}
    found = [
        Flow(
            "inference", process, process, f"inference {s.policy}", f"inline · {inference_text(s)}"
        )
        for s in plan.inference.values()
        if members.issuperset((*s.clients, *s.servers))
    ]
    found += [
        Flow("sample", process, process, f"sample {key}", f"{s.carrier} · {sample_text(s)}")
        for key, s in plan.samples.items()
        if members.issuperset((*s.writers, *s.readers))
    ]
    return found
