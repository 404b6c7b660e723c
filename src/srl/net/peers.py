"""The address book of a run: its hosts, the processes of each, and how to reach each bridge.

The head writes it. A copy is a file in each host's folder, which is replaced in one step. A host
that has left it, or has another incarnation in it, counts as dead.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from srl.errors import NetError
from srl.files import write_atomically

PEERS_FILE = "peers.json"
UP_FILE = "bridge.json"


class Peer(msgspec.Struct, frozen=True, kw_only=True):
    """One host of the run."""

    host: str
    incarnation: int = 0
    """Increases when the host joins again, or when its bridge is replaced."""
    address: str = ""
    """Where its bridge listens ("tcp://10.0.0.2:40001"); empty until the bridge listens."""
    public_key: str = ""
    """Public key of its bridge; empty until the bridge listens."""
    processes: tuple[str, ...] = ()
    """The processes that are placed on it."""


class Peers(msgspec.Struct, frozen=True, kw_only=True):
    """The address book: every host of the run, this one included."""

    own: str
    """The name of the host that this copy belongs to."""
    epoch: int = 0
    """Increases with every change."""
    peers: tuple[Peer, ...] = ()

    @property
    def by_host(self) -> dict[str, Peer]:
        """All hosts, by name."""
        return {peer.host: peer for peer in self.peers}

    @property
    def me(self) -> Peer:
        """The host that this copy belongs to."""
        return self.by_host.get(self.own) or Peer(host=self.own)

    @property
    def others(self) -> tuple[Peer, ...]:
        """All hosts except the one that this copy belongs to."""
        return tuple(peer for peer in self.peers if peer.host != self.own)

    @property
    def host_by_process(self) -> dict[str, str]:
        """The host of each process."""
        return {process: peer.host for peer in self.peers for process in peer.processes}

    def hosts_of(self, processes: Iterable[str]) -> tuple[str, ...]:
        """The hosts that run any of the processes, in the order of the address book."""
        wanted = set(processes)
        return tuple(peer.host for peer in self.peers if wanted.intersection(peer.processes))


class BridgeEndpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where a bridge listens, as the bridge writes it for its host's agent."""

    address: str
    public_key: str
    incarnation: int = 0


def write_peers(folder: Path, peers: Peers) -> None:
    """Writes the address book into a host's folder. The caller wakes the bridge afterwards."""
    write_atomically(folder / PEERS_FILE, msgspec.json.encode(peers), private=True)


def read_peers(folder: Path) -> Peers | None:
    """Reads the address book in a host's folder; None before there is one."""
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


def write_bridge_endpoint(folder: Path, up: BridgeEndpoint) -> None:
    """Writes into a host's folder where its bridge listens."""
    write_atomically(folder / UP_FILE, msgspec.json.encode(up), private=True)


def read_bridge_endpoint(folder: Path) -> BridgeEndpoint | None:
    """Reads where a host's bridge listens; None before it does."""
    try:
        return msgspec.json.decode((folder / UP_FILE).read_bytes(), type=BridgeEndpoint)
    except FileNotFoundError:
        return None
