"""Describes what a measurement ran on: the machine, the commit, the versions of packages."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
from pathlib import Path

from srl.launch.plan.build import available_cores

PACKAGES = ("torch", "numpy", "gymnasium", "envpool", "ale-py", "mujoco", "mpe2")


def machine() -> str:
    """The machine in a few words: processor, cores, memory."""
    model = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    for line in info.read_text().splitlines() if info.exists() else ():
        if line.startswith("model name"):
            model = line.partition(":")[2].strip()
            break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{model}, {available_cores()} cores, {memory:.0f} GiB"


def commit() -> str:
    """The commit that was measured, marked if the source differs from it; empty without git."""
    head = _git("rev-parse", "--short", "HEAD")
    return head + (" (with changes)" if head and _git("status", "--porcelain", ".") else "")


def versions() -> dict[str, str]:
    """The versions of Python and of the packages that matter for speed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _git(*arguments: str) -> str:
    folder = Path(__file__).parents[1]
    try:
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, cwd=folder, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip()
