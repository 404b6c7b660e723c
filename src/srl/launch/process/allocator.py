"""Settings of the C allocator, so that it keeps large buffers instead of returning them.

Networks on a CPU ask for the same large buffers at every step. By default glibc maps each buffer
again and unmaps it afterwards, and the kernel zeroes every page again. On convolutions this costs
a large part of the time.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_NEVER = 2**31 - 1
_PAD_BYTES = 64 * 2**20


def keep_large_buffers() -> None:
    """Makes this process keep the memory that it frees. Does nothing where there is no glibc."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, _NEVER)
        libc.mallopt(_TRIM_THRESHOLD, _NEVER)
        libc.mallopt(_TOP_PAD, _PAD_BYTES)
