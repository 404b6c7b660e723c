"""Draws a plan: a box for each kind of process, an arrow for each stream between processes, and a
frame around the boxes of one host where there are several hosts.

The boxes stand in three columns: processes that step environments, processes that answer requests
or work in between, and processes that train. An arrow that crosses the middle column has a free
passage between the boxes there, so that no arrow crosses a box.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from xml.sax.saxutils import escape

from srl.cli.plan_facts import envs_text, num_parameters
from srl.cli.plan_flows import Flow, find_flows, inner_flows
from srl.launch.cluster.node import HEAD_HOST
from srl.launch.plan.memory import shared_bytes, size_text
from srl.workers.wiring import Plan, WorkerPlan

BOX_WIDTH, GAP_X, GAP_Y, MARGIN = 250, 190, 26, 32
HEAD, ROW, PASSAGE, LABEL, TITLE = 40, 40, 50, 40, 74
FRAME_TOP, FRAME = 38, 12
"""Margin between the frame of a host and its boxes: above, where its name is, and elsewhere."""
COLOURS = {"sample": "#0072B2", "inference": "#009E73", "weights": "#D55E00"}
_TINTS = {"actor": "#E3F0F9", "policy": "#E2F4EE", "trainer": "#FBE9DD", "evaluator": "#F5E8F0"}
_OTHER_TINT = "#EFEFEF"
_STYLE = (
    "text{font-family:ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#222}"
    ".t{font-size:18px;font-weight:600}.h{font-size:14px;font-weight:600}"
    ".b{font-size:13px}.s{font-size:11.5px;fill:#666}.m{text-anchor:middle}.e{text-anchor:end}"
)


@dataclass
class _Box:
    """The box of a kind of process, or the passage of an arrow through the middle column."""

    key: str
    column: int
    height: float
    x: float = 0.0
    y: float = 0.0
    processes: list[str] = field(default_factory=list)
    workers: list[WorkerPlan] = field(default_factory=list)
    host: str = ""
    """Text about its host or hosts; empty where there is only one host."""
    flow: Flow | None = None

    def holds_the_same(self, other: _Box) -> bool:
        """Whether both hold the same groups of workers (on different hosts)."""
        return {w.group for w in self.workers} == {w.group for w in other.workers}

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def draw_plan(plan: Plan, where: Mapping[str, str]) -> str:
    """The drawing as SVG text; `where` is the host of each process."""
    boxes = _make_boxes(plan, _host_names(plan, where))
    flows = find_flows(plan, {p: box.key for box in boxes.values() for p in box.processes})
    # Weights between trainers on several hosts are not drawn.
    flows = [flow for flow in flows if not boxes[flow.source].holds_the_same(boxes[flow.target])]
    columns: list[list[_Box]] = [[], [], []]
    for box in boxes.values():
        columns[box.column].append(box)
    passages: dict[int, _Box] = {}
    for flow in flows:
        if abs(boxes[flow.source].column - boxes[flow.target].column) == 2:
            passage = _Box(f"passage-{len(passages)}", 1, PASSAGE, flow=flow)
            passages[id(flow)] = passage
            columns[1].append(passage)
    columns = [column for column in columns if column]
    _fit_heights(flows, boxes)
    size = _set_positions(columns)
    parts = [_draw_title(plan, size[0])]
    parts += [
        _draw_frame(host, group) for column in columns for host, group in _by_frame(column) if host
    ]
    parts += _draw_arrows(flows, boxes, passages)
    parts += [_draw_box(plan, box) for box in boxes.values()]
    parts.append(_draw_legend(size, {flow.kind for flow in flows}))
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">\n<style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="white"/>\n<defs>{_markers()}</defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _host_names(plan: Plan, where: Mapping[str, str]) -> dict[str, str]:
    """The name of the frame around each process. Hosts that hold the same groups share a frame."""
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


def _make_boxes(plan: Plan, hosts: dict[str, str]) -> dict[str, _Box]:
    """The boxes. One box has all processes with the same groups of workers in the same frame."""
    found: dict[str, _Box] = {}
    for process in sorted(plan.processes, key=lambda process: hosts[process]):
        workers = plan.processes[process]
        key = "+".join((*sorted({worker.group for worker in workers}), hosts[process]))
        if key not in found:
            rows, column = len(workers) + len(inner_flows(plan, process)), _column(workers)
            found[key] = _Box(
                key, column, HEAD + ROW * rows + 6, workers=workers, host=hosts[process]
            )
        found[key].processes.append(process)
    return found


def _column(workers: list[WorkerPlan]) -> int:
    if any(worker.requests for worker in workers):
        return 0
    return 2 if any(worker.trains for worker in workers) else 1


def _fit_heights(flows: list[Flow], boxes: dict[str, _Box]) -> None:
    """Makes boxes high enough for the labels of the arrows at each side."""
    sides: Counter[tuple[str, bool]] = Counter()
    for flow in flows:
        for here, there in ((flow.source, flow.target), (flow.target, flow.source)):
            sides[here, boxes[there].column > boxes[here].column] += 1
    for (key, _), count in sides.items():
        boxes[key].height = max(boxes[key].height, LABEL * count + 12)


def _set_positions(columns: list[list[_Box]]) -> tuple[float, float]:
    """Sets the position of every box; returns the size of the drawing."""
    tallest = max(_stack_boxes(column, 0.0) for column in columns)
    for number, column in enumerate(columns):
        _stack_boxes(column, TITLE + (tallest - _stack_boxes(column, 0.0)) / 2)
        for box in column:
            box.x = MARGIN + number * (BOX_WIDTH + GAP_X)
    width = 2 * MARGIN + len(columns) * BOX_WIDTH + (len(columns) - 1) * GAP_X
    return max(width, 560.0), TITLE + tallest + 56


def _by_frame(column: list[_Box]) -> list[tuple[str, list[_Box]]]:
    """The boxes of a column, grouped by frame."""
    return [(host, list(boxes)) for host, boxes in groupby(column, key=lambda box: box.host)]


def _stack_boxes(column: list[_Box], top: float) -> float:
    """Puts the boxes of a column below each other, from `top` on; returns their total height."""
    y = top
    for host, boxes in _by_frame(column):
        y += FRAME_TOP if host else 0
        for box in boxes:
            box.y = y
            y += box.height + GAP_Y
        y += FRAME if host else 0
    return y - GAP_Y - top


# -- arrows ----------------------------------------------------------------------------------------


def _draw_arrows(flows: list[Flow], boxes: dict[str, _Box], passages: dict[int, _Box]) -> list[str]:
    """Draws curves between boxes; the curves at one side of a box are spread over that side."""
    ends: dict[tuple[str, bool], list[tuple[float, int]]] = {}
    for number, flow in enumerate(flows):
        for here, there in ((flow.source, flow.target), (flow.target, flow.source)):
            right = boxes[there].x > boxes[here].x
            passage = passages.get(id(flow))
            other = (passage or boxes[there]).middle
            ends.setdefault((here, right), []).append((other, number))
    ports: dict[tuple[str, int], float] = {}
    for (key, _), found in ends.items():
        box = boxes[key]
        for position, (_, number) in enumerate(sorted(found)):
            ports[key, number] = box.y + box.height * (position + 1) / (len(found) + 1)
    paths, labels = [], []
    for number, flow in enumerate(flows):
        a, b = boxes[flow.source], boxes[flow.target]
        rightwards = b.x > a.x
        start = (a.x + BOX_WIDTH if rightwards else a.x, ports[a.key, number])
        end = (b.x if rightwards else b.x + BOX_WIDTH, ports[b.key, number])
        path, label = _draw_arrow(flow, start, end, passages.get(id(flow)))
        paths.append(path)
        labels.append(label)
    _separate(labels)
    return paths + [_draw_label(flow, *at) for flow, at in zip(flows, labels, strict=True)]


def _separate(labels: list[list[float]]) -> None:
    """Moves labels in the same gap between columns apart, so that they do not overlap."""
    for _ in range(20):
        for a in labels:
            for b in labels:
                near = LABEL - abs(a[1] - b[1])
                if a is not b and a[0] == b[0] and near > 0.1:
                    up, down = (a, b) if a[1] <= b[1] else (b, a)
                    up[1] -= near / 2
                    down[1] += near / 2


def _draw_arrow(
    flow: Flow, start: tuple[float, float], end: tuple[float, float], passage: _Box | None
) -> tuple[str, list[float]]:
    """The drawn curve, and the middle of its label."""
    (x1, y1), (x2, y2) = start, end
    if passage is None:
        path, label = _curve(x1, y1, x2, y2, first=True), [(x1 + x2) / 2, (y1 + y2) / 2]
    else:
        near, far = (
            (passage.x, passage.x + BOX_WIDTH) if x2 > x1 else (passage.x + BOX_WIDTH, passage.x)
        )
        path = (
            _curve(x1, y1, near, passage.middle, first=True)
            + f" L {far:.1f} {passage.middle:.1f}"
            + _curve(far, passage.middle, x2, y2, first=False)
        )
        label = [passage.x + BOX_WIDTH / 2, passage.middle]
    dash = ' stroke-dasharray="6 4"' if flow.kind == "weights" else ""
    back = f' marker-start="url(#{flow.kind}-back)"' if flow.both_ways else ""
    drawn = (
        f'<path d="{path}" fill="none" stroke="{COLOURS[flow.kind]}" stroke-width="2"{dash} '
        f'marker-end="url(#{flow.kind})"{back}/>'
    )
    return drawn, label


def _curve(x1: float, y1: float, x2: float, y2: float, *, first: bool) -> str:
    """A curve with short straight ends, so that every viewer turns its arrow heads correctly."""
    bend, stub = (x2 - x1) / 2, 10 if x2 > x1 else -10
    move = f"M {x1:.1f} {y1:.1f}" if first else ""
    return (
        f"{move} L {x1 + stub:.1f} {y1:.1f} C {x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} "
        f"{x2 - stub:.1f} {y2:.1f} L {x2:.1f} {y2:.1f}"
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
        return f"steps {envs_text(plan)}"
    if worker.serves:
        return f"answers for {', '.join(worker.serves)}"
    if worker.reads or worker.writes:
        return f"{', '.join(worker.reads)} → {', '.join(worker.writes)}"
    return f"plays {', '.join(worker.follows)}"


# -- title and legend ------------------------------------------------------------------------------


def _draw_title(plan: Plan, width: float) -> str:
    experiment = plan.experiment
    total = shared_bytes(plan)
    memory = f"{size_text(total)} shared memory" if total else "one thread"
    parameters = sum(num_parameters(policy) for policy in plan.policies.values())
    detail = (
        f"layout {experiment['layout']} · {experiment['actor']['envs']} environments · "
        f"{parameters:,} parameters · {plan.device} · {memory}"
    )
    name = experiment["name"] or experiment["env"]["id"]
    return (
        f'<text class="t" x="{MARGIN}" y="32">{escape(name)}</text>'
        f'<text class="s" x="{MARGIN}" y="51">{escape(detail)}</text>'
    )


def _draw_legend(size: tuple[float, float], kinds: set[str]) -> str:
    texts = {
        "inference": "requests and replies",
        "sample": "fragments of trajectories",
        "weights": "newer weights",
    }
    parts, x, y = [], float(MARGIN), size[1] - 22
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
