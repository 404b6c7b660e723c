"""Backends: they start agents on other machines, as processes, by Ray, by Slurm or by a person.

A backend knows about machines, and nothing about training. The head gives it the wanted hosts and
the address where agents join. The backend starts an agent (`srl worker --join`) for each host, and
starts it again if it ends. The agent joins by itself, and gets everything else from the head.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from srl.resources import ResourceConfig

RETURN_SECONDS = 10.0
"""`Backend.return_seconds` of backends that start agents again at once."""


@dataclass(frozen=True, kw_only=True)
class JoinAddress:
    """The address of the head, and the key to join."""

    address: str
    """HOST:PORT of the head's control socket, as other machines reach it."""
    key_file: Path
    """The file of the join key, which proves that an agent belongs to the run."""


@dataclass(frozen=True, kw_only=True)
class HostRequest:
    """One host that a run wants."""

    name: str
    kind: str
    """Hosts of one kind run the same groups of workers and need the same resources."""
    resources: ResourceConfig


class Backend(Protocol):
    """Starts agents, keeps them running, and ends them."""

    @property
    def bind(self) -> str:
        """The address of this machine on which the head must listen for agents of this backend."""
        ...

    @property
    def return_seconds(self) -> float:
        """The longest usual time until an agent that has ended is started again and has joined.

        0 if agents are not started again.
        """
        ...

    def start(self, join: JoinAddress, hosts: Sequence[HostRequest]) -> None:
        """Begins to start an agent for each host, and returns at once. May be called again."""
        ...

    def poll(self) -> list[str]:
        """Starts ended agents again; returns news since the last call, one line each, for the log.

        Raises `RunError` if a host will never be available.
        """
        ...

    def waiting(self) -> dict[str, str]:
        """Hosts whose agents have not started yet, and what each one waits for."""
        ...

    def remove(self, name: str) -> None:
        """Ends one host's agent and does not start it again."""
        ...

    def close(self) -> None:
        """Ends every agent and waits until they have ended."""
        ...


_SRL = "import sys; from srl.cli import main; sys.exit(main())"


def srl_command(*arguments: str) -> list[str]:
    """The command line of an `srl` command that runs in this same Python interpreter."""
    return [sys.executable, "-P", "-c", _SRL, *arguments]


def agent_command(join: JoinAddress, name: str) -> list[str]:
    """The command line that starts an agent."""
    where = ("--join", join.address, "--key-file", str(join.key_file))
    return srl_command("worker", *where, "--name", name)
