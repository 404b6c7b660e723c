"""The dataflow of a run as the page draws it: where boxes and arrows are, and what they do now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from srl.launch.plan.flow_boxes import BOX_WIDTH, FRAME, FRAME_TOP, FlowBox, by_frame, lay_out
from srl.launch.plan.flows import Flow
from srl.launch.run.status import BoxStatus, FlowStatus, HostStatus, RunStatus, WorkerStatus

_TOP, _HEAD, _ROW, _INNER, _BOTTOM = 16, 34, 66, 42, 8
_RECENT_SECONDS = 5.0
"""A worker that was started again less long ago is shown as in trouble."""
_TROUBLE = ("to be started", "stopped", "cut off", "failed")
_MOODS = ("bad", "new", "good", "over")
"""How a worker does, the worst first."""
_SHOWN_WORKERS = 200
_SHOWN_WAITS = 2


@dataclass
class RunBox(FlowBox):
    """A box with the workers that run in it."""

    status: BoxStatus | None = None
    groups: dict[str, list[WorkerStatus]] = field(default_factory=dict)
    inner: list[FlowStatus] = field(default_factory=list)


def mood(worker: WorkerStatus, written: float) -> str:
    """good, new (it starts for the first time), bad (dead, stopped, or just started again) or
    over."""
    if worker.state == "finished":
        return "over"
    recent = worker.restarted and written - worker.restarted < _RECENT_SECONDS
    if worker.state in _TROUBLE or recent:
        return "bad" if worker.restarts or worker.state != "to be started" else "new"
    if worker.state == "starting" and not worker.busy:
        return "bad" if worker.restarts else "new"
    return "good"


def state_text(worker: WorkerStatus, written: float) -> str:
    """What a worker does, in words."""
    if mood(worker, written) == "bad" and worker.state not in _TROUBLE:
        return "started again"
    if worker.state == "starting" and worker.busy:
        return "running"
    return {"step": "stepping", "make": "making", "reset": "resetting"}.get(
        worker.state, worker.state
    )


def draw(status: RunStatus) -> dict[str, Any]:
    """The drawing of a status; empty if the status has no boxes."""
    boxes = _boxes(status)
    if not boxes:
        return {"width": 0, "height": 0, "frames": [], "boxes": [], "arrows": []}
    flows = [f for f in status.flows if f.source != f.target and {f.source, f.target} <= {*boxes}]
    drawing = lay_out(
        boxes, [Flow(f.kind, f.source, f.target, f.title, f.detail) for f in flows], _TOP
    )
    frames = []
    for column in range(3):
        for host, group in by_frame([box for box in boxes.values() if box.column == column]):
            if host:
                y = group[0].y - FRAME_TOP
                frames.append(
                    {
                        "text": host,
                        "x": group[0].x - FRAME,
                        "y": y,
                        "width": BOX_WIDTH + 2 * FRAME,
                        "height": group[-1].y + group[-1].height + FRAME - y,
                    }
                )
    return {
        "width": drawing.width,
        "height": drawing.height + _TOP,
        "frames": frames,
        "boxes": [_drawn_box(box, status.written) for box in boxes.values()],
        "arrows": [
            {"path": arrow.path, "x": arrow.label[0], "y": arrow.label[1], **_stream(flow)}
            for arrow, flow in zip(drawing.arrows, flows, strict=True)
        ],
    }


def _boxes(status: RunStatus) -> dict[str, RunBox]:
    """The boxes with workers that are to run, those of one frame after each other."""
    box_of = {process: box for box in status.boxes for process in box.processes}
    found: dict[str, RunBox] = {}
    inner: dict[str, list[FlowStatus]] = {}
    for flow in status.flows:
        if flow.source == flow.target:
            inner.setdefault(flow.source, []).append(flow)
    for worker in status.workers:
        home = box_of.get(worker.process)
        if home is None or not 0 <= home.column <= 2:
            continue
        box = found.get(home.key)
        if box is None:
            box = found[home.key] = RunBox(home.key, home.column, 0.0, host=home.frame)
            box.status, box.inner = home, inner.get(home.key, [])
        box.groups.setdefault(worker.group, []).append(worker)
    for box in found.values():
        box.height = _HEAD + _ROW * len(box.groups) + _INNER * len(box.inner) + _BOTTOM
    return {box.key: box for box in sorted(found.values(), key=lambda box: box.host)}


def _drawn_box(box: RunBox, written: float) -> dict[str, Any]:
    processes = {worker.process for group in box.groups.values() for worker in group}
    count = len(processes)
    return {
        "x": box.x,
        "y": box.y,
        "width": BOX_WIDTH,
        "height": box.height,
        "title": "1 process" if count == 1 else f"{count} processes",
        "stack": min(count - 1, 2),
        "rows": [
            {"y": _HEAD + _ROW * number, "height": _ROW - 6, **group_line(name, workers, written)}
            for number, (name, workers) in enumerate(box.groups.items())
        ],
        "inner": [
            {"y": _HEAD + _ROW * len(box.groups) + _INNER * number, **_stream(flow)}
            for number, flow in enumerate(box.inner)
        ],
    }


def group_line(name: str, workers: list[WorkerStatus], written: float) -> dict[str, Any]:
    """A group of workers in a few words and numbers."""
    moods = {worker.name: mood(worker, written) for worker in workers}
    worst = next(one for one in _MOODS if one in moods.values())
    states = Counter(state_text(w, written) for w in workers if moods[w.name] == worst)
    ((state, number),) = states.most_common(1)
    if worst == "good" and len(states) > 1:
        state, number = "running", sum(states.values())
    rates = Counter[str]()
    for worker in workers:
        rates[worker.unit] += worker.rate  # type: ignore[assignment]
    ((unit, rate),) = rates.most_common(1)
    return {
        "group": name,
        "count": len(workers),
        "mood": worst,
        "state": state if len(workers) == 1 else f"{number} {state}",
        "rate": rate,
        "unit": unit.replace("_", " "),
        "busy": sum(worker.busy for worker in workers) / len(workers),
        "waits": _waits(workers),
        "restarts": sum({worker.process: worker.restarts for worker in workers}.values()),
    }


def _waits(workers: list[WorkerStatus]) -> list[tuple[str, float]]:
    """The longest waits of some workers, with their mean share of the time."""
    waits: dict[str, float] = {}
    for worker in workers:
        for what, share in worker.waits.items():
            waits[what] = waits.get(what, 0.0) + share / len(workers)
    longest = sorted(waits.items(), key=lambda item: -item[1])[:_SHOWN_WAITS]
    return [(what, share) for what, share in longest if share >= 0.01]


def _stream(flow: FlowStatus) -> dict[str, Any]:
    return {
        "kind": flow.kind,
        "title": flow.title,
        "detail": flow.detail,
        "rate": flow.rate,
        "unit": flow.unit,
        "fill": flow.fill,
        "slots": flow.slots,
        "age": flow.age,
        "dropped": flow.dropped,
    }


def streams(status: RunStatus) -> list[dict[str, Any]]:
    """Every stream in numbers, once."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for flow in status.flows:
        found.setdefault((flow.kind, flow.title), _stream(flow))
    return list(found.values())


def worker_lines(status: RunStatus) -> list[dict[str, Any]]:
    """Every worker in numbers, those in trouble first; of thousands only the first ones."""
    moods = {worker.name: mood(worker, status.written) for worker in status.workers}
    chosen = sorted(status.workers, key=lambda worker: _MOODS.index(moods[worker.name]))
    return [
        {
            "name": worker.name,
            "process": worker.process,
            "host": worker.host,
            "pid": worker.pid,
            "mood": moods[worker.name],
            "state": state_text(worker, status.written),
            "rate": worker.rate,
            "unit": worker.unit.replace("_", " "),
            "busy": worker.busy,
            "waits": _waits([worker]),
            "restarts": worker.restarts,
            "env_failures": worker.env_failures,
        }
        for worker in chosen[:_SHOWN_WORKERS]
    ]


def host_lines(status: RunStatus) -> list[dict[str, Any]]:
    """Every host with what its workers do together."""
    by_host: dict[str, list[WorkerStatus]] = {}
    for worker in status.workers:
        by_host.setdefault(worker.host, []).append(worker)
    known = {host.name: host for host in status.hosts}
    return [
        _host_line(name, known.get(name), by_host.get(name, []))
        for name in dict.fromkeys((*known, *filter(None, by_host)))
    ]


def _host_line(
    name: str, host: HostStatus | None, workers: Iterable[WorkerStatus]
) -> dict[str, Any]:
    workers = list(workers)
    rates = Counter[str]()
    for worker in workers:
        rates[worker.unit.replace("_", " ")] += worker.rate  # type: ignore[assignment]
    restarts = {worker.process: worker.restarts for worker in workers}
    return {
        "name": name,
        "state": host.state if host is not None else "here",
        "mood": "good" if host is None or host.state == "here" else "bad",
        "machine": host.machine if host is not None else "",
        "processes": len(restarts),
        "rates": [[unit, rate] for unit, rate in rates.most_common(3)],
        "waits": _waits(workers),
        "restarts": sum(restarts.values()),
    }
