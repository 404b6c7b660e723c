"""Nodes: a node starts the processes of one host, gives them orders, and reports their ends.

The head controls processes through nodes only. So a process on its own host
(`local_node.LocalNode`) and one on another host (`remote_node.RemoteNode`) look the same to it.
"""

from __future__ import annotations

import signal
from collections.abc import Iterable
from typing import Protocol

import msgspec

from srl.launch.process.failure_report import Failure
from srl.launch.process.process_state import Condition

HEAD_HOST = "home"
"""The name of the head's own host."""


class Exit(msgspec.Struct, frozen=True, kw_only=True):
    """How a process ended."""

    process: str
    incarnation: int
    pid: int
    code: int
    """The exit code as `subprocess` defines it: below 0 is the signal that killed the process."""
    failure: Failure | None = None
    """Its failure report, if it could write one."""
    lost: str = ""
    """Why its host, and the process with it, was lost; empty otherwise."""

    @property
    def how(self) -> str:
        """How it ended, in words for the user."""
        if self.lost:
            return f"was lost with its host ({self.lost})"
        if self.code < 0:
            known = {number.value: number.name for number in signal.Signals}
            return f"was killed ({known.get(-self.code, f'signal {-self.code}')})"
        return f"exited with {self.code}" if self.code else "left with its host"


class Node(Protocol):
    """The processes of one host, as the head controls them."""

    name: str

    @property
    def processes(self) -> Iterable[str]:
        """Processes that were started here and whose end was not reported yet."""
        ...

    def start(self, process: str, incarnation: int, modules: tuple[str, ...]) -> None:
        """Starts a process; it imports the modules while it waits for its orders."""
        ...

    def order(self, process: str, checkpoint: str) -> None:
        """Gives a process its part of the plan, and the checkpoint from which it continues."""
        ...

    def kill(self, process: str) -> None:
        """Kills a process."""
        ...

    def leave(self, process: str) -> None:
        """Tells a process to finish by itself, while the run goes on."""
        ...

    def exits(self) -> list[Exit]:
        """Processes that have ended since the last call, each reported once."""
        ...

    def is_alive(self, process: str) -> bool:
        """Whether a process was started here and has not ended."""
        ...

    def pid(self, process: str) -> int:
        """The process id of a process on its host; 0 while it is not known."""
        ...

    def condition(self, process: str) -> Condition:
        """What the system reports about a silent process."""
        ...
