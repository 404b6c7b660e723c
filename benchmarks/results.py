"""Writing results with what is needed to repeat them: machine, commit, command, date."""

from __future__ import annotations

import os
import platform
import sys
import time
from pathlib import Path

from srl.bench.machine import commit, machine

RESULTS = Path(__file__).parent / "results"


def write_result(what: str, description: str, lines: list[str]) -> Path:
    """Writes `results/<what>_<machine>_<yyyymm>.md`, and returns where."""
    RESULTS.mkdir(exist_ok=True)
    name = f"{len(os.sched_getaffinity(0))}core-{platform.machine()}"
    path = RESULTS / f"{what}_{name}_{time.strftime('%Y%m')}.md"
    command = " ".join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    head = [
        f"# {what.replace('_', ' ').capitalize()}",
        "",
        description.strip().split("\n\n    python")[0],
        "",
        f"- machine: {machine()}",
        f"- commit: {commit()}",
        f"- command: `{command}`",
        f"- date: {time.strftime('%Y-%m-%d')}",
        "",
    ]
    path.write_text("\n".join([*head, *lines]) + "\n")
    return path
