"""The dataflow of a run as it is now: its boxes, and what flows between and inside them.

Streams are read without their locks, because the holder of a lock may be stopped.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

from srl.arena.arena import Arena
from srl.launch.cluster.node import HEAD_HOST
from srl.launch.plan.flows import (
    Flow,
    column_of,
    find_boxes,
    find_flows,
    find_frames,
    inner_flows,
)
from srl.launch.run.status import BoxStatus, FlowStatus, WorkerStatus
from srl.plan import Plan
from srl.services.metric_names import PolicyResult
from srl.streams.admission import open_queue
from srl.streams.inference import IDLE, InferenceMemory, slots_with
from srl.streams.sample_accounting import StreamAccount, read_account
from srl.streams.sample_queue import FREE, GRANTED, SampleQueue

RATE_SECONDS = 10.0
"""Rates of streams are means over this time: batches come together."""


class DataflowStatus:
    """Looks at the streams of a plan, again and again."""

    def __init__(
        self,
        plan: Plan,
        arena: Arena,
        accounts_elsewhere: Callable[[], Iterable[Mapping[str, StreamAccount]]],
    ) -> None:
        """`arena` holds the streams of this host."""
        self._plan = plan
        self._arena = arena
        self._accounts_elsewhere = accounts_elsewhere
        self._placed: dict[str, str] | None = None
        self._boxes: tuple[BoxStatus, ...] = ()
        self._flows: list[Flow] = []
        self._members: dict[str, set[str]] = {}
        """The processes of each box."""
        self._samples: dict[str, SampleQueue] = {}
        self._inference: dict[str, InferenceMemory] = {}
        self._totals: deque[tuple[float, dict[str, int]]] = deque()
        """Fragments of each sample stream and versions of each policy, at the last looks."""

    def look(
        self,
        where: Mapping[str, str],
        workers: tuple[WorkerStatus, ...],
        policies: Mapping[str, PolicyResult],
    ) -> tuple[tuple[BoxStatus, ...], tuple[FlowStatus, ...]]:
        """The boxes, and the status of every flow. `where` is the host of each process."""
        placed = {process: where.get(process, HEAD_HOST) for process in self._plan.processes}
        if placed != self._placed:
            self._placed = placed
            self._place(placed)
        accounts = {key: self._account(key) for key in self._plan.samples}
        totals = {f"sample {key}": kept.produced for key, kept in accounts.items()}
        totals |= {f"weights {name}": p.policy_version for name, p in policies.items()}
        now = time.monotonic()
        self._totals.append((now, totals))
        while len(self._totals) > 2 and self._totals[1][0] < now - RATE_SECONDS:
            self._totals.popleft()
        return self._boxes, tuple(
            self._status(flow, workers, policies, accounts) for flow in self._flows
        )

    def _place(self, placed: Mapping[str, str]) -> None:
        """Finds the boxes and flows for these hosts of the processes."""
        plan = self._plan
        frames = find_frames(plan, placed)
        box_of = find_boxes(plan, frames)
        self._members = {}
        for process, key in box_of.items():
            self._members.setdefault(key, set()).add(process)
        self._flows = find_flows(plan, box_of)
        boxes = []
        for key, processes in self._members.items():
            first = next(process for process in plan.processes if process in processes)
            members = plan.processes[first]
            boxes.append(
                BoxStatus(
                    key=key,
                    column=column_of(members),
                    frame=frames[first],
                    groups=tuple(dict.fromkeys(worker.group for worker in members)),
                    processes=tuple(p for p in plan.processes if p in processes),
                )
            )
            self._flows += [
                Flow(flow.kind, key, key, flow.title, flow.detail, flow.carries)
                for flow in inner_flows(plan, first)
            ]
        self._boxes = tuple(sorted(boxes, key=lambda box: box.frame))

    def _account(self, key: str) -> StreamAccount:
        """A stream's account over all hosts."""
        here = read_account(self._sample(key))
        others = [kept[key] for kept in self._accounts_elsewhere() if key in kept]
        dropped = {
            reason: count + sum(other.dropped.get(reason, 0) for other in others)
            for reason, count in here.dropped.items()
        }
        produced = here.produced + sum(other.produced for other in others)
        return StreamAccount(produced, here.consumed, dropped, here.in_flight)

    def _sample(self, key: str) -> SampleQueue:
        if key not in self._samples:
            self._samples[key] = open_queue(self._plan.samples[key].spec, self._arena).queue
        return self._samples[key]

    def _status(
        self,
        flow: Flow,
        workers: tuple[WorkerStatus, ...],
        policies: Mapping[str, PolicyResult],
        accounts: Mapping[str, StreamAccount],
    ) -> FlowStatus:
        ends = {
            "kind": flow.kind,
            "source": flow.source,
            "target": flow.target,
            "title": flow.title,
            "detail": flow.detail,
        }
        if flow.kind == "sample":
            streams = [self._plan.samples[key] for key in flow.carries]
            slots, used = 0, 0
            for key in flow.carries:
                status = self._sample(key).status
                slots += len(status)
                used += int(((status != FREE) & (status != GRANTED)).sum())
            return FlowStatus(
                **ends,  # type: ignore[arg-type]
                rate=self._rate([f"sample {key}" for key in flow.carries]),
                unit="tables" if streams[0].has_tables else "fragments",
                fill=used / slots,
                slots=slots,
                age=self._age(flow, policies),
                dropped=sum(sum(accounts[key].dropped.values()) for key in flow.carries),
            )
        if flow.kind == "weights":
            rate = self._rate([f"weights {name}" for name in flow.carries])
            return FlowStatus(**ends, rate=rate, unit="versions")  # type: ignore[arg-type]
        answering = self._members[flow.target]
        rate = sum(w.rate for w in workers if w.process in answering and w.unit == "rows")
        used, slots = self._requests(flow)
        return FlowStatus(
            **ends,  # type: ignore[arg-type]
            rate=rate,
            unit="rows",
            fill=used / slots if slots else None,
            slots=slots,
        )

    def _requests(self, flow: Flow) -> tuple[int, int]:
        """Requests that wait or are being answered, and their slots; (0, 0) for streams inside of
        other processes or on other hosts."""
        used = slots = 0
        for key, stream in self._plan.inference.items():
            if stream.policy not in flow.carries or stream.carrier == "inline":
                continue
            if key not in self._inference:
                self._inference[key] = InferenceMemory(stream.spec, self._arena)
            memory = self._inference[key]
            slots += len(memory.status)
            used += len(memory.status) - len(slots_with(memory.status, IDLE))
        return used, slots

    def _age(self, flow: Flow, policies: Mapping[str, PolicyResult]) -> float | None:
        """The policy age of the last update from this stream, if trainers read it."""
        readers = {name for key in flow.carries for name in self._plan.samples[key].readers}
        for worker in self._plan.workers:
            if worker.trains and worker.name in readers:
                return policies[worker.trains[0]].policy_age_mean
        return None

    def _rate(self, keys: list[str]) -> float:
        (begun, before), (now, after) = self._totals[0], self._totals[-1]
        if now <= begun:
            return 0.0
        return sum(max(0, after.get(key, 0) - before.get(key, 0)) for key in keys) / (now - begun)
