"""A template process: `python -m srl.launch.process.template MODULES`, a child of the reaper.

It imports the modules that workers need, and then forks workers. They start at once, and share the
memory of what was imported. Its standard input is a socket to the reaper (`template_process.py`).

It has one thread and computes nothing, because a fork copies only the thread that calls it, and
random numbers, locks and thread pools would be the same in all workers. Users' code is imported
after the fork.
"""

from __future__ import annotations

import faulthandler
import gc
import importlib
import logging
import os
import socket
import sys
import traceback
from typing import NoReturn

from srl.launch.process.interpreter import exit_now, log_to_stderr, preload, reseed
from srl.launch.process.reaper import MARK, begin_session, take_streams
from srl.launch.process.shown_words import PADDING, replace_in_environment, show_command
from srl.launch.process.template_process import MAX_MESSAGE, PID_BYTES, READY
from srl.launch.run.signals import leave_to_parent
from srl.tracebacks import USER_ERRORS

log = logging.getLogger("srl")

ABANDONED = 127
"""The exit code of a forked process that the reaper does not want any more."""
MAX_MARK = 64


def template_command(modules: str) -> list[str]:
    """The command that starts a template with some modules, whose names have commas between."""
    return [sys.executable, "-P", "-m", "srl.launch.process.template", modules, PADDING]


def main() -> int:
    """Imports modules, and forks a process for each message of the reaper until the reaper ends."""
    leave_to_parent()
    faulthandler.enable()
    log_to_stderr()
    with socket.socket(fileno=os.dup(0)) as control:
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.close(nothing)
        preload(sys.argv[1].split(","))
        gc.disable()
        if not is_single_threaded():
            log.error("%s started threads: commands start the workers", sys.argv[1])
            return 1
        control.send(READY.to_bytes(PID_BYTES, "big"))
        while True:
            message, fds, _, _ = socket.recv_fds(control, MAX_MESSAGE, 3)
            if not message:
                return 0
            pid = _fork(message.split(b"\0"), fds, control)
            for fd in fds:
                os.close(fd)
            control.send(pid.to_bytes(PID_BYTES, "big"))


def is_single_threaded() -> bool:
    """Whether this process has one thread; Linux only."""
    return len(os.listdir("/proc/self/task")) == 1


def _fork(words: list[bytes], fds: list[int], control: socket.socket) -> int:
    """Forks a process that runs a command's module, and returns its process id.

    It is forked by another forked process, which ends at once. So its parent is the reaper, to
    which the system reports its end.
    """
    reading, writing = os.pipe()
    reaper = os.getppid()
    between = os.fork()
    if between == 0:
        try:
            pid = os.fork()
            if pid == 0:
                for fd in (reading, writing, control.detach()):
                    os.close(fd)
                _become(words, fds, reaper)
            os.write(writing, pid.to_bytes(PID_BYTES, "big"))
        finally:
            os._exit(ABANDONED)
    os.close(writing)
    os.waitpid(between, 0)
    answer = os.read(reading, PID_BYTES)
    os.close(reading)
    if not answer:
        raise OSError("a process could not be forked")
    return int.from_bytes(answer, "big")


def _become(words: list[bytes], fds: list[int], reaper: int) -> NoReturn:
    """Turns this forked process into what a command starts, and runs it to its end."""
    source, output, mark_pipe = fds
    # Only now is the reaper the parent, and knows of this process.
    mark = os.read(mark_pipe, MAX_MARK)
    if not mark or not begin_session(reaper):
        os._exit(ABANDONED)
    take_streams(source, output)
    for fd in fds:
        os.close(fd)
    replace_in_environment(os.environ.get(MARK, "").encode(), mark)
    os.environ[MARK] = mark.decode()
    show_command(words)
    reseed()
    gc.enable()
    _, _, _, module, *arguments = [os.fsdecode(word) for word in words]
    sys.argv = [module, *arguments]
    code = 1
    try:
        code = importlib.import_module(module).main()
    except USER_ERRORS:
        traceback.print_exc()
    exit_now(code)


if __name__ == "__main__":
    sys.exit(main())
