"""Shared memory: reserved up front, private to its user, and gone when its run is."""

from __future__ import annotations

import errno
import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from srl.arena.arena import HeapArena
from srl.arena.shm import (
    ROOT_VARIABLE,
    LockHeld,
    RunFolder,
    ShmArena,
    WakePipe,
    bump_placement,
    make_wake_pipe,
    remove_wake_pipe,
    shm_root,
    sweep,
)
from srl.errors import SharedMemoryError

OWNER = """
import sys, time
from srl.arena.shm import RunFolder, ShmArena
folder = RunFolder()
ShmArena(folder.path, "owner").region("data", 4096)
print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def folder() -> Iterator[RunFolder]:
    made = RunFolder()
    yield made
    made.remove()


@pytest.fixture
def small_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A file system in memory with 64 MB, as containers often have it."""
    if os.getuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    target = tmp_path / "small"
    target.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(target)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("this machine does not allow mounting a tmpfs")
    monkeypatch.setenv(ROOT_VARIABLE, str(target))
    yield target
    subprocess.run(["umount", "-l", str(target)], check=True)


def start_owner() -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def end(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_region_is_one_memory_for_all_who_map_it(folder: RunFolder) -> None:
    first, second = ShmArena(folder.path, "a"), ShmArena(folder.path, "b")
    mine, yours = first.region("x/y", 100), second.region("x/y", 100)
    assert (mine == 0).all()
    mine[:] = np.arange(100)
    assert (yours == np.arange(100)).all()
    assert mine.flags.writeable
    assert yours.flags.writeable
    first.close()
    second.close()


def test_a_region_whose_maker_died_over_it_is_made_by_the_next(folder: RunFolder) -> None:
    arena = ShmArena(folder.path, "a")
    arena.path("x/y").touch()
    assert (arena.region("x/y", 100) == 0).all()
    assert arena.path("x/y").stat().st_size == 100
    arena.close()


def test_memory_is_reserved_when_it_is_asked_for(folder: RunFolder) -> None:
    ShmArena(folder.path, "a").region("data", 1 << 20)
    (path,) = folder.path.glob("*.region")
    assert path.stat().st_blocks * 512 >= 1 << 20, "not a hole that may fail to be filled later"


def test_a_run_that_disagrees_about_the_plan_is_told(folder: RunFolder) -> None:
    arena = ShmArena(folder.path, "a")
    arena.region("data", 100)
    with pytest.raises(SharedMemoryError, match=r"expected 200 bytes, got 100.*disagree"):
        arena.region("data", 200)


def test_too_little_room_states_needed_free_and_the_setting(small_root: Path) -> None:
    folder = RunFolder()
    assert folder.path.parent == small_root
    arena = ShmArena(folder.path, "a")
    arena.region("fits", 40_000_000, "sample.slots")
    with pytest.raises(SharedMemoryError) as caught:
        arena.region("sample/too-much", 50_000_000, "sample.slots")
    message = str(caught.value)
    assert "sample/too-much needs 50.0 MB" in message
    assert "27.1 MB are free" in message or "27.0 MB are free" in message
    assert "Lower sample.slots" in message
    assert "--shm-size" in message
    assert ROOT_VARIABLE in message
    assert not list(folder.path.glob("*too-much*")), "and takes nothing"
    arena.region("smaller", 20_000_000, "sample.slots")
    arena.close()
    folder.remove()
    assert not list(small_root.iterdir())


def test_memory_that_the_machine_does_not_have_is_not_called_a_full_folder(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(SharedMemoryError, match=r"have that much memory left \(Cannot") as caught:
        ShmArena(folder.path, "a").region("data", 1000)
    assert "free in" not in str(caught.value)


def test_only_the_owner_may_look(folder: RunFolder) -> None:
    arena, wake_pipe = ShmArena(folder.path, "a"), WakePipe(folder.path, "a")
    arena.region("data", 100)
    with arena.lock("x"):
        pass
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700
    files = list(folder.path.iterdir())
    assert {path.suffix for path in files} == {"", ".region", ".lock", ".wake"}
    for path in files:
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path.name
    wake_pipe.close()
    arena.close()


def test_removing_a_run_leaves_nothing(shared_memory_root: Path) -> None:
    folder = RunFolder()
    arena, wake_pipe = ShmArena(folder.path, "a"), WakePipe(folder.path, "a")
    arena.region("data", 100)
    arena.wake("b")
    folder.remove()
    assert not list(shared_memory_root.iterdir())
    folder.remove()  # Twice is fine.
    wake_pipe.close()
    arena.close()


def test_closing_an_arena_closes_its_files(folder: RunFolder) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        arena, wake_pipe = ShmArena(folder.path, "a"), WakePipe(folder.path, "a")
        with arena.lock("x"):
            arena.wake("b")
        arena.region("data", 100)
        arena.close()
        wake_pipe.close()
    assert len(os.listdir("/proc/self/fd")) <= before + 1


def test_what_a_killed_owner_left_is_swept_and_the_living_are_kept(
    shared_memory_root: Path,
) -> None:
    (dead, dead_path), (living, living_path) = start_owner(), start_owner()
    assert dead_path.is_dir()
    end(dead)
    assert dead_path.is_dir(), "kill -9 leaves it lying"
    assert sweep(shared_memory_root) == [dead_path.name]
    assert not dead_path.exists()
    assert (living_path / "data.region").exists()
    end(living)
    folder = RunFolder()
    assert not living_path.exists(), "the next run sweeps by itself"
    folder.remove()


def test_a_folder_without_an_owner_is_left_alone_for_a_minute(shared_memory_root: Path) -> None:
    fresh, old = (shared_memory_root / f"srl-{os.getuid()}-{name}" for name in ("new", "old"))
    for path in (fresh, old):
        path.mkdir()
    before = time.time() - 120
    os.utime(old, (before, before))
    sweep(shared_memory_root)
    assert fresh.exists()
    assert not old.exists()
    fresh.rmdir()


def test_a_folder_that_was_swept_before_it_was_locked_is_made_again(
    shared_memory_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another run may sweep between the making of a folder and its locking."""
    import fcntl

    real, swept = fcntl.flock, []

    def flock(fd: int, how: int) -> None:
        if how == fcntl.LOCK_EX and not swept:
            swept.append(True)
            swept.append(sweep(shared_memory_root))
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = RunFolder()
    assert len(swept[1]) == 1
    assert (folder.path / "owner").exists()
    folder.remove()


def test_the_root_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ROOT_VARIABLE, str(tmp_path / "not" / "there"))
    assert shm_root() == tmp_path / "not" / "there"
    folder = RunFolder()
    assert folder.path.parent == tmp_path / "not" / "there"
    folder.remove()
    monkeypatch.delenv(ROOT_VARIABLE)
    if Path("/dev/shm").is_dir():
        assert shm_root() == Path("/dev/shm")


def test_a_heap_arena_gives_back_what_it_saved() -> None:
    arena = HeapArena()
    region = arena.region("x", 10)
    assert arena.region("x", 10) is region
    assert region.ctypes.data % 64 == 0
    region[:] = 7
    saved = arena.state()
    region[:] = 8
    arena.restore(saved)
    assert (region == 7).all()
    with arena.lock("x"):
        pass


# -- hosts ---------------------------------------------------------------------------------------


def test_a_wake_for_a_process_elsewhere_wakes_the_bridge(folder: RunFolder) -> None:
    make_wake_pipe(folder.path, "here")
    arena = ShmArena(folder.path, "waker", bridged=True)
    here, bridge = WakePipe(folder.path, "here"), WakePipe(folder.path, "bridge")
    arena.wake("elsewhere", "elsewhere-too")
    assert bridge.clear()
    assert not here.clear()
    arena.wake("here", "elsewhere")
    assert here.clear()
    assert bridge.clear()
    assert not (folder.path / "elsewhere.wake").exists()
    for closing in (arena, here, bridge):
        closing.close()


def test_when_placement_changes_wakes_go_to_the_new_place(folder: RunFolder) -> None:
    arena, bridge = ShmArena(folder.path, "waker", bridged=True), WakePipe(folder.path, "bridge")
    arena.wake("mover")
    assert bridge.clear()
    make_wake_pipe(folder.path, "mover")
    bump_placement(folder.path)
    arena.wake("mover")
    assert not bridge.clear()
    mover = WakePipe(folder.path, "mover")
    assert mover.clear()
    mover.close()
    remove_wake_pipe(folder.path, "mover")
    bump_placement(folder.path)
    arena.wake("mover")
    assert bridge.clear()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        bump_placement(folder.path)
        arena.wake("mover", "bridge", "another")
    assert len(os.listdir("/proc/self/fd")) <= before + 1
    arena.close()
    bridge.close()


def test_a_lazy_region_takes_memory_as_it_is_written(folder: RunFolder) -> None:
    region = ShmArena(folder.path, "a", lazy=True).region("data", 1 << 24)
    path = folder.path / "data.region"
    assert path.stat().st_blocks == 0
    region[:100] = 1
    assert 0 < path.stat().st_blocks * 512 <= 1 << 16
    # Until it is known that all of it will be used.
    ShmArena(folder.path, "b", lazy=True).reserve("data")
    assert path.stat().st_blocks * 512 >= 1 << 24
    assert region[:101].sum() == 100


def test_a_wake_pipe_can_be_waited_for_with_other_things(folder: RunFolder) -> None:
    wake_pipe, arena = WakePipe(folder.path, "a"), ShmArena(folder.path, "b")
    assert not select.select([wake_pipe], [], [], 0)[0]
    assert not wake_pipe.clear()
    arena.wake("a")
    arena.wake("a")
    assert select.select([wake_pipe], [], [], 1)[0]
    assert wake_pipe.clear()
    assert not select.select([wake_pipe], [], [], 0)[0]
    wake_pipe.close()
    arena.close()


def test_who_may_not_wait_long_for_a_lock_is_told_and_gets_it_later(folder: RunFolder) -> None:
    holder = ShmArena(folder.path, "holder")
    impatient = ShmArena(folder.path, "launcher", patience_seconds=0.01)
    with (
        holder.lock("accounts"),
        pytest.raises(LockHeld, match="accounts"),
        impatient.lock("accounts"),
    ):
        pass
    with impatient.lock("accounts"):
        pass
    with holder.lock("accounts"):
        pass
    impatient.close()
    holder.close()


def test_a_wake_makes_no_wake_pipe_for_who_has_just_left(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bump_placement(folder.path)
    arena, bridge = ShmArena(folder.path, "a", bridged=True), WakePipe(folder.path, "bridge")
    with monkeypatch.context() as patched:
        # It was there when somebody looked, and is gone when it is opened.
        patched.setattr(Path, "exists", lambda _: True)
        arena.wake("mover")
    assert bridge.wait(0)
    assert not (folder.path / "mover.wake").exists()
    bridge.close()
    arena.close()
