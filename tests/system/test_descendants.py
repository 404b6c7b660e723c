"""Whatever an environment starts ends with the command that started it, and leaves no file."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from daemons import SHARED_MEMORY
from harness import COMMAND, LIMIT_SECONDS, SMALL, Training, runs, wait_for
from test_hosts import join

ENV = f"{Path(__file__).with_name('daemons.py')}:Daemons"

pytestmark = pytest.mark.skipif(
    not SHARED_MEMORY.is_dir(), reason="only Linux gives orphans to an ancestor, and has /dev/shm"
)


class Engines:
    """The engines that a command's environments have started."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._known: dict[int, str] = {}

    def known(self) -> dict[int, str]:
        """All that were ever started: numbers, and their files' names."""
        for path in self.folder.iterdir():
            if path.name.isdecimal():
                self._known[int(path.name)] = path.read_text()
        return self._known

    def left(self) -> list[str]:
        """What is still there of them."""
        numbers = [f"process {pid}" for pid in self.known() if psutil.pid_exists(pid)]
        files = [name for name in self.known().values() if (SHARED_MEMORY / name).exists()]
        return numbers + files

    def remove(self) -> None:
        """Ends what a test has found to be left."""
        for pid, name in self.known().items():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            (SHARED_MEMORY / name).unlink(missing_ok=True)


@pytest.fixture
def engines(tmp_path: Path) -> Iterator[Engines]:
    folder = tmp_path / "engines"
    folder.mkdir()
    found = Engines(folder)
    yield found
    found.remove()


def _arguments(engines: Engines, *more: str) -> tuple[str, ...]:
    few = ("--set", "actor.count=1", "--set", "actor.groups=1", *SMALL)
    return ("--env-arg", f"folder={engines.folder}", *few, *more)


@pytest.mark.parametrize("layout", ["serial", "shared"])
def test_a_run_leaves_no_daemon_and_no_file(
    layout: str, start: Callable[..., Training], engines: Engines
) -> None:
    run = start(ENV, *_arguments(engines, "--layout", layout, "--steps", "512"))
    assert run.wait() == 0, run.printed
    # The launcher looks at the environment, and an actor plays it.
    assert len(engines.known()) == (1 if layout == "serial" else 2)
    assert engines.left() == []


def test_other_commands_leave_none_either(
    tmp_path: Path, start: Callable[..., Training], engines: Engines
) -> None:
    run = Training(tmp_path / "run", ("check", ENV, "--env-arg", f"folder={engines.folder}"))
    assert run.wait() == 0, run.printed
    assert engines.known()
    assert engines.left() == []


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_nor_do_they_when_a_signal_ends_them(
    number: signal.Signals, tmp_path: Path, engines: Engines
) -> None:
    options = ("--env-arg", f"folder={engines.folder}", "--env-arg", "hangs=true")
    run = Training(tmp_path / "run", ("check", ENV, *options))
    try:
        wait_for(engines.known, f"an engine: {run.printed}")
        run.process.send_signal(number)
        assert run.wait() == 128 + number
        assert run.printed == f"srl: ended by {number.name}.\n"
        assert engines.left() == []
    finally:
        run.kill()


def test_a_command_leaves_alone_what_its_shell_has_started(tmp_path: Path) -> None:
    """The shell turns into the command, which has the shell's children from then on."""
    listed = tmp_path / "listed"
    script = 'exec "$0" -c "$1" list > >(cat > "$2.part"; mv "$2.part" "$2")'
    command = ("bash", "-c", script, sys.executable, COMMAND, str(listed))
    assert subprocess.run(command, check=False).returncode == 0
    wait_for(listed.exists, "what reads its output to finish")
    assert "cartpole" in listed.read_text()


def test_a_killed_launcher_takes_its_workers_and_their_engines_along(
    start: Callable[..., Training], engines: Engines, shm: Path
) -> None:
    run = start(ENV, *_arguments(engines, "--layout", "shared", "--steps", "1e9"))
    run.wait_for_updates()
    workers = run.workers()
    actor = workers["actor-0"]
    (engine,) = [pid for pid, name in engines.known().items() if name.endswith(f"-{actor.pid}")]
    # Nobody tells a stopped process anything.
    actor.suspend()
    run.process.kill()
    run.process.wait()
    assert psutil.wait_procs(list(workers.values()), LIMIT_SECONDS)[1] == []
    wait_for(lambda: not psutil.pid_exists(engine), "the actor's engine")
    wait_for(lambda: not (SHARED_MEMORY / engines.known()[engine]).exists(), "its file")
    wait_for(lambda: not list(shm.iterdir()), "the run's folder")


def test_a_killed_workers_engine_ends_while_the_run_goes_on(
    start: Callable[..., Training], engines: Engines
) -> None:
    arguments = _arguments(
        engines, "--layout", "shared", "--steps", "1e9", "--env-arg", "kept=true"
    )
    run = start(ENV, *arguments)
    run.wait_for_updates()
    actor = run.workers()["actor-0"]
    (engine,) = [pid for pid, name in engines.known().items() if name.endswith(f"-{actor.pid}")]
    actor.kill()
    wait_for(lambda: not psutil.pid_exists(engine), "the actor's engine")
    wait_for(lambda: not (SHARED_MEMORY / engines.known()[engine]).exists(), "its file")
    run.wait_for_updates()


@pytest.mark.machines
def test_a_killed_agent_takes_stopped_workers_and_its_folder_along(
    start: Callable[..., Training], shm: Path
) -> None:
    run = start(
        "CartPole-v1", "--layout", "remote", "--steps", "1e9", *SMALL,
        "--set", "actor.count=2", "--set", "hosts={far: [actor]}",
        "--launcher", "manual",
    )  # fmt: skip
    wait_for((run.run_dir / "head.json").exists, "a head")
    agent = join(run.run_dir, "--name", "far")
    try:
        run.wait_for_updates()
        below = psutil.Process(agent.pid).children(recursive=True)
        folders = set(shm.iterdir())
        for process in below:
            if runs(process, "srl.launch.process.worker"):
                process.suspend()
        agent.kill()
        agent.wait()
        psutil.wait_procs(below, LIMIT_SECONDS)
        assert [process for process in below if process.is_running()] == []
        wait_for(lambda: len(list(shm.iterdir())) < len(folders), "its folder")
    finally:
        agent.kill()
        agent.communicate()
