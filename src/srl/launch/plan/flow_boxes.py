"""Where the boxes and arrows of a drawn plan are.

The boxes stand in three columns: processes that step environments, processes that answer requests
or work in between, and processes that train. An arrow that crosses the middle column has a free
passage between the boxes there, so that no arrow crosses a box.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TypeVar

from srl.launch.plan.flows import Flow

BOX_WIDTH, GAP_X, GAP_Y, MARGIN = 250, 190, 26, 32
PASSAGE, LABEL = 50, 40
FRAME_TOP, FRAME = 38, 12
"""Margin between the frame of a host and its boxes: above, where its name is, and elsewhere."""


@dataclass
class FlowBox:
    """The box of a kind of process, or the passage of an arrow through the middle column."""

    key: str
    column: int
    height: float
    host: str = ""
    """Text about its host or hosts; empty where there is only one host."""
    x: float = 0.0
    y: float = 0.0

    @property
    def middle(self) -> float:
        """The height of its middle."""
        return self.y + self.height / 2


@dataclass(frozen=True)
class Arrow:
    """A drawn flow: a curve as an SVG path, and the middle of its label."""

    flow: Flow
    path: str
    label: tuple[float, float]


@dataclass(frozen=True)
class Drawing:
    """The size of a drawing and its arrows; its boxes know where they are."""

    width: float
    height: float
    arrows: list[Arrow]


AnyBox = TypeVar("AnyBox", bound=FlowBox)


def lay_out(boxes: Mapping[str, AnyBox], flows: list[Flow], top: float) -> Drawing:
    """Sets the position of every box, from the height `top` on, and draws the flows between them.
    Boxes may become higher, so that the labels of their arrows have room."""
    columns: list[list[FlowBox]] = [[], [], []]
    for box in boxes.values():
        columns[box.column].append(box)
    passages: dict[int, FlowBox] = {}
    for number, flow in enumerate(flows):
        if abs(boxes[flow.source].column - boxes[flow.target].column) == 2:
            passages[number] = FlowBox(f"passage-{len(passages)}", 1, PASSAGE)
            columns[1].append(passages[number])
    columns = [column for column in columns if column]
    _fit_heights(flows, boxes)
    width, height = _set_positions(columns, top)
    return Drawing(width, height, _draw_arrows(flows, boxes, passages))


def by_frame(column: Sequence[AnyBox]) -> list[tuple[str, list[AnyBox]]]:
    """The boxes of a column, grouped by frame."""
    return [(host, list(boxes)) for host, boxes in groupby(column, key=lambda box: box.host)]


def _fit_heights(flows: list[Flow], boxes: Mapping[str, FlowBox]) -> None:
    """Makes boxes high enough for the labels of the arrows at each side."""
    sides: Counter[tuple[str, bool]] = Counter()
    for flow in flows:
        for here, there in ((flow.source, flow.target), (flow.target, flow.source)):
            sides[here, boxes[there].column > boxes[here].column] += 1
    for (key, _), count in sides.items():
        boxes[key].height = max(boxes[key].height, LABEL * count + 12)


def _set_positions(columns: list[list[FlowBox]], top: float) -> tuple[float, float]:
    """Sets the position of every box; returns the size of the drawing."""
    tallest = max(_stack_boxes(column, 0.0) for column in columns)
    for number, column in enumerate(columns):
        _stack_boxes(column, top + (tallest - _stack_boxes(column, 0.0)) / 2)
        for box in column:
            box.x = MARGIN + number * (BOX_WIDTH + GAP_X)
    width = 2 * MARGIN + len(columns) * BOX_WIDTH + (len(columns) - 1) * GAP_X
    return max(width, 560.0), top + tallest


def _stack_boxes(column: list[FlowBox], top: float) -> float:
    """Puts the boxes of a column below each other, from `top` on; returns their total height."""
    y = top
    for host, boxes in by_frame(column):
        y += FRAME_TOP if host else 0
        for box in boxes:
            box.y = y
            y += box.height + GAP_Y
        y += FRAME if host else 0
    return y - GAP_Y - top


def _draw_arrows(
    flows: list[Flow], boxes: Mapping[str, FlowBox], passages: Mapping[int, FlowBox]
) -> list[Arrow]:
    """Draws curves between boxes; the curves at one side of a box are spread over that side."""
    ends: dict[tuple[str, bool], list[tuple[float, int]]] = {}
    for number, flow in enumerate(flows):
        for here, there in ((flow.source, flow.target), (flow.target, flow.source)):
            right = boxes[there].x > boxes[here].x
            passage = passages.get(number)
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
        path, label = _draw_arrow(start, end, passages.get(number))
        paths.append(path)
        labels.append(label)
    _separate(labels)
    return [
        Arrow(flow, path, (x, y)) for flow, path, (x, y) in zip(flows, paths, labels, strict=True)
    ]


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
    start: tuple[float, float], end: tuple[float, float], passage: FlowBox | None
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
    return path, label


def _curve(x1: float, y1: float, x2: float, y2: float, *, first: bool) -> str:
    """A curve with short straight ends, so that every viewer turns its arrow heads correctly."""
    bend, stub = (x2 - x1) / 2, 10 if x2 > x1 else -10
    move = f"M {x1:.1f} {y1:.1f}" if first else ""
    return (
        f"{move} L {x1 + stub:.1f} {y1:.1f} C {x1 + bend:.1f} {y1:.1f} {x2 - bend:.1f} {y2:.1f} "
        f"{x2 - stub:.1f} {y2:.1f} L {x2:.1f} {y2:.1f}"
    )
