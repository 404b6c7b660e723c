"""What one message between hosts may be like at most."""

from __future__ import annotations

from typing import NamedTuple


class Limits(NamedTuple):
    """Bounds of a message; whoever sends a longer one is cut off."""

    frame_bytes: int = 64 << 20
    """ZeroMQ itself ends a connection that sends a larger one, before it is read."""
    frames: int = 4096
    message_bytes: int = 64 << 20
