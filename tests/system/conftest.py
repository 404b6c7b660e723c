"""What system tests start from: shared memory and disks of their own, and runs that are ended."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from harness import Training

# Runs inherit it; under `nohup` they would ignore the signal that some tests send.
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.system)


@pytest.fixture
def shm(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Shared memory for this test alone."""
    root = Path("/dev/shm") if Path("/dev/shm").is_dir() else Path(tempfile.gettempdir())
    folder = Path(tempfile.mkdtemp(prefix="srl-tests-", dir=root))
    monkeypatch.setenv("SRL_SHM_DIR", str(folder))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def start(tmp_path: Path, shm: Path) -> Iterator[Callable[..., Training]]:
    """Starts `srl train TARGET ...` with a run directory of its own; ends it after the test."""
    started = []

    def begin(target: str, *arguments: str, run: str = "run", verb: str = "train") -> Training:
        run_dir = tmp_path / run
        where = (str(run_dir),) if verb == "resume" else (target, "--run-dir", str(run_dir))
        training = Training(run_dir, (verb, *where, "--quiet", *arguments))
        started.append(training)
        return training

    yield begin
    for training in started:
        training.kill()


@pytest.fixture
def small_disk() -> Iterator[Callable[[int], Path]]:
    """Mounts file systems of a few MB, where paths are short enough for sockets."""
    if os.geteuid() != 0:
        pytest.skip("mounting a small file system needs root")
    mounted = []

    def mount(megabytes: int) -> Path:
        folder = Path(tempfile.mkdtemp(prefix="srl-disk-"))
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)],
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            folder.rmdir()
            pytest.skip(f"no file system can be mounted here: {done.stderr.strip()}")
        mounted.append(folder)
        return folder

    yield mount
    for folder in mounted:
        subprocess.run(["umount", "-l", str(folder)], check=True)
        folder.rmdir()
