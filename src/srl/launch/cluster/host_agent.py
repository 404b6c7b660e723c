"""The host agent: joins a run, and runs the processes that the head asks for.

There is one on every host of a run except the head's. It goes on while it cannot reach the head,
because the network may come back. It ends everything on its host when the head is gone: the head's
machine refuses connections, or the head is silent for too long.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import socket
import threading
import time
from pathlib import Path

import msgspec
import zmq

from srl.errors import ConfigError, RunError, SpecError, SrlError
from srl.launch.cluster.agent_session import AgentSession
from srl.launch.cluster.protocol import (
    PACKET_LIMITS,
    PROTOCOL,
    AgentLeft,
    AgentProblem,
    Finish,
    JoinRequest,
    Packet,
    Refusal,
    Unknown,
    Welcome,
    decode,
    encode,
)
from srl.launch.plan.build import available_cores
from srl.launch.process.descendants import signal_at_parents_death
from srl.launch.process.descriptors import raise_descriptor_limit, wait_readable
from srl.net.keys import JoinKey, load_join_key
from srl.net.receiver import Socket
from srl.net.sockets import Wire

log = logging.getLogger("srl")

ASK_SECONDS = 0.5
"""Time between two requests to join."""
TURN_SECONDS = 0.05
SILENT_SECONDS = 2.0
"""After this much silence of the head, the agent tests whether the head still listens."""
MAX_REFUSALS = 3
"""After this many refused connections in a row, the head counts as gone."""
MAX_SILENCE_SECONDS = 60.0
"""After this much silence, the head counts as gone in any case."""
LEAVE_SECONDS = 1.0
"""How long a leaving agent waits for the head, or for its processes if the head is gone."""
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

    Returns the exit code: 0 if the run is over or a signal told the agent to leave, 4 if the head
    is gone.
    """
    host, _, port = join.rpartition(":")
    if not host or not port.isdecimal():
        raise ConfigError(f"--join: expected HOST:PORT, got {join!r}.")
    key = load_join_key(key_file)
    raise_descriptor_limit()
    # A stopped agent continues when its parent is killed, so that it can end itself.
    signal_at_parents_death(signal.SIGCONT)
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
    """Splits ADDRESS[:PORT]. Port 0 means any free port; an empty address means this machine's."""
    address, colon, port = bind.partition(":")
    known = not colon or (port.isdecimal() and 0 < int(port) < 65536)
    if not known or address in ("*", "0.0.0.0") or (colon and not address):
        raise ConfigError(
            "--bind: expected one address of this machine, as other hosts reach it, with or "
            f"without a port (10.0.0.2 or 10.0.0.2:5556), got {bind!r}."
        )
    return address, int(port) if colon else 0


def own_address(head: tuple[str, int]) -> str:
    """The address of this machine's network interface that leads to the head."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(head)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise RunError(
            f"--join: {head[0]}:{head[1]} cannot be reached from here ({error.strerror})."
        ) from None


class _Agent:
    """One agent. It may have several sessions, one after another."""

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
        self._join = JoinRequest(
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
        self._last_heard = time.monotonic()
        self._next_probe = 0.0
        self._refusals = 0

    def leave(self, number: int, frame: object) -> None:
        """A signal handler: makes the agent leave in its next turn."""
        self._signal = number

    def _dial(self) -> Socket:
        address = f"tcp://{self._head[0]}:{self._head[1]}"
        return self._wire.dial(address, self._key.pair, self._key.head, limits=PACKET_LIMITS)

    def close(self) -> None:
        """Closes the connection."""
        self._wire.close()

    def run(self, wait_seconds: float) -> int:
        """Joins and serves; joins again if a session ends before the run. Returns the exit code."""
        while True:
            agent_session = self._join_run(wait_seconds)
            if agent_session is None:
                return 0
            try:
                code = self._serve(agent_session)
            except SrlError as error:
                agent_session.channel.post(AgentProblem(str(error)))
                self._leave_run(agent_session)
                raise
            finally:
                agent_session.close()
            if code is not None:
                return code
            log.warning("joining again: the head has given up this host")

    # -- joining -----------------------------------------------------------------------------------

    def _join_run(self, wait_seconds: float) -> AgentSession | None:
        """Asks to join until the head accepts; None if a signal came first."""
        deadline = time.monotonic() + wait_seconds
        reason = "no answer"
        while not self._signal:
            if time.monotonic() > deadline:
                raise RunError(
                    f"could not join {self._head[0]}:{self._head[1]} within {wait_seconds:g} s: "
                    f"{reason}. Check that the run goes on, that this machine can reach the "
                    "port, and that the key file is of this run: a resumed run has a new key."
                )
            self._send(Packet("", 0, 0, self._join))
            if not self._socket.poll(int(ASK_SECONDS * 1000)):
                continue
            for packet in self._receive():
                match packet.message:
                    case Welcome() if packet.message.token == self._join.token:
                        log.info("joined %s:%d as %s", *self._head, packet.message.name)
                        # If this agent joins again, it counts as another agent of the same name.
                        token = secrets.token_hex(8)
                        self._join = msgspec.structs.replace(
                            self._join, name=packet.message.name, token=token
                        )
                        return AgentSession(packet.message, packet.session, self._bind, self._port)
                    case Refusal() if packet.message.token == self._join.token:
                        reason = packet.message.reason
                        if packet.message.final:
                            raise RunError(f"the run refused this host: {reason}.")
                        time.sleep(ASK_SECONDS)
        return None

    # -- serving -----------------------------------------------------------------------------------

    def _serve(self, agent_session: AgentSession) -> int | None:
        """Serves until the end and returns the exit code; None if this host should join again."""
        self._last_heard = time.monotonic()
        while not self._signal:
            wait_readable([int(self._socket.fd), agent_session.fileno()], TURN_SECONDS)
            for packet in self._receive():
                if packet.session != agent_session.channel.session:
                    continue
                self._last_heard = time.monotonic()
                if isinstance(packet.message, Unknown):
                    return None
                message = agent_session.channel.receive(packet)
                if isinstance(message, Finish):
                    self._leave_run(agent_session)
                    return 0
                if message is not None:
                    agent_session.handle(message)
            self._turn(agent_session)
            if self._is_head_gone():
                log.warning("the head is gone; finishing")
                agent_session.end(LEAVE_SECONDS)
                return HEAD_GONE
        agent_session.channel.post(
            AgentProblem(f"was told to leave ({signal.Signals(self._signal).name})")
        )
        self._leave_run(agent_session)
        return 0

    def _turn(self, agent_session: AgentSession) -> None:
        now = time.monotonic()
        agent_session.turn()
        beat = agent_session.beat(now)
        packets = agent_session.channel.packets(now)
        if beat is not None:
            packets.append(agent_session.channel.state(beat))
        for packet in packets:
            self._send(packet)

    def _is_head_gone(self) -> bool:
        """Whether the head is gone; while the head is silent, tests whether it still listens."""
        now = time.monotonic()
        silent = now - self._last_heard
        if silent < SILENT_SECONDS:
            self._refusals = 0
            return False
        if now >= self._next_probe:
            self._next_probe = now + 1.0
            self._refusals = self._refusals + 1 if _is_refused(self._head) else 0
            # After an outage an old connection may take long to work again; a new one does not.
            self._wire.hang_up(self._socket)
            self._socket = self._dial()
        return self._refusals >= MAX_REFUSALS or silent > MAX_SILENCE_SECONDS

    def _leave_run(self, agent_session: AgentSession) -> None:
        """Ends all processes here, and waits until the head has acknowledged the last messages."""
        agent_session.end()
        agent_session.channel.post(AgentLeft())
        deadline = time.monotonic() + LEAVE_SECONDS
        while agent_session.channel.backlog and time.monotonic() < deadline:
            for packet in agent_session.channel.packets(time.monotonic()):
                self._send(packet)
            self._socket.poll(20)
            for packet in self._receive():
                if isinstance(packet.message, Unknown):
                    # The head has given up this host, as it does when an agent leaves.
                    return
                agent_session.channel.receive(packet)

    # -- the socket --------------------------------------------------------------------------------

    def _send(self, packet: Packet) -> None:
        try:
            self._socket.send(encode(packet), zmq.NOBLOCK)
        except zmq.Again:
            # The queue is full. A message that must arrive is sent again later.
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
    """Whether the head's machine refuses connections to the head's port."""
    try:
        socket.create_connection(head, timeout=0.5).close()
    except ConnectionRefusedError:
        return True
    except OSError:
        return False
    return False
