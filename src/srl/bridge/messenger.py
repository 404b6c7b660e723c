"""What the parts of a bridge share: the plan, the address book, sending, and the clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from srl.bridge.counters import BridgeCounters
from srl.bridge.messages import Hello, Message
from srl.errors import SpecError
from srl.net.framing import Body, Framing, Packable
from srl.net.peers import Peers
from srl.services.parameters import ParameterSpec
from srl.streams.inference import InferenceSpec
from srl.streams.sample import SampleSpec

log = logging.getLogger("srl.bridge")

RESEND_SECONDS = 0.5
"""A message without an answer is sent again after this time. The time doubles after each, ..."""
MAX_RESEND_SECONDS = 4.0
"""... up to this."""
HELLO_SECONDS = 0.25
"""How often a bridge says hello to a host that has not answered yet."""
_Item = TypeVar("_Item")


class SampleRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A sample stream, and the policy whose age limits when a fragment may begin."""

    spec: SampleSpec
    policy: str


class WeightsRoute(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's weights, and the processes that train it."""

    spec: ParameterSpec
    trainers: tuple[str, ...]


class BridgePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a bridge needs of a run's plan: the streams that may cross hosts."""

    inference: tuple[InferenceSpec, ...] = ()
    samples: tuple[SampleRoute, ...] = ()
    weights: tuple[WeightsRoute, ...] = ()
    fan_out: int = 4
    """Number of hosts that each host passes weights on to."""


class Sender(Protocol):
    """The methods of `net.links.Links` that a bridge's parts use."""

    def send(self, host: str, frames: list[memoryview | bytes]) -> bool:
        """Sends a message; False if that is not possible now."""
        ...

    def redial(self, host: str) -> None:
        """Closes the connection to a host and opens a new one."""
        ...


class BridgePart(Protocol):
    """A part of a bridge, such as one side of one stream."""

    @property
    def busy(self) -> bool:
        """Whether it waits for an answer, so that the bridge must wake soon."""
        ...

    def follow(self, gone: frozenset[str]) -> None:
        """Applies a new address book.

        `gone`: hosts that have left it, or whose incarnation or key is another one now.
        """
        ...

    def turn(self, now: float) -> None:
        """Sends what is due."""
        ...


def one_of(known: Sequence[_Item], number: int) -> _Item:
    """The item for a stream or policy number that a message names; SpecError if there is none."""
    if number >= len(known):
        raise SpecError(f"message: there is no stream {number} in this run's plan.")
    return known[number]


class Timer:
    """Says when to send something again: the pause grows each time until an answer comes."""

    __slots__ = ("_max_seconds", "_seconds", "due", "sent")

    def __init__(
        self, now: float, seconds: float = RESEND_SECONDS, most: float = MAX_RESEND_SECONDS
    ) -> None:
        self._seconds = seconds
        self._max_seconds = most
        self.sent = now
        """Time of the last sending."""
        self.due = now + seconds

    def again(self, now: float) -> None:
        """Notes that it was sent again."""
        self._seconds = max(self._seconds, min(2 * self._seconds, self._max_seconds))
        self.sent = now
        self.due = now + self._seconds


class PeerMessenger:
    """Sends messages to other bridges, and knows the host of each process."""

    def __init__(
        self,
        plan: BridgePlan,
        links: Sender,
        counters: BridgeCounters,
        *,
        packs: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.counters = counters
        self.clock = clock
        self.peers = Peers(own="")
        self.host_by_process: dict[str, str] = {}
        """The host of each process."""
        self.former_host_by_process: dict[str, str] = {}
        """The host of each process in the previous address book."""
        self._links = links
        self._packs = packs
        self._framing: Framing[Message] = Framing(Message, plan)
        self._greeted: dict[str, bool] = {}
        """Hosts that have said hello with the same plan, and whether both ends pack."""
        self._hosts: dict[int, list[str]] = {}
        """Cache of `hosts`, by the identity of its argument."""
        self._greeting: dict[str, tuple[Timer, Timer]] = {}
        """Hosts that have not said hello yet: when to dial again, and when to say hello again."""
        self._refused: set[str] = set()
        """Hosts that have another plan."""

    @property
    def own(self) -> str:
        """The name of this host."""
        return self.peers.own

    def update(self, peers: Peers, gone: frozenset[str]) -> None:
        """Applies a newer address book."""
        self.former_host_by_process = self.host_by_process
        self.peers, self.host_by_process = peers, peers.host_by_process
        self._hosts.clear()
        for host in gone:
            self._greeted.pop(host, None)
            self._greeting.pop(host, None)
            self._refused.discard(host)

    def decode(self, frames: list[memoryview]) -> tuple[Message, Body]:
        """Decodes a received message; SpecError if it is malformed."""
        return self._framing.decode(frames)

    def send(
        self, host: str, message: Message, arrays: Iterable[np.ndarray | memoryview] = (),
        pixels: Iterable[bool] | None = None,
    ) -> bool:  # fmt: skip
        """Sends a message to a host that has said hello; False if that is not possible now."""
        packs = self._greeted.get(host)
        if packs is None:
            return False
        views = (a.data if isinstance(a, np.ndarray) else a for a in arrays)
        packed = packs and pixels is not None
        parts = _marked(views, pixels or ()) if packed else views
        return self._links.send(host, self._framing.encode(message, parts, packed=packed))

    def packs(self, host: str) -> bool:
        """Whether pixels are packed on their way to a host."""
        return self._greeted.get(host, False)

    def hosts(self, processes: tuple[str, ...]) -> list[str]:
        """Hosts that have said hello and run any of the processes (one end of a stream in the
        plan)."""
        # By identity: an end may have thousands of processes, and every turn calls this.
        found = self._hosts.get(id(processes))
        if found is None:
            found = [host for host in self.peers.hosts_of(processes) if host in self._greeted]
            self._hosts[id(processes)] = found
        return found

    def indices_here(self, processes: Iterable[str]) -> list[int]:
        """The indices of the processes that are on this host."""
        return [i for i, name in enumerate(processes) if self.host_by_process.get(name) == self.own]

    # -- greeting --------------------------------------------------------------------------------

    def greet(self, hosts: Iterable[str], now: float) -> None:
        """Says hello to hosts that have not answered yet; dials again if that takes long."""
        for host in hosts:
            if host in self._greeted or host in self._refused:
                continue
            redial, again = self._greeting.setdefault(host, (Timer(now), Timer(now, 0.0)))
            if now >= redial.due:
                redial.again(now)
                self._links.redial(host)
            if now >= again.due:
                again.due = now + HELLO_SECONDS
                self._say_hello(host)

    @property
    def is_greeting(self) -> bool:
        """Whether any needed host has not said hello yet."""
        return bool(self._greeting)

    def greeted(self, host: str) -> bool:
        """Whether a host has said hello with the same plan."""
        return host in self._greeted

    @property
    def known_hosts(self) -> list[str]:
        """Hosts that have said hello with the same plan."""
        return list(self._greeted)

    def on_hello(self, host: str, message: Hello) -> None:
        """Handles the hello of another host."""
        peer = self.peers.by_host.get(host)
        if peer is None or peer.incarnation != message.incarnation:
            return
        if message.digest != self._framing.digest:
            self._refuse(host, message.digest)
            return
        self._greeted[host] = self._packs and message.packs
        self._greeting.pop(host, None)
        self._hosts.clear()
        if not message.heard:
            self._say_hello(host)

    def _refuse(self, host: str, digest: str) -> None:
        if host in self._refused:
            return
        self._refused.add(host)
        self._greeting.pop(host, None)
        self.counters.add("rejected")
        log.error(
            "host %r is refused: expected the streams and messages of this run's plan (%.12s), got "
            "others (%.12s). Start it with the same version of SRL, and let it join again.",
            *(host, self._framing.digest, digest),
        )
        # So that the other host sees the difference, too.
        self._say_hello(host)

    def _say_hello(self, host: str) -> None:
        hello = Hello(
            self.peers.me.incarnation, self._framing.digest, self._packs, host in self._greeted
        )
        self._links.send(host, self._framing.encode(hello))


def _marked(views: Iterator[memoryview], pixels: Iterable[bool]) -> Iterator[memoryview | Packable]:
    for view, is_pixels in zip(views, pixels, strict=True):
        yield Packable(view) if is_pixels else view
