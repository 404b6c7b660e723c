"""Results as they arrive, one JSON object a line, with what is needed to repeat them."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from srl.bench.machine import commit, machine

RESULTS = Path(__file__).parent / "results"


def machine_name() -> str:
    """The machine in a file name."""
    return f"{len(os.sched_getaffinity(0))}core-{platform.machine()}"


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
