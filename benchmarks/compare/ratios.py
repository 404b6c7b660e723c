"""From rounds of results to medians, spreads and ratios, and to a table."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import Any

from contenders import OURS

Record = dict[str, Any]


@dataclass(frozen=True)
class Spread:
    """The median of some numbers, with the least and the greatest."""

    median: float
    least: float
    greatest: float

    @staticmethod
    def of(values: list[float]) -> Spread | None:
        """None where there are no numbers."""
        if not values:
            return None
        return Spread(statistics.median(values), min(values), max(values))

    def text(self, digits: int = 0) -> str:
        """`median (least-greatest)`."""
        median, least, greatest = (
            f"{value:,.{digits}f}" for value in (self.median, self.least, self.greatest)
        )
        return f"{median} ({least}-{greatest})"


def speeds(records: list[Record], contender: str) -> dict[int, float]:
    """Steps per second of a contender, by round; rounds that failed are missing."""
    return {
        record["round"]: float(record["result"]["steps_per_second"])
        for record in records
        if record["contender"] == contender and record["ok"]
    }


def ratios(records: list[Record], contender: str) -> Spread | None:
    """Ours divided by a contender's, each round by itself."""
    ours, theirs = speeds(records, OURS), speeds(records, contender)
    return Spread.of([ours[i] / theirs[i] for i in sorted(ours) if theirs.get(i)])


def order(records: list[Record]) -> list[str]:
    """Contenders: ours first, then the fastest first, those that never ran last."""
    names = list(dict.fromkeys(record["contender"] for record in records))

    def place(name: str) -> tuple[bool, float]:
        spread = Spread.of(list(speeds(records, name).values()))
        return name != OURS, -spread.median if spread else float("inf")

    return sorted(names, key=place)


def last_result(records: list[Record], contender: str) -> Record:
    """What a contender said of itself in its last good round."""
    good = [r["result"] for r in records if r["contender"] == contender and r["ok"]]
    return good[-1] if good else {}


def table(records: list[Record]) -> list[str]:
    """The comparison as lines of Markdown."""
    lines = [
        "| contender | steps/s, median (min-max) | ours / theirs, per round | rounds "
        "| parameters | layout |",
        "|---|--:|--:|--:|--:|---|",
    ]
    for name in order(records):
        spread = Spread.of(list(speeds(records, name).values()))
        ratio = None if name == OURS else ratios(records, name)
        tried = [record for record in records if record["contender"] == name]
        good = sum(record["ok"] for record in tried)
        said = last_result(records, name)
        layout, parameters = said.get("layout", ""), said.get("parameters")
        cells = [
            name,
            spread.text() if spread else "failed",
            ratio.text(2) if ratio else "-",
            f"{good} of {len(tried)}",
            f"{parameters:,}" if parameters else "not known",
            f"`{layout_text(layout)}`" if layout else "-",
        ]
        lines.append("| " + " | ".join(cells) + " |")
    return lines + notes(records)


def layout_text(layout: Any) -> str:
    """A layout in a few words."""
    if isinstance(layout, dict):
        return " ".join(f"{key}={value}" for key, value in layout.items())
    return str(layout)


def notes(records: list[Record]) -> list[str]:
    """What else is known of ours, and why others failed."""
    lines = [""]
    ours = [r["result"] for r in records if r["contender"] == OURS and r["ok"]]
    for key, name in (("policy_age_mean", "policy age"), ("share_of_limit", "share of the limit")):
        values = [float(result[key]) for result in ours if result.get(key) is not None]
        spread = Spread.of(values)
        lines.append(f"- {name} of ours: {spread.text(2) if spread else 'not given'}")
    for number, result in enumerate(ours, 1):
        lines += [f"- doubtful, ours, result {number}: {why}" for why in result.get("doubtful", [])]
    for record in records:
        if not record["ok"]:
            last = record["tail"][-1] if record["tail"] else "no output"
            lines.append(
                f"- round {record['round']}, {record['contender']} failed "
                f"({record['reason']}): `{last[:200]}`"
            )
    return lines
