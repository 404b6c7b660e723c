"""The picture of a run under a notebook's cell: one output, which each update replaces."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import RenderableType

WIDTH = 100
_HTML = '<pre style="line-height:1.3;font-family:monospace">{code}</pre>'


def is_notebook() -> bool:
    """Whether this process is a notebook's kernel; an IPython prompt in a terminal is not."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return shell is not None and hasattr(shell, "kernel")


class NotebookDisplay:
    """One output of a cell, as HTML and, for what shows no HTML, as a line of text."""

    def __init__(self) -> None:
        self._handle: Any = None

    def update(self, picture: RenderableType, line: str) -> None:
        """Shows a picture in place of the one before."""
        from IPython.display import display

        bundle = {"text/html": _html(picture), "text/plain": line}
        if self._handle is None:
            self._handle = display(bundle, raw=True, display_id=True)
        else:
            self._handle.update(bundle, raw=True)


def _html(picture: RenderableType) -> str:
    from rich.console import Console

    console = Console(
        file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, force_jupyter=False
    )
    console.print(picture)
    return console.export_html(code_format=_HTML, inline_styles=True)
