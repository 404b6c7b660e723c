"""Peers: the hosts of a run as its head sees them, which host runs which process, and how to reach
each host's gate.

The address book is a file in each host's folder, written whole and in one move. A host that is not
in it, or is there with another incarnation, is dead to those who knew it.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from srl.errors import NetError
from srl.files import write_whole

PEERS_FILE = "peers.json"
UP_FILE = "gate.json"


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One host of the run."""

    host: str
    incarnation: int = 0
    """Grows when the host joins again, or when its gate is replaced."""
    address: str = ""
    """Where its gate listens ("tcp://10.0.0.2:40001"); empty before it does."""
    public_key: str = ""
    """Its gate's key."""
    processes: tuple[str, ...] = ()
    """The processes that are placed there."""


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """The address book, the own host included."""

    own: str
    """The name of the host whose copy this is."""
    epoch: int = 0
    """Grows with every change."""
    peers: tuple[Peer, ...] = ()

    @property
    def by_host(self) -> dict[str, Peer]:
        """Every host by its name."""
        return {peer.host: peer for peer in self.peers}

    @property
    def me(self) -> Peer:
        """The own host."""
        return self.by_host.get(self.own) or Peer(host=self.own)

    @property
    def others(self) -> tuple[Peer, ...]:
        """Every host but the own one."""
        return tuple(peer for peer in self.peers if peer.host != self.own)

    @property
    def homes(self) -> dict[str, str]:
        """The host of each process."""
        return {process: peer.host for peer in self.peers for process in peer.processes}

    def hosts_of(self, processes: Iterable[str]) -> tuple[str, ...]:
        """The hosts that run any of the processes, in the order of the book."""
        wanted = set(processes)
        return tuple(peer.host for peer in self.peers if wanted.intersection(peer.processes))


class GateUp(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate says once it listens."""

    address: str
    public_key: str
    incarnation: int = 0


def write_peers(folder: Path, peers: Peers) -> None:
    """Puts the address book into a host's folder; whoever does rings the gate afterwards."""
    write_whole(folder / PEERS_FILE, msgspec.json.encode(peers), private=True)


def read_peers(folder: Path) -> Peers | None:
    """The address book of a host's folder, or None before there is one."""
    try:
        data = (folder / PEERS_FILE).read_bytes()
    except FileNotFoundError:
        return None
    try:
        return msgspec.json.decode(data, type=Peers)
    except msgspec.DecodeError as error:
        raise NetError(
            f"{folder / PEERS_FILE}: expected an address book, got something else ({error})."
        ) from None


def write_gate_up(folder: Path, up: GateUp) -> None:
    """Says in a host's folder that its gate listens."""
    write_whole(folder / UP_FILE, msgspec.json.encode(up), private=True)


def read_gate_up(folder: Path) -> GateUp | None:
    """Where a host's gate listens, or None before it does."""
    try:
        return msgspec.json.decode((folder / UP_FILE).read_bytes(), type=GateUp)
    except FileNotFoundError:
        return None
