"""File descriptors: the limit of a process, and waiting for any number of them."""

from __future__ import annotations

import resource
import select
from collections.abc import Iterable
from contextlib import suppress

ENOUGH = 1 << 16
"""The limit that this module asks for. No process of a run needs more, and a higher limit slows
programs that close every possible descriptor."""


def raise_descriptor_limit() -> None:
    """Raises the descriptor limit of this process and its children, as far as the system allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = ENOUGH if hard == unlimited else min(hard, ENOUGH)
    if soft != unlimited and soft < wanted:
        # Some systems allow less than the hard limit that they report.
        with suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def wait_readable(fds: Iterable[int], timeout_seconds: float) -> bool:
    """Sleeps until a descriptor is readable, or until the timeout; returns whether one is readable.

    This uses `poll`, because `select` accepts small descriptor numbers only.
    """
    poll = select.poll()
    for fd in fds:
        poll.register(fd, select.POLLIN)
    return bool(poll.poll(timeout_seconds * 1000.0))
