"""An environment that starts an engine as a daemon: forked twice, in a session of its own, without
an environment, deaf to SIGTERM, with a file in shared memory that it never removes."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from gymnasium.envs.classic_control import CartPoleEnv

SHARED_MEMORY = Path("/dev/shm")
_ENGINE = """
import mmap, os, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
name, folder = sys.argv[1:]
fd = os.open("/dev/shm/" + name, os.O_RDWR | os.O_CREAT, 0o600)
os.ftruncate(fd, 4096)
held = mmap.mmap(fd, 4096)
os.close(fd)
note = folder + "/" + str(os.getpid())
open(note + ".part", "w").write(name)
os.rename(note + ".part", note)
while True:
    signal.pause()
"""
_started: set[int] = set()


def start_engine(folder: str, environment: dict[str, str]) -> None:
    """Starts the engine and waits until it has told its number and its file in `folder`."""
    name = f"engine-{Path(folder).parent.name}-{os.getpid()}"
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        while name not in [path.read_text() for path in Path(folder).glob("*[0-9]")]:
            time.sleep(0.005)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    command = [sys.executable, "-I", "-S", "-c", _ENGINE, name, folder]
    os.execve(sys.executable, command, environment)


class Daemons(CartPoleEnv):
    """CartPole, with one engine for each process that makes it; `kept`: the engine keeps this
    process's environment; `hangs`: no episode ever begins."""

    def __init__(self, folder: str, kept: bool = False, hangs: bool = False, **more: Any) -> None:
        super().__init__(**more)
        self._hangs = hangs
        if os.getpid() not in _started:
            _started.add(os.getpid())
            start_engine(folder, dict(os.environ) if kept else {})

    def reset(self, **options: Any) -> Any:
        while self._hangs:
            time.sleep(0.01)
        return super().reset(**options)
