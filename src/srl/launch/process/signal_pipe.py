"""A pipe that ends a sleep, also from a signal handler."""

from __future__ import annotations

import os
from contextlib import suppress


class SignalPipe:
    """A pipe to wait on together with other descriptors; `wake` makes it readable."""

    def __enter__(self) -> SignalPipe:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        return self

    def fileno(self) -> int:
        """The descriptor to wait on."""
        return self._reading

    def wake(self) -> None:
        """Ends the sleep."""
        with suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def __exit__(self, *raised: object) -> None:
        os.close(self._reading)
        os.close(self._writing)
