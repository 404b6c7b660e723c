"""A plan as a drawing: a box for each kind of process, an arrow for each stream between them, and a
frame around what is on one host where there are several.

Three columns: who steps environments, who answers or works in between, who trains. Streams that
pass a column get a lane of their own in it, so that no arrow crosses a box.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import groupby
from xml.sax.saxutils import escape

from srl.cli.plan_facts import envs_text, num_parameters, shared_bytes, size_text
from srl.cli.plan_flows import Flow, find_flows, inner_flows
from srl.launch.places import HOME
from srl.workers.wiring import Plan, WorkerPlan

BOX_WIDTH, GAP_X, GAP_Y, MARGIN = 250, 190, 26, 32
HEAD, ROW, LANE, LABEL, TITLE = 40, 40, 50, 40, 74
FRAME_TOP, FRAME = 38, 12
"""What a host's frame is wider than its boxes: above, where its name is, and elsewhere."""
COLOURS = {"sample": "#0072B2", "inference": "#009E73", "weights": "#D55E00"}
_TINTS = {"actor": "#E3F0F9", "policy": "#E2F4EE", "trainer": "#FBE9DD", "evaluator": "#F5E8F0"}
_OTHER_TINT = "#EFEFEF"
_STYLE = (
    "text{font-family:ui-sans-serif,system-ui,'Segoe UI',Helvetica,Arial,sans-serif;fill:#222}"
    ".t{font-size:18px;font-weight:600}.h{font-size:14px;font-weight:600}"
    ".b{font-size:13px}.s{font-size:11.5px;fill:#666}.m{text-anchor:middle}.e{text-anchor:end}"
)


@dataclass
class _Node:
    """A kind of process, or a lane where a stream passes a column."""

    key: str
    column: int
    height: float
    x: float = 0.0
    y: float = 0.0
    processes: list[str] = field(default_factory=list)
    workers: list[WorkerPlan] = field(default_factory=list)
    host: str = ""
    """Where it is, in words; empty where there is only one host."""
    flow: Flow | None = None

    def is_like(self, other: _Node) -> bool:
        """Whether both hold the same groups of workers, on different hosts."""
        return {w.group for w in self.workers} == {w.group for w in other.workers}

    @property
    def middle(self) -> float:
        return self.y + self.height / 2


def draw_plan(plan: Plan, where: Mapping[str, str]) -> str:
    """The drawing as SVG text; `where` is the host of each process."""
    nodes = _nodes(plan, _host_names(plan, where))
    flows = find_flows(plan, {p: node.key for node in nodes.values() for p in node.processes})
    # That trainers on several hosts hear of each other's weights is left out.
    flows = [flow for flow in flows if not nodes[flow.source].is_like(nodes[flow.target])]
    columns: list[list[_Node]] = [[], [], []]
    for node in nodes.values():
        columns[node.column].append(node)
    lanes: dict[int, _Node] = {}
    for flow in flows:
        if abs(nodes[flow.source].column - nodes[flow.target].column) == 2:
            lane = _Node(f"lane-{len(lanes)}", 1, LANE, flow=flow)
            lanes[id(flow)] = lane
            columns[1].append(lane)
    columns = [column for column in columns if column]
    _make_room(flows, nodes)
    size = _place(columns)
    parts = [_title(plan, size[0])]
    parts += [_frame(host, boxes) for column in columns for host, boxes in _runs(column) if host]
    parts += _arrows(flows, nodes, lanes)
    parts += [_box(plan, node) for node in nodes.values()]
    parts.append(_legend(size, {flow.kind for flow in flows}))
    width, height = size
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" role="img">\n<style>{_STYLE}</style>\n'
        f'<rect width="100%" height="100%" fill="white"/>\n<defs>{_markers()}</defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _host_names(plan: Plan, where: Mapping[str, str]) -> dict[str, str]:
    """What the frame around each process says. Hosts that hold the same groups share one."""
    holds: dict[str, set[str]] = {}
    for process, workers in plan.processes.items():
        holds.setdefault(where[process], set()).update(worker.group for worker in workers)
    if len(holds) == 1:
        return dict.fromkeys(plan.processes, "")
    alike: dict[tuple[bool, tuple[str, ...]], list[str]] = {}
    for host, groups in holds.items():
        alike.setdefault((host == HOME, tuple(sorted(groups))), []).append(host)
    names = {host: _together(hosts) for hosts in alike.values() for host in hosts}
    return {process: names[where[process]] for process in plan.processes}


def _together(hosts: list[str]) -> str:
    if len(hosts) == 1:
        return f"host {hosts[0]}"
    if len(hosts) == 2:
        return f"hosts {hosts[0]}, {hosts[1]}"
    return f"hosts {hosts[0]} … {hosts[-1]} ({len(hosts)})"


def _nodes(plan: Plan, hosts: dict[str, str]) -> dict[str, _Node]:
    """Processes that hold the same groups of workers, on hosts that do, are one box."""
    found: dict[str, _Node] = {}
    for process in sorted(plan.processes, key=lambda process: hosts[process]):
        workers = plan.processes[process]
        key = "+".join((*sorted({worker.group for worker in workers}), hosts[process]))
        if key not in found:
            rows, column = len(workers) + len(inner_flows(plan, process)), _column(workers)
            found[key] = _Node(
                key, column, HEAD + ROW * rows + 6, workers=workers, host=hosts[process]
            )
        found[key].processes.append(process)
    return found


def _column(workers: list[WorkerPlan]) -> int:
    if any(worker.asks for worker in workers):
        return 0
    return 2 if any(worker.trains for worker in workers) else 1


def _make_room(flows: list[Flow], nodes: dict[str, _Node]) -> None:
    """Boxes grow until the arrows at each of their sides have room for their labels."""
    sides: Counter[tuple[str, bool]] = Counter()
    for flow in flows:
        for here, there in ((flow.source, flow.target), (flow.target, flow.source)):
            sides[here, nodes[there].column > nodes[here].column] += 1
    for (key, _), count in sides.items():
        nodes[key].height = max(nodes[key].height, LABEL * count + 12)


def _place(columns: list[list[_Node]]) -> tuple[float, float]:
    """Puts every box in its place; returns the size of the drawing."""
    tallest = max(_stack(column, 0.0) for column in columns)
    for number, column in enumerate(columns):
        _stack(column, TITLE + (tallest - _stack(column, 0.0)) / 2)
        for node in column:
            node.x = MARGIN + number * (BOX_WIDTH + GAP_X)
    width = 2 * MARGIN + len(columns) * BOX_WIDTH + (len(columns) - 1) * GAP_X
    return max(width, 560.0), TITLE + tallest + 56


def _runs(column: list[_Node]) -> list[tuple[str, list[_Node]]]:
    """The boxes of a column, host by host."""
    return [(host, list(boxes)) for host, boxes in groupby(column, key=lambda node: node.host)]


def _stack(column: list[_Node], top: float) -> float:
    """Puts the boxes of a column below each other, from `top` on; returns the height of all."""
    y = top
    for host, boxes in _runs(column):
        y += FRAME_TOP if host else 0
        for node in boxes:
            node.y = y
            y += node.height + GAP_Y
        y += FRAME if host else 0
    return y - GAP_Y - top


# -- arrows ----------------------------------------------------------------------------------------


def _arrows(flows: list[Flow], nodes: dict[str, _Node], lanes: dict[int, _Node]) -> list[str]:
    """Curves between boxes; those that meet at one side are spread over it."""
    ends: dict[tuple[str, bool], list[tuple[float, int]]] = {}
    for number, flow in enumerate(flows):
        for here, there in ((flow.source, flow.target), (flow.target, flow.source)):
            right = nodes[there].x > nodes[here].x
            lane = lanes.get(id(flow))
            other = (lane or nodes[there]).middle
            ends.setdefault((here, right), []).append((other, number))
    ports: dict[tuple[str, int], float] = {}
    for (key, _), found in ends.items():
        node = nodes[key]
        for place, (_, number) in enumerate(sorted(found)):
            ports[key, number] = node.y + node.height * (place + 1) / (len(found) + 1)
    paths, labels = [], []
    for number, flow in enumerate(flows):
        a, b = nodes[flow.source], nodes[flow.target]
        rightwards = b.x > a.x
        start = (a.x + BOX_WIDTH if rightwards else a.x, ports[a.key, number])
        end = (b.x if rightwards else b.x + BOX_WIDTH, ports[b.key, number])
        path, label = _arrow(flow, start, end, lanes.get(id(flow)))
        paths.append(path)
        labels.append(label)
    _push_apart(labels)
    return paths + [_label(flow, *at) for flow, at in zip(flows, labels, strict=True)]


def _push_apart(labels: list[list[float]]) -> None:
    """Labels in the same gap between columns keep their distance."""
    for _ in range(20):
        for a in labels:
            for b in labels:
                near = LABEL - abs(a[1] - b[1])
                if a is not b and a[0] == b[0] and near > 0.1:
                    up, down = (a, b) if a[1] <= b[1] else (b, a)
                    up[1] -= near / 2
                    down[1] += near / 2


def _arrow(
    flow: Flow, start: tuple[float, float], end: tuple[float, float], lane: _Node | None
) -> tuple[str, list[float]]:
    """The curve, and the middle of its label."""
    (x1, y1), (x2, y2) = start, end
    if lane is None:
        path, label = _curve(x1, y1, x2, y2, first=True), [(x1 + x2) / 2, (y1 + y2) / 2]
    else:
        near, far = (lane.x, lane.x + BOX_WIDTH) if x2 > x1 else (lane.x + BOX_WIDTH, lane.x)
        path = (
            _curve(x1, y1, near, lane.middle, first=True)
            + f" L {far:.1f} {lane.middle:.1f}"
            + _curve(far, lane.middle, x2, y2, first=False)
        )
        label = [lane.x + BOX_WIDTH / 2, lane.middle]
    dash = ' stroke-dasharray="6 4"' if flow.kind == "weights" else ""
    back = f' marker-start="url(#{flow.kind}-back)"' if flow.both_ways else ""
    drawn = (
        f'<path d="{path}" fill="none" stroke="{COLOURS[flow.kind]}" stroke-width="2"{dash} '
        f'marker-end="url(#{flow.kind})"{back}/>'
    )
    return drawn, label


def _curve(x1: float, y1: float, x2: float, y2: float, *, first: bool) -> str:
    """A curve with short straight ends, from which every viewer tells how to turn arrow heads."""
    bend, stub = (x2 - x1) / 2, 10 if x2 > x1 else -10
    move = f"M {x1:.1f} {y1:.1f}" if first else ""
    return (
        f"{move} L {x1 + stub:.1f} {y1:.1f} C {x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} "
        f"{x2 - stub:.1f} {y2:.1f} L {x2:.1f} {y2:.1f}"
    )


def _label(flow: Flow, x: float, y: float) -> str:
    width = max(len(flow.title) * 7.0, len(flow.detail) * 6.0) + 12
    return (
        f'<rect x="{x - width / 2:.1f}" y="{y - 18:.1f}" width="{width:.1f}" height="36" rx="5" '
        'fill="white" fill-opacity="0.92"/>'
        f'<text class="b m" x="{x:.1f}" y="{y - 3:.1f}" style="fill:{COLOURS[flow.kind]}">'
        f"{escape(flow.title)}</text>"
        f'<text class="s m" x="{x:.1f}" y="{y + 12:.1f}">{escape(flow.detail)}</text>'
    )


# -- hosts and boxes -------------------------------------------------------------------------------


def _frame(host: str, boxes: list[_Node]) -> str:
    x, y = boxes[0].x - FRAME, boxes[0].y - FRAME_TOP
    height = boxes[-1].y + boxes[-1].height + FRAME - y
    return (
        f'<rect x="{x:.1f}" y="{y:.1f}" width="{BOX_WIDTH + 2 * FRAME}" height="{height:.1f}" '
        'rx="14" fill="#F3F5F9" stroke="#888" stroke-dasharray="3 3"/>'
        f'<text class="h" x="{x + FRAME:.1f}" y="{y + 19:.1f}">{escape(host)}</text>'
    )


def _box(plan: Plan, node: _Node) -> str:
    count = len(node.processes)
    stack = "".join(
        f'<rect x="{node.x + 5 * n:.1f}" y="{node.y - 6 * n:.1f}" width="{BOX_WIDTH - 10 * n}" '
        f'height="{node.height / 2:.1f}" rx="10" fill="white" stroke="#999"/>'
        for n in range(min(count - 1, 2), 0, -1)
    )
    names = node.processes[0] if count == 1 else f"{node.processes[0]} … {node.processes[-1]}"
    tail = "process" if count == 1 else f"{count} processes"
    parts = [
        stack,
        f'<rect x="{node.x:.1f}" y="{node.y:.1f}" width="{BOX_WIDTH}" height="{node.height:.1f}" '
        'rx="10" fill="#FAFAFA" stroke="#555" stroke-width="1.3"/>',
        f'<text class="h" x="{node.x + 14:.1f}" y="{node.y + 25:.1f}">{escape(names)}</text>',
        f'<text class="s e" x="{node.x + BOX_WIDTH - 14:.1f}" y="{node.y + 25:.1f}">{tail}</text>',
    ]
    y = node.y + HEAD
    for worker in node.workers:
        tint = _TINTS.get(_family(worker), _OTHER_TINT)
        name = worker.name if count == 1 else worker.group
        parts.append(_row(node.x, y, tint, name, _worker_detail(plan, worker)))
        y += ROW
    for flow in inner_flows(plan, node.processes[0]):
        parts.append(_row(node.x, y, "none", flow.title, flow.detail, COLOURS[flow.kind]))
        y += ROW
    return "\n".join(part for part in parts if part)


def _row(x: float, y: float, tint: str, title: str, detail: str, colour: str = "#222") -> str:
    return (
        f'<rect x="{x + 8:.1f}" y="{y:.1f}" width="{BOX_WIDTH - 16}" height="{ROW - 4}" rx="6" '
        f'fill="{tint}"/>'
        f'<text class="b" x="{x + 16:.1f}" y="{y + 15:.1f}" style="fill:{colour}">'
        f"{escape(title)}</text>"
        f'<text class="s" x="{x + 16:.1f}" y="{y + 29:.1f}">{escape(detail)}</text>'
    )


def _family(worker: WorkerPlan) -> str:
    """`actor`, `policy`, ... for our own kinds."""
    module = worker.kind.partition(":")[0]
    return module.rpartition(".")[2] if module.startswith("srl.workers.") else ""


def _worker_detail(plan: Plan, worker: WorkerPlan) -> str:
    if worker.trains:
        algorithm = plan.policies[worker.trains[0]].algorithm_class.rpartition(":")[2]
        return f"trains {', '.join(worker.trains)} with {algorithm}"
    if worker.asks and worker.writes:
        return f"steps {envs_text(plan)}"
    if worker.serves:
        return f"answers for {', '.join(worker.serves)}"
    if worker.reads or worker.writes:
        return f"{', '.join(worker.reads)} → {', '.join(worker.writes)}"
    return f"plays {', '.join(worker.follows)}"


# -- around ----------------------------------------------------------------------------------------


def _title(plan: Plan, width: float) -> str:
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


def _legend(size: tuple[float, float], kinds: set[str]) -> str:
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
