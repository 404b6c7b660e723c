"""What every test is held to: it leaves no process, no shared memory and no pipe behind."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from srl.arena.shm import ROOT_VARIABLE

# Before anything imports torch: two cores are shared by all that a test starts.
for _variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_variable, "1")

# The same examples in every run: a failure is the change's fault, not the day's. To look for new
# ones: pytest --hypothesis-profile=search
settings.register_profile("repeatable", derandomize=True, deadline=None, database=None)
settings.register_profile(
    "search",
    max_examples=500,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("repeatable")

# Runs are signed with a key of their user's; tests have one of their own.
_STATE = tempfile.TemporaryDirectory(prefix="srl-tests-state-")
os.environ["XDG_STATE_HOME"] = _STATE.name

GRACE_SECONDS = 60.0
"""How long what is already ending may take to be gone."""


@pytest.fixture(scope="session")
def shared_memory_root() -> Iterator[Path]:
    """A folder in memory that only this test session uses."""
    memory = Path("/dev/shm")
    root = Path(tempfile.mkdtemp(prefix="srl-tests-", dir=memory if memory.is_dir() else None))
    before = os.environ.get(ROOT_VARIABLE)
    os.environ[ROOT_VARIABLE] = str(root)
    yield root
    shutil.rmtree(root)
    if before is None:
        del os.environ[ROOT_VARIABLE]
    else:
        os.environ[ROOT_VARIABLE] = before


@pytest.fixture(autouse=True)
def nothing_left_behind(shared_memory_root: Path) -> Iterator[None]:
    """Fails a test after which something still runs or lies in shared memory."""
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(1)
    before = {process.pid for process in _children()}
    yield
    left = [process for process in _children() if process.pid not in before]
    _, alive = psutil.wait_procs(left, timeout=GRACE_SECONDS if left else 0)
    words = [_words(process) for process in alive]
    for process in alive:
        process.kill()
    files = sorted(path.name for path in shared_memory_root.iterdir())
    for name in files:
        shutil.rmtree(shared_memory_root / name, ignore_errors=True)
    assert not words, f"processes left behind: {words}"
    assert not files, f"shared memory left behind: {files}"


def _children() -> list[psutil.Process]:
    found = psutil.Process().children(recursive=True)
    return [process for process in found if "resource_tracker" not in _words(process)]


def _words(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline()) or f"{process.name()} ({process.status()})"
    except psutil.NoSuchProcess:
        return ""
