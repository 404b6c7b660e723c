"""The agent: one on every host of a run but the first. It joins, and runs what the head asks for.

It goes on while the head cannot be reached, for the network may come back. When the head is gone
(its machine answers, and nobody listens there) or stays silent for too long, everything on this
host finishes by itself.
"""

from __future__ import annotations

import logging
import os
import secrets
import select
import signal
import socket
import threading
import time
from pathlib import Path

import msgspec
import zmq

from srl.errors import ConfigError, RunError, SpecError, SrlError
from srl.launch.control import (
    PACKET_LIMITS,
    PROTOCOL,
    Finish,
    Join,
    Left,
    Packet,
    Refusal,
    Trouble,
    Unknown,
    Welcome,
    decode,
    encode,
)
from srl.launch.plan import available_cores
from srl.launch.stay import Stay
from srl.net.inbox import Socket
from srl.net.keys import JoinKey, load_join_key
from srl.net.sockets import Wire

log = logging.getLogger("srl")

ASK_SECONDS = 0.5
TURN_SECONDS = 0.05
SILENT_SECONDS = 2.0
"""After this long without a word from the head the agent looks for it."""
REFUSED = 3
"""So many refused connections in a row mean that the head is gone."""
ORPHAN_SECONDS = 60.0
"""The longest silence of the head that an agent waits for."""
GOODBYE_SECONDS = 1.0
HEAD_GONE = 4
"""The exit code of an agent whose head is gone."""


def run_agent(
    join: str,
    key_file: Path,
    *,
    name: str = "",
    bind: str = "",
    holds: tuple[str, ...] = (),
    wait_seconds: float = 60.0,
) -> int:
    """Joins the run that listens at `join` (HOST:PORT), and serves it until it is over.

    Returns the exit code: 0 when the run is over or sent this host away, 4 when the head is gone.
    """
    host, _, port = join.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--join: expected HOST:PORT, got {join!r}.")
    key = load_join_key(key_file)
    agent = _Agent((host, int(port)), key, name=name, bind=bind, holds=holds)
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, agent.leave)
    try:
        return agent.run(wait_seconds)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        agent.close()


def split_bind(bind: str) -> tuple[str, int]:
    """ADDRESS[:PORT] as both; port 0 is any that is free, and no address this machine's."""
    address, colon, port = bind.partition(":")
    known = not colon or (port.isdecimal() and 0 < int(port) < 65536)
    if not known or address in ("*", "0.0.0.0") or (colon and not address):
        raise ConfigError(
            "--bind: expected one address of this machine, as other hosts reach it, with or "
            f"without a port (10.0.0.2 or 10.0.0.2:5556), got {bind!r}."
        )
    return address, int(port) if colon else 0


def own_address(head: tuple[str, int]) -> str:
    """This machine's address on the way to the head."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(head)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise RunError(
            f"--join: {head[0]}:{head[1]} cannot be reached from here ({error.strerror})."
        ) from None


class _Agent:
    """One agent, which may stay in the run several times."""

    def __init__(
        self,
        head: tuple[str, int],
        key: JoinKey,
        *,
        name: str,
        bind: str,
        holds: tuple[str, ...],
    ) -> None:
        self._head = head
        self._key = key
        address, self._port = split_bind(bind)
        self._bind = address or own_address(head)
        self._join = Join(
            token=secrets.token_hex(8),
            name=name,
            machine=socket.gethostname(),
            pid=os.getpid(),
            cores=available_cores(),
            address=self._bind,
            holds=holds,
            version=PROTOCOL,
        )
        self._wire = Wire()
        self._socket = self._dial()
        self._signal = 0
        self._heard = time.monotonic()
        self._next_look = 0.0
        self._refused = 0

    def leave(self, number: int, frame: object) -> None:
        """A signal handler: leaves at the next turn."""
        self._signal = number

    def _dial(self) -> Socket:
        address = f"tcp://{self._head[0]}:{self._head[1]}"
        return self._wire.dial(address, self._key.pair, self._key.head, limits=PACKET_LIMITS)

    def close(self) -> None:
        """Closes the connection."""
        self._wire.close()

    def run(self, wait_seconds: float) -> int:
        """Joins, serves, and joins again where a stay ended before the run; the exit code."""
        while True:
            stay = self._enter(wait_seconds)
            if stay is None:
                return 0
            try:
                code = self._serve(stay)
            except SrlError as error:
                stay.channel.post(Trouble(str(error)))
                self._say_goodbye(stay)
                raise
            finally:
                stay.close()
            if code is not None:
                return code
            log.warning("joining anew: the head has given this host up")

    # -- joining -----------------------------------------------------------------------------------

    def _enter(self, wait_seconds: float) -> Stay | None:
        """Asks until it is welcome; None if a signal came first."""
        deadline = time.monotonic() + wait_seconds
        reason = "no answer"
        while not self._signal:
            if time.monotonic() > deadline:
                raise RunError(
                    f"could not join {self._head[0]}:{self._head[1]} within {wait_seconds:g} s: "
                    f"{reason}. Check that the run goes on, that the port can be reached from "
                    "here, and that the key file is this run's: one that is resumed has another."
                )
            self._send(Packet("", 0, 0, self._join))
            if not self._socket.poll(int(ASK_SECONDS * 1000)):
                continue
            for packet in self._receive():
                match packet.message:
                    case Welcome() if packet.message.token == self._join.token:
                        log.info("joined %s:%d as %s", *self._head, packet.message.name)
                        # Should it come again, it is another of the same name.
                        token = secrets.token_hex(8)
                        self._join = msgspec.structs.replace(
                            self._join, name=packet.message.name, token=token
                        )
                        return Stay(packet.message, packet.session, self._bind, self._port)
                    case Refusal() if packet.message.token == self._join.token:
                        reason = packet.message.reason
                        if packet.message.final:
                            raise RunError(f"the run does not take this host: {reason}.")
                        time.sleep(ASK_SECONDS)
        return None

    # -- serving -----------------------------------------------------------------------------------

    def _serve(self, stay: Stay) -> int | None:
        """Serves until the end; None if this host is to join anew."""
        self._heard = time.monotonic()
        while not self._signal:
            select.select([int(self._socket.fd), stay.fileno()], [], [], TURN_SECONDS)
            for packet in self._receive():
                if packet.session != stay.channel.session:
                    continue
                self._heard = time.monotonic()
                if isinstance(packet.message, Unknown):
                    return None
                message = stay.channel.receive(packet)
                if isinstance(message, Finish):
                    self._say_goodbye(stay)
                    return 0
                if message is not None:
                    stay.handle(message)
            self._turn(stay)
            if self._is_orphaned():
                log.warning("the head is gone; finishing")
                stay.end(GOODBYE_SECONDS)
                return HEAD_GONE
        stay.channel.post(Trouble(f"was told to leave ({signal.Signals(self._signal).name})"))
        self._say_goodbye(stay)
        return 0

    def _turn(self, stay: Stay) -> None:
        now = time.monotonic()
        stay.turn()
        beat = stay.beat(now)
        packets = stay.channel.packets(now)
        if beat is not None:
            packets.append(stay.channel.state(beat))
        for packet in packets:
            self._send(packet)

    def _is_orphaned(self) -> bool:
        """Whether nobody is there any more; looks for the head when it is silent."""
        now = time.monotonic()
        silent = now - self._heard
        if silent < SILENT_SECONDS:
            self._refused = 0
            return False
        if now >= self._next_look:
            self._next_look = now + 1.0
            self._refused = self._refused + 1 if _is_refused(self._head) else 0
            # A connection that slept through an outage wakes up late; a new one does not.
            self._wire.hang_up(self._socket)
            self._socket = self._dial()
        return self._refused >= REFUSED or silent > ORPHAN_SECONDS

    def _say_goodbye(self, stay: Stay) -> None:
        """Ends what runs here, and stays until the head has heard how."""
        stay.end()
        stay.channel.post(Left())
        deadline = time.monotonic() + GOODBYE_SECONDS
        while stay.channel.backlog and time.monotonic() < deadline:
            for packet in stay.channel.packets(time.monotonic()):
                self._send(packet)
            self._socket.poll(20)
            for packet in self._receive():
                if isinstance(packet.message, Unknown):
                    # Given up: that is what the head does after a goodbye.
                    return
                stay.channel.receive(packet)

    # -- the socket --------------------------------------------------------------------------------

    def _send(self, packet: Packet) -> None:
        try:
            self._socket.send(encode(packet), zmq.NOBLOCK)
        except zmq.Again:
            # A full queue: what must arrive is sent again.
            return

    def _receive(self) -> list[Packet]:
        packets: list[Packet] = []
        while (frames := self._wire.receive(self._socket)) is not None:
            try:
                packets.append(decode(frames[0].bytes))
            except SpecError as error:
                log.warning("%s", error)
        return packets


def _is_refused(head: tuple[str, int]) -> bool:
    """Whether the head's machine says that nobody listens there."""
    try:
        socket.create_connection(head, timeout=0.5).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
