"""Results as they arrive, one JSON object a line, with what is needed to repeat them."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def machine_name() -> str:
    """The machine in a file name."""
    return f"{len(os.sched_getaffinity(0))}core-{platform.machine()}"


def machine() -> str:
    """The machine in a few words: processor, cores, memory."""
    model = platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {len(os.sched_getaffinity(0))} cores, {memory:.0f} GiB"


def commit() -> str:
    """The commit that is measured, marked if the source differs from it."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + (" (with changes)" if _git("status", "--porcelain", "src") else "")


def append(path: Path, record: dict[str, Any]) -> None:
    """Adds a record, with when and where it was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "machine": machine(),
    }
    with path.open("a") as file:
        file.write(json.dumps({**record, **about}) + "\n")


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a file; none where there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, cwd=RESULTS.parent, check=False
    )
    return done.stdout.strip()
