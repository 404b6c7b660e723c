"""A program that tells what its process is like; its arguments are a name and an exit code."""

from __future__ import annotations

import gc
import json
import os
import random
import resource
import signal
import sys
from pathlib import Path

import numpy as np

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE)


def _marks() -> list[str]:
    """The marks that this process passes on, and that the system shows."""
    shown = Path("/proc/self/environ").read_text().split("\0")
    found = [line.partition("=")[2] for line in shown if line.startswith("SRL_REAPER_MARK=")]
    return [os.environ["SRL_REAPER_MARK"], *found]


def _descriptors() -> list[int]:
    """All open descriptors, without the one that lists them."""
    return sorted(int(name) for name in os.listdir("/proc/self/fd"))[:-1]


def describe() -> dict[str, object]:
    """What the tests compare."""
    torch = sys.modules.get("torch")
    return {
        "parent": os.getppid(),
        "is_session": os.getsid(0) == os.getpid(),
        "drawn": [
            random.random(),
            float(np.random.random()),
            float(torch.rand(1)) if torch else random.random(),
        ],
        "descriptors": _descriptors(),
        "output": os.readlink("/proc/self/fd/1"),
        "command": Path("/proc/self/cmdline").read_text().split("\0"),
        "arguments": sys.argv[1:],
        "marks": _marks(),
        "collects": gc.isenabled(),
        "frozen": gc.get_freeze_count(),
        "signals": [str(signal.getsignal(number)) for number in IGNORED],
        "limit": resource.getrlimit(resource.RLIMIT_NOFILE),
        "threads": len(os.listdir("/proc/self/task")),
        "folder": os.getcwd(),
        "modules": sorted(name for name in ("torch", "json") if name in sys.modules),
    }


def main() -> int:
    """Tells, waits for its parent, and ends as it was told."""
    os.write(1, json.dumps(describe()).encode() + b"\n")
    os.read(0, 1)
    if sys.argv[2] == "raises":
        raise ValueError("as told")
    return int(sys.argv[2])


if __name__ == "__main__":
    sys.exit(main())
