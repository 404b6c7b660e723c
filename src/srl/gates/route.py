"""The way of a policy's weights from the host that trains it to all that read them: a tree.

Every gate finds the tree by itself from the address book: the publishing host, then the others by
name, each above the next few. So nothing is agreed upon, and when a host leaves the book all know
who takes its place.
"""

from __future__ import annotations

from srl.gates.post import Post, Weights


class Route:
    """One policy's tree, by the address book of the moment."""

    def __init__(self, weights: Weights, post: Post) -> None:
        self.spec = weights.spec
        self._trainers = weights.trainers
        self._post = post
        self.root = ""
        """The host that the weights come from: their first trainer's, or for a policy that nobody
        trains the first one of the book."""
        self.hosts: tuple[str, ...] = ()
        """All that weights reach, the root first."""
        self._places: dict[str, int] = {}

    def follow(self) -> None:
        """The address book has changed."""
        peers = self._post.peers
        trained = peers.hosts_of(self._trainers[:1])
        self.root = next(iter(trained or (peer.host for peer in peers.peers)), "")
        # A host whose gate does not listen yet could pass nothing on.
        up = {peer.host for peer in peers.peers if peer.address and peer.public_key}
        readers = up.intersection(peers.hosts_of(self.spec.readers)) - {self.root}
        self.hosts = (self.root, *sorted(readers))
        self._places = {host: place for place, host in enumerate(self.hosts)}

    def __contains__(self, host: str) -> bool:
        return host in self._places

    def above(self, host: str) -> str:
        """The host that passes weights on to this one; "" for the root, and for a stranger."""
        place = self._places.get(host, 0)
        return self.hosts[(place - 1) // self._post.plan.fan_out] if place else ""

    def below(self, host: str) -> tuple[str, ...]:
        """The hosts that it passes them on to."""
        place = self._places.get(host)
        if place is None:
            return ()
        first = place * self._post.plan.fan_out + 1
        return self.hosts[first : first + self._post.plan.fan_out]

    def told(self, host: str) -> frozenset[str]:
        """The hosts that want to know what this one has: the one above it, and the root."""
        return frozenset((self.root, self.above(host))) if self._places.get(host) else frozenset()

    def partners(self, host: str) -> frozenset[str]:
        """The hosts that this one talks to about these weights."""
        if host == self.root:
            return frozenset(self.hosts[1:])
        return self.told(host).union(self.below(host))
