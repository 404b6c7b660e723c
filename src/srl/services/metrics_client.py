"""How workers send metrics to the collector: by a call in its own process, else by a local
socket."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from srl.arena.shm import ROOT_VARIABLE
from srl.errors import SharedMemoryError
from srl.services.messages import Episodes, Message, decode, encode

SOCKET_NAME = "metrics.sock"
_FLUSH_NS = 100_000_000
_MAX_EPISODES = 500
"""Most episodes in one message, which must stay well below a local socket's datagram limit."""


class MetricsClient(Protocol):
    """A worker's end of the metrics service."""

    def send(self, message: Message) -> None:
        """Sends a message; never blocks."""
        ...

    def episodes(
        self,
        worker: str,
        policy: str,
        returns: list[float],
        lengths: list[int],
        metrics: dict[str, list[float]],
        agents: list[int],
    ) -> None:
        """Reports finished episodes; they may be sent together with later ones.

        `agents` has for each episode the index of the policy's agent that played it; empty if there
        is one agent.
        """
        ...

    def flush(self) -> None:
        """Sends all that was kept back."""
        ...


class InlineMetrics:
    """Metrics client in the process of the collector."""

    def __init__(self, add: Callable[[Message], None]) -> None:
        self.send = add

    def episodes(
        self,
        worker: str,
        policy: str,
        returns: list[float],
        lengths: list[int],
        metrics: dict[str, list[float]],
        agents: list[int],
    ) -> None:
        """Reports finished episodes at once."""
        self.send(Episodes(worker, policy, returns, lengths, metrics, agents))

    def flush(self) -> None:
        """Does nothing, because nothing is kept back."""


class SocketMetrics:
    """Metrics client for the collector's datagram socket in the run's folder.

    While the socket is full, messages are kept here.
    """

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._address = str(folder / SOCKET_NAME)
        self._queue: list[bytes] = []
        self._episodes: dict[tuple[str, str], Episodes] = {}
        self._flushed_ns = 0

    def send(self, message: Message) -> None:
        """Sends a message now, or with the next flush if the socket is full."""
        self._queue.append(encode(message))
        self._drain()

    def episodes(
        self,
        worker: str,
        policy: str,
        returns: list[float],
        lengths: list[int],
        metrics: dict[str, list[float]],
        agents: list[int],
    ) -> None:
        """Collects finished episodes, and sends them ten times a second."""
        kept = self._episodes.get((worker, policy))
        if kept is None:
            self._episodes[worker, policy] = Episodes(
                worker, policy, returns, lengths, metrics, agents
            )
        else:
            kept.returns.extend(returns)
            kept.lengths.extend(lengths)
            kept.agents.extend(agents)
            for name, values in metrics.items():
                kept.metrics.setdefault(name, []).extend(values)
        if time.monotonic_ns() - self._flushed_ns > _FLUSH_NS or (
            kept is not None and len(kept.returns) >= _MAX_EPISODES
        ):
            self.flush()

    def flush(self) -> None:
        """Sends all that was kept back, as far as the socket takes it."""
        self._flushed_ns = time.monotonic_ns()
        if self._episodes:
            for message in self._episodes.values():
                self._queue.extend(encode(part) for part in _parts(message))
            self._episodes.clear()
        self._drain()

    def _drain(self) -> None:
        while self._queue:
            try:
                self._socket.sendto(self._queue[0], self._address)
            except BlockingIOError:
                return
            except OSError:
                # The collector is gone, so nothing can be sent any more.
                self._queue.clear()
                return
            self._queue.pop(0)

    def close(self) -> None:
        """Sends the rest and closes."""
        self.flush()
        self._socket.close()


def _parts(message: Episodes) -> Iterator[Episodes]:
    """The message in pieces that fit into a datagram."""
    for start in range(0, len(message.returns), _MAX_EPISODES):
        part = slice(start, start + _MAX_EPISODES)
        yield Episodes(
            message.worker,
            message.policy,
            message.returns[part],
            message.lengths[part],
            {name: values[part] for name, values in message.metrics.items()},
            message.agents[part],
        )


class MetricsServer:
    """The collector's end of the socket."""

    def __init__(self, folder: Path) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        path = folder / SOCKET_NAME
        try:
            self._socket.bind(str(path))
        except OSError as error:
            self._socket.close()
            raise SharedMemoryError(
                f"shared memory: no socket can be made at {path} ({error}). Its path may have "
                f"about 100 bytes and has {len(os.fsencode(path))}; point {ROOT_VARIABLE} to a "
                "folder with a shorter path in which you may write."
            ) from None

    def fileno(self) -> int:
        """The file descriptor, for waiting on several things at once."""
        return self._socket.fileno()

    def receive(self) -> list[Message]:
        """All messages that have arrived."""
        return [decode(data) for data in self.datagrams()]

    def datagrams(self) -> list[bytes]:
        """All messages that have arrived, not decoded."""
        found = []
        with suppress(BlockingIOError):
            while True:
                found.append(self._socket.recv(1 << 18))
        return found

    def close(self) -> None:
        """Stops listening."""
        self._socket.close()
