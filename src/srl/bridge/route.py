"""The tree of hosts along which a policy's weights go, from its trainer to all readers.

Every bridge derives the same tree from the address book. The publishing host is the root; the other
hosts follow, sorted by name; each host passes weights on to the next few. So bridges need not
negotiate, and when a host leaves the address book, every bridge knows the new tree.
"""

from __future__ import annotations

from srl.bridge.messenger import PeerMessenger, WeightsRoute


class Route:
    """One policy's tree of hosts, by the current address book."""

    def __init__(self, weights: WeightsRoute, messenger: PeerMessenger) -> None:
        self.spec = weights.spec
        self._trainers = weights.trainers
        self._messenger = messenger
        self.root = ""
        """The host that publishes the weights: that of the first trainer. For a policy without a
        trainer, the first host of the address book."""
        self.hosts: tuple[str, ...] = ()
        """All hosts of the tree, the root first."""
        self._positions: dict[str, int] = {}

    def follow(self) -> None:
        """Builds the tree again from the current address book."""
        peers = self._messenger.peers
        trained = peers.hosts_of(self._trainers[:1])
        self.root = next(iter(trained or (peer.host for peer in peers.peers)), "")
        # A host whose bridge does not listen yet cannot pass weights on.
        up = {peer.host for peer in peers.peers if peer.address and peer.public_key}
        readers = up.intersection(peers.hosts_of(self.spec.readers)) - {self.root}
        self.hosts = (self.root, *sorted(readers))
        self._positions = {host: position for position, host in enumerate(self.hosts)}

    def __contains__(self, host: str) -> bool:
        return host in self._positions

    def above(self, host: str) -> str:
        """The host that passes weights on to this one; "" for the root, and outside the tree."""
        position = self._positions.get(host, 0)
        return self.hosts[(position - 1) // self._messenger.plan.fan_out] if position else ""

    def below(self, host: str) -> tuple[str, ...]:
        """The hosts that this one passes weights on to."""
        position = self._positions.get(host)
        if position is None:
            return ()
        first = position * self._messenger.plan.fan_out + 1
        return self.hosts[first : first + self._messenger.plan.fan_out]

    def reports_to(self, host: str) -> frozenset[str]:
        """The hosts to which this one reports its version: the host above it, and the root."""
        return (
            frozenset((self.root, self.above(host))) if self._positions.get(host) else frozenset()
        )

    def partners(self, host: str) -> frozenset[str]:
        """The hosts with which this one exchanges messages about these weights."""
        if host == self.root:
            return frozenset(self.hosts[1:])
        return self.reports_to(host).union(self.below(host))
