"""The reaper: what it starts, what it ends, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from srl.launch.process.children import Children
from srl.launch.process.reaper_client import ReaperClient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")

WAITS = "import os; os.read(0, 1)"
"""A worker that finishes when its standard input is closed."""
ENGINE = """
import os, signal, sys
held = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.write(held, str(os.getpid()).encode() + b".")
while True:
    signal.pause()
"""
STARTS_ENGINE = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        environment = {} if sys.argv[3] == "bare" else dict(os.environ)
        command = [sys.executable, "-I", "-S", "-c", sys.argv[1], sys.argv[2]]
        os.execve(sys.executable, command, environment)
    os._exit(0)
os.wait()
os.read(0, 1)
"""
"""A worker that starts an engine as a daemon: argv has the engine's program, its file, and whether
its environment is bare."""


def wait_for(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + 60.0
    while not (found := condition()):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return found


@pytest.fixture
def reaper(tmp_path: Path) -> Iterator[ReaperClient]:
    ENDED.clear()
    one = ReaperClient(tmp_path / "folder", dict(os.environ))
    yield one
    one.end()


@pytest.fixture
def shared_file() -> Iterator[Path]:
    path = Path(f"/dev/shm/srl-test-reaper-{os.getpid()}")
    yield path
    path.unlink(missing_ok=True)


def start(reaper: ReaperClient, *arguments: str) -> tuple[int, int]:
    """A Python program below a reaper: its process id, and the end of its standard input."""
    source, ours = os.pipe()
    output = os.open(os.devnull, os.O_WRONLY)
    try:
        number = reaper.start([sys.executable, "-c", *arguments], source, output)
    finally:
        os.close(source)
        os.close(output)
    while number not in reaper.pids:
        ENDED.update({reaper.pids[one]: code for one, code in reaper.ends(1.0)})
    return reaper.pids[number], ours


ENDED: dict[int, int] = {}
"""Exit codes that were told before anybody asked, by process id."""


def kill(reaper: ReaperClient, pid: int) -> None:
    reaper.kill(next(number for number, one in reaper.pids.items() if one == pid))


def ends(reaper: ReaperClient, count: int) -> dict[int, int]:
    """The exit codes of processes that have ended, by process id."""
    found = {pid: ENDED.pop(pid) for pid in list(ENDED)}
    while len(found) < count:
        found.update({reaper.pids[number]: code for number, code in reaper.ends(1.0)})
    return found


def engine_at(path: Path) -> int:
    """The number of the engine that holds a file, once it has told."""

    def told() -> int:
        text = path.read_text() if path.exists() else ""
        return int(text[:-1]) if text.endswith(".") else 0

    return int(wait_for(told))


def test_exit_codes_and_signals_are_told(reaper: ReaperClient) -> None:
    failed, _ = start(reaper, "raise SystemExit(7)")
    killed, ours = start(reaper, WAITS)
    kill(reaper, killed)
    assert ends(reaper, 2) == {failed: 7, killed: -signal.SIGKILL}
    os.close(ours)


def test_what_daemonised_itself_ends_with_the_reaper_and_so_does_its_file(
    reaper: ReaperClient, shared_file: Path
) -> None:
    worker, ours = start(reaper, STARTS_ENGINE, ENGINE, str(shared_file), "bare")
    backend = engine_at(shared_file)
    os.close(ours)
    assert ends(reaper, 1) == {worker: 0}
    assert psutil.pid_exists(backend), "nothing says whose it is"
    reaper.end()
    assert not psutil.pid_exists(backend)
    assert not shared_file.exists()


def test_files_that_were_there_before_or_are_held_by_others_stay(
    tmp_path: Path, shared_file: Path
) -> None:
    shared_file.touch()
    held = Path(f"{shared_file}-held")
    reaper = ReaperClient(tmp_path / "folder", dict(os.environ))
    try:
        for path in (shared_file, held):
            start(reaper, STARTS_ENGINE, ENGINE, str(path), "bare")
            engine_at(path)
        with held.open():
            reaper.end()
        assert shared_file.exists()
        assert held.exists()
    finally:
        held.unlink(missing_ok=True)
        reaper.end()


def test_a_dead_workers_engine_ends_and_anothers_does_not(
    reaper: ReaperClient, shared_file: Path
) -> None:
    other = Path(f"{shared_file}-other")
    try:
        _, ours = start(reaper, STARTS_ENGINE, ENGINE, str(other), "kept")
        waits_for_return = engine_at(other)
        worker, _ = start(reaper, STARTS_ENGINE, ENGINE, str(shared_file), "kept")
        goes = engine_at(shared_file)
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: not psutil.pid_exists(goes))
        wait_for(lambda: not shared_file.exists())
        assert psutil.pid_exists(waits_for_return)
        assert other.exists()
        os.close(ours)
    finally:
        reaper.end()
        other.unlink(missing_ok=True)


def test_all_ends_with_the_parent_however_that_ends(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    program = (
        "import os, sys; from pathlib import Path\n"
        "from srl.launch.process.children import Children\n"
        "children = Children(Path(sys.argv[1]), None)\n"
        "children.start('one', 0, 'timeit', '-n1', '-r1', 'import time; time.sleep(1e6)')\n"
        "while not children.living['one'].pid: children.wait('one', 1.0)\n"
        "print(children.living['one'].pid, flush=True); os.read(0, 1)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", program, str(folder)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    )  # fmt: skip
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        above = child.parent()
        assert above is not None
        # Neither can be told anything.
        child.suspend()
        above.suspend()
        parent.kill()
    assert psutil.wait_procs([child, above], 60.0)[1] == []
    assert not folder.exists()


def test_children_of_a_killed_reaper_are_killed_and_others_can_be_started(tmp_path: Path) -> None:
    children = Children(tmp_path, tmp_path)
    sleeps = ("timeit", "-n1", "-r1", "import time; time.sleep(1e6)")
    try:
        children.start("one", 0, *sleeps)
        children.start("two", 3, *sleeps)
        above = psutil.Process(pid_of(children, "one")).parent()
        assert above is not None
        above.kill()
        found = wait_for(children.exits)
        assert {(each.process, each.incarnation, each.code) for each in found} == {
            ("one", 0, -signal.SIGKILL),
            ("two", 3, -signal.SIGKILL),
        }
        children.start("one", 1, *sleeps)
        assert children.is_alive("one")
        children.kill("one")
        assert [each.code for each in wait_for(children.exits)] == [-signal.SIGKILL]
    finally:
        children.end(0.0)


def pid_of(children: Children, name: str) -> int:
    return int(wait_for(lambda: children.is_alive(name) and children.living[name].pid))


def stopped(pid: int) -> psutil.Process:
    """A process that a signal has stopped."""
    process = psutil.Process(pid)
    process.suspend()
    wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
    return process


def test_a_stopped_reaper_tells_of_ends_and_kills(reaper: ReaperClient) -> None:
    killed, ours = start(reaper, WAITS)
    above = psutil.Process(killed).ppid()
    stopped(above)
    # Nobody asks it for anything but the ends.
    os.kill(killed, signal.SIGKILL)
    assert ends(reaper, 1) == {killed: -signal.SIGKILL}
    os.close(ours)
    other, ours = start(reaper, WAITS)
    process = psutil.Process(other)
    stopped(above)
    kill(reaper, other)
    # Nobody listens to it.
    wait_for(lambda: not process.is_running() or process.status() == psutil.STATUS_ZOMBIE)
    os.close(ours)
