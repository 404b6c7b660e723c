"""Templates: what they fork is like what a command starts, and nobody waits for a dead one."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_reaper import wait_for

from srl.launch.process.children import TEMPLATE_VARIABLE, Children
from srl.launch.process.template import template_command
from srl.launch.process.template_process import PID_BYTES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has subreapers")

PROGRAM = "forked_program"
LIGHT = ("json", "numpy")
SLOW = ("slow_to_import",)


class Host:
    """Children that run the test program, and what they told."""

    def __init__(self, folder: Path) -> None:
        self.children = Children(folder, folder)
        self.folder = folder

    def start(self, name: str, ends: str = "0", modules: tuple[str, ...] = LIGHT) -> None:
        self.children.start(name, 0, PROGRAM, name, ends, modules=modules)

    def told(self, name: str) -> Any:
        """What a process has told about itself, once it runs."""
        log = self.folder / f"{name}.log"

        def complete() -> str:
            self.children.is_alive(name)
            text = log.read_text() if log.exists() else ""
            return text if text.endswith("\n") else ""

        return json.loads(wait_for(complete).splitlines()[0])

    def pid(self, name: str) -> int:
        return int(
            wait_for(lambda: self.children.is_alive(name) and self.children.living[name].pid)
        )

    def codes(self, count: int) -> dict[str, int]:
        """The exit codes of so many processes, once they have ended."""
        found: dict[str, int] = {}

        def ended() -> bool:
            found.update({one.process: one.code for one in self.children.exits()})
            return len(found) == count

        wait_for(ended)
        return found

    def templates(self) -> list[psutil.Process]:
        """The templates, also those that still import."""
        found = []
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.Error):
                if "srl.launch.process.template" in child.cmdline():
                    found.append(child)
        return found

    def template(self) -> psutil.Process:
        """The only template. A process that it has just forked looks like it for a moment."""
        wait_for(lambda: len(self.templates()) == 1)
        return self.templates()[0]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}")
    monkeypatch.delenv(TEMPLATE_VARIABLE, raising=False)
    one = Host(tmp_path)
    yield one
    one.children.end(0.0)


def test_a_forked_process_is_like_one_that_a_command_starts(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.start("forked")
    forked = host.told("forked")
    template = host.template()
    monkeypatch.setenv(TEMPLATE_VARIABLE, "off")
    host.start("started")
    started = host.told("started")
    reaper = template.ppid()
    assert forked["parent"] == started["parent"] == reaper
    *command, spaces, end = forked["command"]
    assert [*command, end] == [word.replace("started", "forked") for word in started["command"]]
    assert not spaces.strip()
    for told in (forked, started):
        assert told["marks"][0] == told["marks"][1]
    assert forked["marks"] != started["marks"]
    assert forked["is_session"]
    same = ("is_session", "descriptors", "collects", "limit", "threads", "folder")
    assert {key: forked[key] for key in same} == {key: started[key] for key in same}
    assert forked["descriptors"] == [0, 1, 2]
    assert forked["output"] == str(tmp_path / "forked.log")
    assert forked["arguments"] == ["forked", "0", ",".join(LIGHT)]
    assert forked["frozen"] > 10_000


def test_exit_codes_signals_and_errors_are_told(host: Host) -> None:
    for name, ends in (("good", "0"), ("odd", "7"), ("bad", "raises"), ("killed", "0")):
        host.start(name, ends)
    for name in ("good", "odd", "bad", "killed"):
        host.pid(name)
    os.kill(host.pid("killed"), signal.SIGKILL)
    host.children.release()
    assert host.codes(4) == {"good": 0, "odd": 7, "bad": 1, "killed": -signal.SIGKILL}
    assert "ValueError: as told" in (host.folder / "bad.log").read_text()


def test_processes_of_one_template_draw_different_numbers(host: Host) -> None:
    for name in ("one", "two"):
        host.start(name, modules=("numpy", "torch"))
    one, two = host.told("one"), host.told("two")
    assert len({*one["drawn"], *two["drawn"]}) == 6
    assert host.template()


def test_a_template_has_one_thread_and_no_descriptors_of_its_own_when_it_forks(host: Host) -> None:
    host.start("one", modules=("numpy", "torch", "srl.algorithms.ppo.learner"))
    host.pid("one")
    template = host.template()
    assert len(os.listdir(f"/proc/{template.pid}/task")) == 1
    held = {int(name) for name in os.listdir(f"/proc/{template.pid}/fd")}
    links = {fd: os.readlink(f"/proc/{template.pid}/fd/{fd}") for fd in held - {0, 1, 2}}
    # Its socket to the reaper is all.
    assert [link.partition(":")[0] for link in links.values()] == ["socket"]


def test_a_template_whose_modules_start_threads_ends_and_commands_start_the_processes(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "threaded.py").write_text(
        "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    host.start("one", "5", modules=("threaded",))
    host.pid("one")
    assert host.templates() == []
    assert "started threads" in (tmp_path / "template.log").read_text()
    host.children.release()
    assert host.codes(1) == {"one": 5}


def test_what_a_template_cannot_import_is_left_to_the_workers(host: Host) -> None:
    host.start("one", modules=("no_such_module", "json"))
    assert host.told("one")["modules"] == ["json"]
    assert host.template()
    assert "no_such_module could not be imported" in (host.folder / "template.log").read_text()


def test_after_a_template_was_killed_another_one_forks(host: Host) -> None:
    host.start("one")
    host.pid("one")
    template = host.template()
    template.kill()
    wait_for(lambda: not template.is_running() or template.status() == psutil.STATUS_ZOMBIE)
    host.start("two")
    assert host.told("two")["frozen"] > 10_000
    other = host.template()
    assert other.pid != template.pid
    # Its processes did not notice.
    assert host.children.is_alive("one")


def test_a_template_that_is_killed_while_it_imports_is_not_waited_for(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is another one tried: it might be killed as well."""
    tried = tmp_path / "tried"
    (tmp_path / "slow_to_import.py").write_text(
        "import os, signal, sys\n"
        "if 'template' in sys.argv[0]:\n"
        f"    open({str(tried)!r}, 'a').write('once ')\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    for name in ("one", "two"):
        host.start(name, "3", modules=SLOW)
        host.pid(name)
    assert host.templates() == []
    host.children.release()
    assert host.codes(2) == {"one": 3, "two": 3}
    assert tried.read_text() == "once "


def test_a_stopped_template_forks(host: Host) -> None:
    host.start("one")
    host.pid("one")
    template = host.template()
    template.suspend()
    wait_for(lambda: template.status() == psutil.STATUS_STOPPED)
    host.start("two")
    assert host.told("two")["parent"] == template.ppid()


def test_a_process_can_be_killed_before_it_was_forked(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "slow_to_import.py").write_text(f"open({str(fifo)!r}).read()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    for name in ("one", "two"):
        host.start(name, modules=SLOW)
    host.children.kill("one")
    assert host.codes(1) == {"one": -signal.SIGKILL}
    assert host.children.is_alive("two")
    with fifo.open("w"):
        pass
    host.pid("two")


def test_a_run_that_ends_while_templates_import_leaves_none(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "slow_to_import.py").write_text(f"open({str(fifo)!r}).read()\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    host.start("one", modules=SLOW)
    wait_for(host.templates)
    host.children.end(0.0)
    assert host.templates() == []


def test_a_forked_daemon_of_a_dead_worker_ends(
    host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has another session, and runs no command: only the mark says whose it is."""
    (tmp_path / "with_daemon.py").write_text(
        "import os, signal\n"
        "def main():\n"
        "    if os.fork() == 0:\n"
        "        os.setsid()\n"
        "        if os.fork() == 0:\n"
        "            os.write(1, b'%d\\n' % os.getpid())\n"
        "            while True: signal.pause()\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "    os.read(0, 1)\n"
        "    return 0\n"
    )
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{os.environ['PYTHONPATH']}")
    for name in ("one", "two"):
        host.children.start(name, 0, "with_daemon", name, modules=LIGHT)
    one, two = (int(host.told(name)) for name in ("one", "two"))
    host.children.kill("one")
    wait_for(lambda: not psutil.pid_exists(one))
    assert psutil.pid_exists(two)


def test_a_template_without_a_reaper_ends() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        template = subprocess.Popen(template_command("json"), stdin=theirs.fileno())
    with ours, template:
        assert ours.recv(PID_BYTES) == bytes(PID_BYTES)
        ours.close()
        assert template.wait(60.0) == 0
