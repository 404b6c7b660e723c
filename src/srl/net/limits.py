"""Limits on the size of one message between hosts."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Largest size of a message; a connection that sends a larger one is ended."""

    frame_bytes: int = 64 << 20
    """ZeroMQ itself ends a connection that sends a larger frame, before the frame is read."""
    frames: int = 4096
    message_bytes: int = 64 << 20
