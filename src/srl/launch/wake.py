"""A pipe that ends a sleep, from a signal handler too."""

from __future__ import annotations

import os
from contextlib import suppress


class Wake:
    """To be waited for together with other things."""

    def __enter__(self) -> Wake:
        self._reading, self._writing = os.pipe()
        os.set_blocking(self._reading, False)
        os.set_blocking(self._writing, False)
        return self

    def fileno(self) -> int:
        """For waiting together with other things."""
        return self._reading

    def ring(self) -> None:
        """Ends the sleep."""
        with suppress(BlockingIOError):
            os.write(self._writing, b"\0")

    def __exit__(self, *raised: object) -> None:
        os.close(self._reading)
        os.close(self._writing)
