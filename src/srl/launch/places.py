"""Where processes run: a place starts them, tells them things, and says how they ended.

The launcher watches processes through places only, so that one at home (`local.LocalPlace`) and one
on another host (`remote_place.RemotePlace`) are the same to it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Protocol

import msgspec

from srl.launch.last_words import Failure

HOME = "home"
"""The host that the launcher is on."""


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended."""

    process: str
    incarnation: int
    pid: int
    code: int
    """As `subprocess` has it: below 0 is the signal that killed it."""
    failure: Failure | None = None
    """Its last words, if it could say any."""
    lost: str = ""
    """Why its host is gone, and the process with it."""

    @property
    def how(self) -> str:
        """In words."""
        if self.lost:
            return f"was lost with its host ({self.lost})"
        if self.code < 0:
            known = {number.value: number.name for number in signal.Signals}
            return f"was killed ({known.get(-self.code, f'signal {-self.code}')})"
        return f"exited with {self.code}" if self.code else "left with its host"


class Place(Protocol):
    """One host, as the launcher sees it."""

    name: str

    @property
    def processes(self) -> Iterable[str]:
        """Those that were started here and whose end was not told yet."""
        ...

    def start(self, process: str, incarnation: int, modules: tuple[str, ...]) -> None:
        """Starts a process; it imports the modules while it waits for its orders."""
        ...

    def order(self, process: str, checkpoint: str) -> None:
        """Gives a process its part of the plan, and the checkpoint that it goes on from."""
        ...

    def kill(self, process: str) -> None:
        """Ends a process at once."""
        ...

    def leave(self, process: str) -> None:
        """Lets a process finish by itself, while the run goes on."""
        ...

    def exits(self) -> list[Exit]:
        """Processes that have ended since the last time, each told once."""
        ...

    def is_alive(self, process: str) -> bool:
        """Whether a process was started here and has not ended."""
        ...

    def pid(self, process: str) -> int:
        """A process's number on its host; 0 while it is not known."""
        ...

    def is_stopped(self, process: str) -> bool:
        """Whether the system has stopped a process (SIGSTOP, a debugger)."""
        ...
