"""Numbers that other processes and hosts tell: bounded, so that whoever adds them up can hold the
sum in 64 bits."""

from __future__ import annotations

from typing import Annotated

import msgspec

MOST = 1 << 48
Count = Annotated[int, msgspec.Meta(ge=0, le=MOST)]
"""How many there are, or were."""
Version = Annotated[int, msgspec.Meta(ge=-1, le=MOST)]
"""Of weights; -1 is none yet."""
