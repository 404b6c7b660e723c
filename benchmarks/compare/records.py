"""Results as they arrive, one JSON object a line, with what is needed to repeat them."""

from __future__ import annotations

import json
import math
import os
import platform
import shlex
import time
from pathlib import Path
from typing import Any

import venvs

from srl.bench.machine import commit, machine

RESULTS = Path(__file__).parent / "results"


def machine_name() -> str:
    """The machine in a file name."""
    return f"{len(os.sched_getaffinity(0))}core-{platform.machine()}"


def command_text(command: list[str]) -> str:
    """A command for others to repeat: where things lie on this machine is left out."""
    repository = Path(__file__).parents[2]
    words = []
    for word in command:
        path = Path(word)
        if path.is_relative_to(venvs.folder()):
            word = str(Path(".venvs") / path.relative_to(venvs.folder()))
        elif path.is_relative_to(repository):
            word = str(path.relative_to(repository))
        elif path.is_absolute():
            word = path.name
        words.append(word)
    return shlex.join(words)


def append(path: Path, record: dict[str, Any]) -> None:
    """Adds a record, with when and where it was measured."""
    path.parent.mkdir(parents=True, exist_ok=True)
    about = {
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "commit": commit(),
        "machine": machine(),
    }
    with path.open("a") as file:
        file.write(json.dumps(_plain({**record, **about}), allow_nan=False) + "\n")


def _plain(value: Any) -> Any:
    """The same with null for what is not a number: JSON has none of those."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read(path: Path) -> list[dict[str, Any]]:
    """All records of a file; none where there is no file."""
    if not path.is_file():
        return []
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
