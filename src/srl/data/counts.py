"""Types of the numbers that other processes and hosts send. Their bounds keep sums within 64
bits."""

from __future__ import annotations

from typing import Annotated

import msgspec

MAX_COUNT = 1 << 48
Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_COUNT)]
"""A number of things."""
Natural = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
"""A number that only identifies something; nobody adds to it."""
Version = Annotated[int, msgspec.Meta(ge=-1, le=MAX_COUNT)]
"""A version of weights; -1 means that there is none yet."""
