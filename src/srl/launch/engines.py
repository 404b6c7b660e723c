"""What starts agents on other machines: processes, Ray, Slurm, or a person.

An engine knows machines and nothing of training. The head says which hosts it wants and where they
join; the engine sees to it that an agent (`srl worker --join`) runs for each, and starts it again
where it ends. An agent that runs joins by itself and gets everything else from the head.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from srl.resources import ResourceConfig


@dataclass(frozen=True, kw_only=True)
class Join:
    """Where agents find the head."""

    address: str
    """HOST:PORT of its control socket, as other machines reach it."""
    key_file: Path
    """What proves that an agent belongs to the run."""


@dataclass(frozen=True, kw_only=True)
class HostRequest:
    """One host that a run wants."""

    name: str
    kind: str
    """Hosts of one kind run the same kinds of workers and need the same."""
    resources: ResourceConfig


class Engine(Protocol):
    """Starts agents, keeps them running, and ends them."""

    @property
    def bind(self) -> str:
        """The address of this machine on which the head must listen for this engine's agents."""
        ...

    def start(self, join: Join, hosts: Sequence[HostRequest]) -> None:
        """Begins to start an agent for each host and returns at once; also for more of them."""
        ...

    def poll(self) -> list[str]:
        """Starts again what has ended; news since the last time, a line each, for the run's log.

        Raises `RunError` where a host can never be had.
        """
        ...

    def waiting(self) -> dict[str, str]:
        """Hosts whose agents have not been started yet, and what they wait for."""
        ...

    def remove(self, name: str) -> None:
        """Ends one host's agent, for good."""
        ...

    def close(self) -> None:
        """Ends every agent and waits for that."""
        ...


_SRL = "import sys; from srl.cli import main; sys.exit(main())"


def srl_command(*arguments: str) -> list[str]:
    """An `srl` command by this very interpreter, wherever its scripts are."""
    return [sys.executable, "-c", _SRL, *arguments]


def agent_command(join: Join, name: str) -> list[str]:
    """The command that is an agent."""
    where = ("--join", join.address, "--key-file", str(join.key_file))
    return srl_command("worker", *where, "--name", name)
