"""The C allocator, told to keep large buffers instead of giving them back to the system.

Networks on a CPU ask for the same large buffers at every step. By default glibc maps each anew and
unmaps it afterwards, and the kernel zeroes every page again: on convolutions that costs a good part
of the time.
"""

from __future__ import annotations

import ctypes
import sys
from contextlib import suppress

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_NEVER = 2**31 - 1
_PAD_BYTES = 64 * 2**20


def keep_large_buffers() -> None:
    """Makes freed memory stay with this process. Does nothing where there is no glibc."""
    if sys.platform != "linux":
        return
    with suppress(OSError, AttributeError):
        libc = ctypes.CDLL("libc.so.6")
        libc.mallopt(_MMAP_THRESHOLD, _NEVER)
        libc.mallopt(_TRIM_THRESHOLD, _NEVER)
        libc.mallopt(_TOP_PAD, _PAD_BYTES)
