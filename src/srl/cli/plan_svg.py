"""Draws a plan: a box for each kind of process, an arrow for each stream between processes, and a
frame around the boxes of one host where there are several hosts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from srl.launch.plan.facts import envs_text, num_envs, num_parameters
from srl.launch.plan.flow_boxes import (
    BOX_WIDTH,
    FRAME,
    FRAME_TOP,
    MARGIN,
    Arrow,
    FlowBox,
    by_frame,
    lay_out,
)
from srl.launch.plan.flows import (
    Flow,
    column_of,
    find_boxes,
    find_flows,
    find_frames,
    inner_flows,
)
from srl.launch.plan.memory import shared_bytes, size_text
from srl.plan import Plan, WorkerPlan

HEAD, ROW, TITLE = 40, 40, 74
COLOURS = {"sample": "#0072B2", "inference": "#009E73", "weights": "#D55E00"}
_TINTS = {"actor": "#E3F0F9", "policy": "#E2F4EE", "trainer": "#FBE9DD", "evaluator": "#F5E8F0"}
_OTHER_TINT = "#EFEFEF"
_STYLE = (
    "text{font-family:ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#222}"
    ".t{font-size:18px;font-weight:600}.h{font-size:14px;font-weight:600}"
    ".b{font-size:13px}.s{font-size:11.5px;fill:#666}.m{text-anchor:middle}.e{text-anchor:end}"
)


@dataclass
class _Box(FlowBox):
    """The box of a kind of process."""

    processes: list[str] = field(default_factory=list)
    workers: list[WorkerPlan] = field(default_factory=list)

    def holds_the_same(self, other: _Box) -> bool:
        """Whether both hold the same groups of workers (on different hosts)."""
        return {w.group for w in self.workers} == {w.group for w in other.workers}


def draw_plan(plan: Plan, where: Mapping[str, str]) -> str:
    """The drawing as SVG text; `where` is the host of each process."""
    frames = find_frames(plan, where)
    boxes = _make_boxes(plan, frames)
    flows = find_flows(plan, find_boxes(plan, frames))
    # Weights between trainers on several hosts are not drawn.
    flows = [flow for flow in flows if not boxes[flow.source].holds_the_same(boxes[flow.target])]
    drawing = lay_out(boxes, flows, TITLE)
    width, height = max(drawing.width, 560.0), drawing.height + 56
    parts = [_draw_title(plan)]
    for column in range(3):
        framed = by_frame([box for box in boxes.values() if box.column == column])
        parts += [_draw_frame(host, group) for host, group in framed if host]
    parts += [_draw_arrow(arrow) for arrow in drawing.arrows]
    parts += [_draw_label(arrow.flow, *arrow.label) for arrow in drawing.arrows]
    parts += [_draw_box(plan, box) for box in boxes.values()]
    parts.append(_draw_legend(height, {flow.kind for flow in flows}))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">\n<style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="white"/>\n<defs>{_markers()}</defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _make_boxes(plan: Plan, frames: Mapping[str, str]) -> dict[str, _Box]:
    """The boxes, those of one frame after each other."""
    found: dict[str, _Box] = {}
    keys = find_boxes(plan, frames)
    for process in sorted(plan.processes, key=lambda process: frames[process]):
        workers, key = plan.processes[process], keys[process]
        if key not in found:
            height = HEAD + ROW * (len(workers) + len(inner_flows(plan, process))) + 6
            found[key] = _Box(
                key, column_of(workers), height, host=frames[process], workers=workers
            )
        found[key].processes.append(process)
    return found


# -- arrows ----------------------------------------------------------------------------------------


def _draw_arrow(arrow: Arrow) -> str:
    flow = arrow.flow
    dash = ' stroke-dasharray="6 4"' if flow.kind == "weights" else ""
    back = f' marker-start="url(#{flow.kind}-back)"' if flow.both_ways else ""
    return (
        f'<path d="{arrow.path}" fill="none" stroke="{COLOURS[flow.kind]}" stroke-width="2"{dash} '
        f'marker-end="url(#{flow.kind})"{back}/>'
    )


def _draw_label(flow: Flow, x: float, y: float) -> str:
    width = max(len(flow.title) * 7.0, len(flow.detail) * 6.0) + 12
    return (
        f'<rect x="{x - width / 2:.1f}" y="{y - 18:.1f}" width="{width:.1f}" height="36" rx="5" '
        'fill="white" fill-opacity="0.92"/>'
        f'<text class="b m" x="{x:.1f}" y="{y - 3:.1f}" style="fill:{COLOURS[flow.kind]}">'
        f"{escape(flow.title)}</text>"
        f'<text class="s m" x="{x:.1f}" y="{y + 12:.1f}">{escape(flow.detail)}</text>'
    )


# -- hosts and boxes -------------------------------------------------------------------------------


def _draw_frame(host: str, boxes: list[_Box]) -> str:
    x, y = boxes[0].x - FRAME, boxes[0].y - FRAME_TOP
    height = boxes[-1].y + boxes[-1].height + FRAME - y
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{BOX_WIDTH + 2 * FRAME}" height="{height:.1f}" '
        'rx="14" fill="#F3F5F9" stroke="#888" stroke-dasharray="3 3"/>'
        f'<text class="h" x="{x + FRAME:.1f}" y="{y + 19:.1f}">{escape(host)}</text>'
    )


def _draw_box(plan: Plan, box: _Box) -> str:
    count = len(box.processes)
    stack = "".join(
        f'<rect x="{box.x + 5 * n:.1f}" y="{box.y - 6 * n:.1f}" width="{BOX_WIDTH - 10 * n}" '
        f'height="{box.height / 2:.1f}" rx="10" fill="white" stroke="#999"/>'
        for n in range(min(count - 1, 2), 0, -1)
    )
    names = box.processes[0] if count == 1 else f"{box.processes[0]} … {box.processes[-1]}"
    tail = "process" if count == 1 else f"{count} processes"
    parts = [
        stack,
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{BOX_WIDTH}" height="{box.height:.1f}" '
        'rx="10" fill="#FAFAFA" stroke="#555" stroke-width="1.3"/>',
        f'<text class="h" x="{box.x + 14:.1f}" y="{box.y + 25:.1f}">{escape(names)}</text>',
        f'<text class="s e" x="{box.x + BOX_WIDTH - 14:.1f}" y="{box.y + 25:.1f}">{tail}</text>',
    ]
    y = box.y + HEAD
    for worker in box.workers:
        tint = _TINTS.get(_family(worker), _OTHER_TINT)
        name = worker.name if count == 1 else worker.group
        parts.append(_draw_row(box.x, y, tint, name, _worker_detail(plan, worker)))
        y += ROW
    for flow in inner_flows(plan, box.processes[0]):
        parts.append(_draw_row(box.x, y, "none", flow.title, flow.detail, COLOURS[flow.kind]))
        y += ROW
    return "\n".join(part for part in parts if part)


def _draw_row(x: float, y: float, tint: str, title: str, detail: str, colour: str = "#222") -> str:
    return (
        f'<rect x="{x + 8:.1f}" y="{y:.1f}" width="{BOX_WIDTH - 16}" height="{ROW - 4}" rx="6" '
        f'fill="{tint}"/>'
        f'<text class="b" x="{x + 16:.1f}" y="{y + 15:.1f}" style="fill:{colour}">'
        f"{escape(title)}</text>"
        f'<text class="s" x="{x + 16:.1f}" y="{y + 29:.1f}">{escape(detail)}</text>'
    )


def _family(worker: WorkerPlan) -> str:
    """`actor`, `policy`, ... for the kinds of worker that SRL has; empty for others."""
    module = worker.kind.partition(":")[0]
    return module.rpartition(".")[2] if module.startswith("srl.workers.") else ""


def _worker_detail(plan: Plan, worker: WorkerPlan) -> str:
    if worker.trains:
        algorithm = plan.policies[worker.trains[0]].algorithm_class.rpartition(":")[2]
        return f"trains {', '.join(worker.trains)} with {algorithm}"
    if worker.requests and worker.writes:
        return f"steps {envs_text(plan, worker.group)}"
    if worker.serves:
        return f"answers for {', '.join(worker.serves)}"
    if worker.reads or worker.writes:
        return f"{', '.join(worker.reads)} → {', '.join(worker.writes)}"
    return f"plays {', '.join(worker.follows)}"


# -- title and legend ------------------------------------------------------------------------------


def _draw_title(plan: Plan) -> str:
    experiment = plan.experiment
    total = shared_bytes(plan)
    memory = f"{size_text(total)} shared memory" if total else "one thread"
    parameters = sum(num_parameters(policy) for policy in plan.policies.values())
    detail = (
        f"layout {experiment['layout']} · {num_envs(plan)} environments · "
        f"{parameters:,} parameters · {plan.device} · {memory}"
    )
    name = experiment["name"] or experiment["env"]["id"]
    return (
        f'<text class="t" x="{MARGIN}" y="32">{escape(name)}</text>'
        f'<text class="s" x="{MARGIN}" y="51">{escape(detail)}</text>'
    )


def _draw_legend(height: float, kinds: set[str]) -> str:
    texts = {
        "inference": "requests and replies",
        "sample": "fragments of trajectories",
        "weights": "newer weights",
    }
    parts, x, y = [], float(MARGIN), height - 22
    for kind, text in texts.items():
        if kind in kinds:
            dash = ' stroke-dasharray="6 4"' if kind == "weights" else ""
            parts.append(
                f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{x + 30:.1f}" y2="{y:.1f}" '
                f'stroke="{COLOURS[kind]}" stroke-width="2"{dash}/>'
                f'<text class="s" x="{x + 37:.1f}" y="{y + 4:.1f}">{text}</text>'
            )
            x += 70 + 6.2 * len(text)
    return "\n".join(parts)


def _markers() -> str:
    """Arrow heads for both ends (not every viewer knows `auto-start-reverse`)."""
    heads = {"": ("M0 1 L10 5 L0 9 z", 9), "-back": ("M10 1 L0 5 L10 9 z", 1)}
    return "\n".join(
        f'<marker id="{kind}{end}" viewBox="0 0 10 10" refX="{tip}" refY="5" markerWidth="7" '
        f'markerHeight="7" orient="auto"><path d="{path}" fill="{colour}"/></marker>'
        for kind, colour in COLOURS.items()
        for end, (path, tip) in heads.items()
    )
