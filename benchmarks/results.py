"""Writing results with what is needed to repeat them: machine, commit, command, date."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from pathlib import Path

RESULTS = Path(__file__).parent / "results"


def machine() -> str:
    """The machine in a few words: processor, cores, memory."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB"


def commit() -> str:
    """The commit that was measured, marked if the tree differs from it."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + (" (with changes)" if _git("status", "--porcelain", "src") else "")


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


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return done.stdout.strip()
