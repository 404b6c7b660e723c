"""Draws sequence diagrams as SVG, from the part of Mermaid's language that our pages use.

Code hosts draw ```mermaid blocks by themselves. The site has no script for them: each is drawn when
the site is built, in the colours of the page.
"""

from __future__ import annotations

import itertools
import math
import re
import textwrap
from dataclasses import dataclass, field
from html import escape
from typing import Any

from pymdownx.superfences import SuperFencesException

_CHARACTER, _LINE, _PAD = 6.6, 17, 12
"""Width of a character, height of a line, space around a text: pixels."""
_MOST = 44
"""Longest line of a label, in characters; a longer one is wrapped into lines of equal length."""
_PARTICIPANT = re.compile(r"(?:participant|actor) (\w+)(?: as (.+))?")
_MESSAGE = re.compile(r"(\w+)(-?->>)(\w+): (.+)")
_NOTE = re.compile(r"Note over (\w+)(?:,\s*(\w+))?: (.+)")
_FRAME = re.compile(r"(loop|opt|alt) (.+)")


class DiagramError(SuperFencesException):
    """A line of a diagram that this module does not know; ends the build."""


@dataclass
class _Text:
    """A label of one or several lines."""

    lines: list[str]

    @classmethod
    def of(cls, label: str) -> _Text:
        lines = re.split(r"<br ?/?>", label)
        return cls([part for line in lines for part in _wrap(line.strip())])

    @property
    def width(self) -> float:
        return max(len(line) for line in self.lines) * _CHARACTER + 2 * _PAD

    @property
    def height(self) -> float:
        return len(self.lines) * _LINE

    def draw(self, x: float, y: float, kind: str, anchor: str = "middle") -> str:
        """The lines below `y`."""
        rows = "".join(
            f'<tspan x="{x:.0f}" y="{y + (i + 1) * _LINE - 4:.0f}">{escape(line)}</tspan>'
            for i, line in enumerate(self.lines)
        )
        return f'<text class="{kind}" text-anchor="{anchor}">{rows}</text>'


def _wrap(line: str) -> list[str]:
    count = math.ceil(len(line) / _MOST)
    return textwrap.wrap(line, math.ceil(len(line) / count) + 4) if count > 1 else [line]


@dataclass
class _Step:
    """One line of a diagram: a message, a note, or an edge of a frame."""

    kind: str
    text: _Text
    first: str = ""
    last: str = ""


@dataclass
class _Diagram:
    """A diagram that was read."""

    names: dict[str, _Text] = field(default_factory=dict)
    steps: list[_Step] = field(default_factory=list)

    def columns(self) -> dict[str, float]:
        """The centre of each participant, so that every text has room."""
        order, names = list(self.names), self.names
        needs: list[tuple[int, int, float]] = [
            (i, i + 1, (names[a].width + names[b].width) / 2 + 16)
            for i, (a, b) in enumerate(itertools.pairwise(order))
        ]
        for step in self.steps:
            if step.first:
                i, j = sorted((order.index(step.first), order.index(step.last)))
                if i < j and step.kind != "note":
                    needs.append((i, j, step.text.width + 8))
                elif i == j and step.kind != "note" and i + 1 < len(order):
                    needs.append((i, i + 1, step.text.width + 40))
                elif i == j:
                    needs += [(i, n, step.text.width / 2 + 20) for n in (i + 1,) if n < len(order)]
                    needs += [(n, i, step.text.width / 2 + 20) for n in (i - 1,) if n >= 0]
        places = [max(names[order[0]].width, self._overhang(order[0])) / 2 + 8]
        for j in range(1, len(order)):
            places.append(max(places[i] + need for i, end, need in needs if end == j))
        return dict(zip(order, places, strict=True))

    def _overhang(self, name: str) -> float:
        """The widest note over one participant alone."""
        alone = (s for s in self.steps if s.kind == "note" and s.first == s.last == name)
        return max((step.text.width for step in alone), default=0.0)

    def width(self, columns: dict[str, float]) -> float:
        last = list(self.names)[-1]
        own = (s for s in self.steps if s.first == s.last == last and s.kind in ("->>", "-->>"))
        beside = max((step.text.width + 40 for step in own), default=0.0)
        half = max(self.names[last].width, self._overhang(last)) / 2
        return columns[last] + max(half, beside) + 8


def draw(source: str) -> str:
    """A diagram's SVG."""
    diagram = _read(source)
    columns = diagram.columns()
    width = diagram.width(columns)
    top = max(name.height for name in diagram.names.values()) + 2 * _PAD
    body, bottom = _draw_steps(diagram, columns, width, top + 14)
    heads = []
    for name, label in diagram.names.items():
        x = columns[name]
        heads.append(f'<line class="life" x1="{x:.0f}" x2="{x:.0f}" y1="{top}" y2="{bottom}"/>')
        heads.append(_box("head", x - label.width / 2, 2, label.width, top - 2))
        heads.append(label.draw(x, (top - label.height) / 2, "name"))
    return (
        f'<svg class="sequence" role="img" viewBox="0 0 {width:.0f} {bottom + 6:.0f}" '
        f'width="{width:.0f}" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(heads)}{''.join(body)}</svg>"
    )


def _read(source: str) -> _Diagram:
    """Reads a diagram; raises for a line that is unknown."""
    lines = [line.strip() for line in source.strip().splitlines() if line.strip()]
    if not lines or lines[0] != "sequenceDiagram":
        raise DiagramError("mermaid: expected `sequenceDiagram` in the first line")
    diagram = _Diagram()
    for line in lines[1:]:
        if match := _PARTICIPANT.fullmatch(line):
            diagram.names[match[1]] = _Text.of(match[2] or match[1])
        elif match := _MESSAGE.fullmatch(line):
            diagram.steps.append(_Step(match[2], _Text.of(match[4]), match[1], match[3]))
        elif match := _NOTE.fullmatch(line):
            diagram.steps.append(_Step("note", _Text.of(match[3]), match[1], match[2] or match[1]))
        elif match := _FRAME.fullmatch(line):
            diagram.steps.append(_Step("open", _Text([f"{match[1]}: {match[2]}"])))
        elif line.startswith("else "):
            diagram.steps.append(_Step("else", _Text.of(line)))
        elif line == "end":
            diagram.steps.append(_Step("end", _Text.of("")))
        else:
            raise DiagramError(f"mermaid: expected a participant, message, note or frame: {line}")
        if ";" in line:
            raise DiagramError(f"mermaid: code hosts end a statement at each semicolon: {line}")
    named = {name for step in diagram.steps for name in (step.first, step.last) if name}
    if named - set(diagram.names):
        raise DiagramError(
            f"mermaid: no `participant` line for {sorted(named - set(diagram.names))}"
        )
    return diagram


def _draw_steps(
    diagram: _Diagram, columns: dict[str, float], width: float, y: float
) -> tuple[list[str], float]:
    """The lines below the heads, and where the last one ends."""
    drawn: list[str] = []
    frames: list[float] = []
    for step in diagram.steps:
        text, inset = step.text, 4 + 5 * len(frames)
        if step.kind == "open":
            drawn.append(text.draw(inset + 8, y, "frame", "start"))
            frames.append(y)
            y += text.height + 8
        elif step.kind == "else":
            drawn.append(
                f'<line class="else" x1="{inset}" x2="{width - inset:.0f}" y1="{y}" y2="{y}"/>'
            )
            drawn.append(text.draw(inset + 4, y, "frame", "start"))
            y += text.height + 8
        elif step.kind == "end":
            start, side = frames.pop(), inset - 5
            drawn.append(_box("group", side, start - 4, width - 2 * side, y - start + 4))
            y += 12
        elif step.kind == "note":
            y = _draw_note(step, columns, y, drawn)
        else:
            y = _draw_message(step, columns, y, drawn)
    return drawn, y + 4


def _draw_note(step: _Step, columns: dict[str, float], y: float, drawn: list[str]) -> float:
    left, right = sorted((columns[step.first], columns[step.last]))
    middle = (left + right) / 2
    wide = max(step.text.width, right - left + 40 if left != right else 0)
    drawn.append(_box("note", middle - wide / 2, y, wide, step.text.height + 8))
    drawn.append(step.text.draw(middle, y + 3, "noted"))
    return y + step.text.height + 20


def _draw_message(step: _Step, columns: dict[str, float], y: float, drawn: list[str]) -> float:
    start, end = columns[step.first], columns[step.last]
    kind = "answer" if step.kind == "-->>" else "message"
    if start == end:
        drawn.append(step.text.draw(start + 34, y, "said", "start"))
        line = y + step.text.height / 2 - 5
        path = f"M{start:.0f},{line:.0f} h26 v14 h-20"
        drawn.append(f'<path class="{kind}" d="{path}"/>{_arrow(start + 1, line + 14, -1)}')
        return y + max(step.text.height, 24) + 12
    drawn.append(step.text.draw((start + end) / 2, y, "said"))
    line = y + step.text.height + 4
    way = 1 if end > start else -1
    drawn.append(
        f'<line class="{kind}" x1="{start:.0f}" x2="{end - 6 * way:.0f}" y1="{line}" y2="{line}"/>'
        f"{_arrow(end - way, line, way)}"
    )
    return line + 12


def _arrow(x: float, y: float, way: int) -> str:
    return f'<path class="arrow" d="M{x:.0f},{y:.0f} l{-8 * way},-4 v8 z"/>'


def _box(kind: str, x: float, y: float, width: float, height: float) -> str:
    size = f'x="{x:.0f}" y="{y:.0f}" width="{width:.0f}" height="{height:.0f}"'
    return f'<rect class="{kind}" {size} rx="3"/>'


def fence(source: str, *_: Any, **__: Any) -> str:
    """Draws a ```mermaid block; called by pymdownx.superfences."""
    return f'<div class="sequence" data-search-exclude>{draw(source)}</div>'
