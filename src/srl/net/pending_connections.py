"""Pending connections: those that have not shown a key yet, and a limit on their number.

Any program that can reach a port can hold connections open until the handshake times out, and each
one takes a file descriptor. So their number is limited, far below the process's own limit. Above
the limit, the oldest connections of the address with the most connections are cut. Until those are
closed, the system drops requests for new ones (Linux: a filter on the listening socket). A host
with a valid key that was cut or dropped dials again.
"""

from __future__ import annotations

import ctypes
import os
import resource
import socket as sockets
import struct
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

SHARE = 8
"""Pending connections may take at most 1/SHARE of a process's file descriptors, ..."""
FEWEST = 16
"""... but this number is always allowed."""
CROWDED = 2
"""When 1/CROWDED of all descriptors are in use, all pending connections are cut."""
_ATTACH_FILTER, _DETACH_FILTER = 26, 27
"""Linux socket options: SO_ATTACH_FILTER and SO_DETACH_FILTER."""
_DROP_ALL = struct.pack("=HBBI", 0x06, 0, 0, 0)
"""A Berkeley packet filter program that returns 0: no byte of any packet is accepted."""


class PendingConnections:
    """The connections of one listening socket from which no message has come yet."""

    def __init__(self) -> None:
        self._limit = descriptor_limit()
        self._max_pending = max(FEWEST, self._limit // SHARE)
        self._num_to_keep = self._max_pending - self._max_pending // 4
        """Number of connections to keep when there are too many: a handshake takes some time."""
        self._lock = threading.Lock()
        self._addresses: dict[int, str] = {}
        """The remote address of each connection, by file descriptor, ..."""
        self._by_address: dict[str, dict[int, None]] = {}
        """... and the file descriptors of each address, the oldest first."""
        self._being_cut: set[int] = set()
        """File descriptors of connections that were cut and are not closed yet."""
        self._listening = -1
        self._is_accepting = True
        self._is_stopped = False

    def __len__(self) -> int:
        return len(self._addresses)

    def listen(self, fd: int) -> None:
        """Sets the file descriptor of the listening socket."""
        with self._lock:
            self._listening = fd
            self._set_filter()

    def come(self, fd: int) -> None:
        """Adds a connection that was accepted, and cuts the oldest ones if there are too many."""
        try:
            with wrapped_socket(fd) as connection:
                address = str(connection.getpeername()[0])
        except OSError:
            # The connection has already ended.
            return
        with self._lock:
            self._remove(fd)
            self._addresses[fd] = address
            self._by_address.setdefault(address, {})[fd] = None
            # Connections that were accepted before the filter was set may still be added.
            if len(self._addresses) > (
                self._max_pending if self._is_accepting else self._num_to_keep
            ):
                self._set_accepting(False)
                while len(self._addresses) > self._num_to_keep:
                    busiest = max(self._by_address.values(), key=len)
                    self._cut_one(next(iter(busiest)))

    def leave(self, fd: int) -> None:
        """Removes a connection that has ended, or that has sent its first message."""
        with self._lock:
            self._remove(fd)
            self._being_cut.discard(fd)
            self._accept_again()

    def make_room(self) -> None:
        """Cuts all of them if the process is about to run out of file descriptors.

        There may be more than are counted here, because the thread that counts may be late.
        """
        is_crowded = _lowest_free() >= self._limit // CROWDED
        with self._lock:
            if is_crowded:
                self._set_accepting(False)
                self._cut_all()
            else:
                self._accept_again()

    def stop(self) -> None:
        """Accepts no connection from now on, and cuts all pending ones."""
        with self._lock:
            self._is_stopped = True
            self._set_accepting(False)
            self._cut_all()

    def _cut_all(self) -> None:
        for fd in list(self._addresses):
            self._cut_one(fd)

    def _cut_one(self, fd: int) -> None:
        self._remove(fd)
        self._being_cut.add(fd)
        shut_down(fd)

    def _accept_again(self) -> None:
        if (
            not self._is_accepting
            and not self._being_cut
            and len(self._addresses) <= self._num_to_keep
        ):
            self._set_accepting(True)

    def _set_accepting(self, wanted: bool) -> None:
        wanted = wanted and not self._is_stopped
        if wanted != self._is_accepting:
            self._is_accepting = wanted
            self._set_filter()

    def _set_filter(self) -> None:
        if sys.platform != "linux" or self._listening < 0:
            return
        with suppress(OSError), wrapped_socket(self._listening) as listening:
            if self._is_accepting:
                # Detaching raises OSError if there is no filter, as at first.
                listening.setsockopt(sockets.SOL_SOCKET, _DETACH_FILTER, 0)
            else:
                program = ctypes.create_string_buffer(_DROP_ALL)
                fprog = struct.pack("@HP", 1, ctypes.addressof(program))
                listening.setsockopt(sockets.SOL_SOCKET, _ATTACH_FILTER, fprog)

    def _remove(self, fd: int) -> None:
        address = self._addresses.pop(fd, None)
        if address is not None:
            known = self._by_address[address]
            del known[fd]
            if not known:
                del self._by_address[address]


def descriptor_limit() -> int:
    """Largest number of file descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft if soft != resource.RLIM_INFINITY else 1 << 16


def _lowest_free() -> int:
    """The lowest unused file descriptor, which shows how many are in use."""
    try:
        fd = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 1 << 30
    os.close(fd)
    return fd


@contextmanager
def wrapped_socket(fd: int) -> Iterator[sockets.socket]:
    """Wraps the file descriptor of a ZeroMQ connection, and leaves it open afterwards.

    The descriptor is not duplicated, because there may be none left.
    """
    connection = sockets.socket(sockets.AF_INET, sockets.SOCK_STREAM, 0, fileno=fd)
    try:
        yield connection
    finally:
        connection.detach()


def shut_down(fd: int) -> None:
    """Shuts a connection down; ZeroMQ then closes it."""
    # The connection may have just ended by itself.
    with suppress(OSError), wrapped_socket(fd) as connection:
        connection.shutdown(sockets.SHUT_RDWR)
