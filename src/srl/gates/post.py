"""What the parts of a gate share: the plan, the address book, the way out, and the clock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from srl.errors import SpecError
from srl.gates.counters import GateCounters
from srl.gates.messages import Hello, Message
from srl.net.framing import Body, Framing, Packable
from srl.net.peers import Peers
from srl.services.parameters import ParameterSpec
from srl.streams.inference import InferenceSpec
from srl.streams.sample import SampleSpec

log = logging.getLogger("srl.gate")

RESEND_SECONDS = 0.5
"""What was not answered for so long is sent again; twice as long after each time, ..."""
MAX_RESEND_SECONDS = 4.0
"""... up to this."""
HELLO_SECONDS = 0.25
_Known = TypeVar("_Known")


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """A sample stream, and the policy whose age it may bound."""

    spec: SampleSpec
    policy: str


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """A policy's weights, and the processes that train it."""

    spec: ParameterSpec
    trainers: tuple[str, ...]


class GatePlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a gate needs of a run's plan: the streams that may cross hosts."""

    inference: tuple[InferenceSpec, ...] = ()
    samples: tuple[Samples, ...] = ()
    weights: tuple[Weights, ...] = ()
    fan_out: int = 4
    """Hosts that each host passes weights on to."""


class LinksLike(Protocol):
    """What a gate needs of its links; `net.links.Links` has it."""

    def send(self, host: str, frames: list[memoryview | bytes]) -> bool:
        """Hands a message over, or says that it cannot now."""
        ...

    def redial(self, host: str) -> None:
        """Gives up a connection, for a new one."""
        ...


class Part(Protocol):
    """One side of one stream."""

    @property
    def busy(self) -> bool:
        """Whether it waits for an answer, and has to look at the clock."""
        ...

    def follow(self, gone: frozenset[str]) -> None:
        """The address book has changed; `gone` hosts are not what they were."""
        ...

    def turn(self, now: float) -> None:
        """Sends what is to be sent."""
        ...


def one_of(known: Sequence[_Known], number: int) -> _Known:
    """The stream or policy of a number that a message names."""
    if number >= len(known):
        raise SpecError(f"message: there is no stream {number} in this run's plan.")
    return known[number]


class Timer:
    """When to send something again: later each time, for as long as nothing is heard."""

    __slots__ = ("_most", "_seconds", "due", "sent")

    def __init__(
        self, now: float, seconds: float = RESEND_SECONDS, most: float = MAX_RESEND_SECONDS
    ) -> None:
        self._seconds = seconds
        self._most = most
        self.sent = now
        """When it was last sent."""
        self.due = now + seconds

    def again(self, now: float) -> None:
        """It was sent once more."""
        self._seconds = max(self._seconds, min(2 * self._seconds, self._most))
        self.sent = now
        self.due = now + self._seconds


class Post:
    """The way out to other gates, and who is where."""

    def __init__(
        self,
        plan: GatePlan,
        links: LinksLike,
        counters: GateCounters,
        *,
        packs: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.plan = plan
        self.counters = counters
        self.clock = clock
        self.peers = Peers(own="")
        self.homes: dict[str, str] = {}
        """The host of each process."""
        self.former_homes: dict[str, str] = {}
        """The same, by the address book before this one."""
        self._links = links
        self._packs = packs
        self._framing: Framing[Message] = Framing(Message, plan)
        self._greeted: dict[str, bool] = {}
        """Hosts whose plan is known to be the same, and whether both ends pack."""
        self._hosts: dict[int, list[str]] = {}
        self._greeting: dict[str, tuple[Timer, Timer]] = {}
        """Hosts that were not greeted yet: when to dial anew, and when to say hello again."""
        self._refused: set[str] = set()
        """Hosts with another plan."""

    @property
    def own(self) -> str:
        """The name of this host."""
        return self.peers.own

    def update(self, peers: Peers, gone: frozenset[str]) -> None:
        """Takes over a newer address book."""
        self.former_homes = self.homes
        self.peers, self.homes = peers, peers.homes
        self._hosts.clear()
        for host in gone:
            self._greeted.pop(host, None)
            self._greeting.pop(host, None)
            self._refused.discard(host)

    def decode(self, frames: list[memoryview]) -> tuple[Message, Body]:
        """A received message; SpecError if it is none."""
        return self._framing.decode(frames)

    def send(
        self, host: str, message: Message, arrays: Iterable[np.ndarray | memoryview] = (),
        pixels: Iterable[bool] | None = None,
    ) -> bool:  # fmt: skip
        """Sends to a host that was greeted; False if that is not possible now."""
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
        """Greeted hosts that run any of the processes, which are those of an end in the plan."""
        # By identity: ends may have thousands of processes, and this is asked at every turn.
        found = self._hosts.get(id(processes))
        if found is None:
            found = [host for host in self.peers.hosts_of(processes) if host in self._greeted]
            self._hosts[id(processes)] = found
        return found

    def at_home(self, processes: Iterable[str]) -> list[int]:
        """Which of the processes are on this host."""
        return [i for i, name in enumerate(processes) if self.homes.get(name) == self.own]

    # -- greeting --------------------------------------------------------------------------------

    def greet(self, hosts: Iterable[str], now: float) -> None:
        """Says hello to hosts that have not said it yet; dials anew if it takes long."""
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
        """Whether somebody has not said hello yet."""
        return bool(self._greeting)

    def greeted(self, host: str) -> bool:
        """Whether a host has said hello, with the same plan."""
        return host in self._greeted

    @property
    def known_hosts(self) -> list[str]:
        """Hosts that were greeted."""
        return list(self._greeted)

    def hello(self, host: str, message: Hello) -> None:
        """A host has said hello."""
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
            "others (%.12s). Start it with the same version of SRL, and let it join anew.",
            *(host, self._framing.digest, digest),
        )
        # So that it knows, too.
        self._say_hello(host)

    def _say_hello(self, host: str) -> None:
        hello = Hello(
            self.peers.me.incarnation, self._framing.digest, self._packs, host in self._greeted
        )
        self._links.send(host, self._framing.encode(hello))


def _marked(views: Iterator[memoryview], pixels: Iterable[bool]) -> Iterator[memoryview | Packable]:
    for view, is_pixels in zip(views, pixels, strict=True):
        yield Packable(view) if is_pixels else view
