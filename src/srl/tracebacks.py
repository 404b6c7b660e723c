"""Shows exceptions of user code: the message, and the calls that led to it."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from srl.errors import ConfigError, SrlError

_PACKAGE = f"{Path(__file__).parent}{os.sep}"
_TESTING = f"{_PACKAGE}testing{os.sep}"
"""Environments for tests, which count as a user's code."""
_HEADER = "Traceback (most recent call last):\n"
_FIRST_LINES, _LAST_LINES = 15, 30
_LINE_CHARS = 300
_MESSAGE_CHARS = 2000
USER_ERRORS = (Exception, SystemExit)
"""What a user's code may raise by mistake. SystemExit would otherwise end the program silently."""


@contextmanager
def user_code(what: str, kind: type[SrlError] = ConfigError, fix: str = "") -> Iterator[None]:
    """Turns an exception of the user's code into an SrlError that says where it was raised.

    `what` is the subject of the message's first sentence; `fix` is its last one.
    """
    try:
        yield
    except SrlError:
        raise
    except USER_ERRORS as error:
        raise kind(f"{what} raised {described(error, fix)}") from error


def described(error: BaseException, fix: str = "") -> str:
    """An exception's type and message, what to do, and `raised_at` on the lines below."""
    text = message_of(error)
    stop = "" if text.endswith((".", "!", "?")) else "."
    return f"{type(error).__name__}: {text}{stop}{f' {fix}' if fix else ''}\n{raised_at(error)}"


def message_of(error: BaseException) -> str:
    """The message of an exception, shortened if it is very long."""
    try:
        text = str(error)
    except Exception as second:
        text = f"its __str__ raised {type(second).__name__}"
    if len(text) > _MESSAGE_CHARS:
        text = f"{text[:_MESSAGE_CHARS]} ..."
    return text or "no message"


def raised_at(error: BaseException) -> str:
    """File, line and code of the calls that led to an exception, indented, with its causes first.

    SRL's own calls that led to the user's code are left out.
    """
    outermost = traceback.TracebackException.from_exception(error, compact=True)
    inner: traceback.TracebackException | None = outermost
    while inner is not None:
        _remove_srl_calls(inner.stack)
        inner = inner.__cause__ or (None if inner.__suppress_context__ else inner.__context__)
    text = "".join(part for part in outermost.format() if part != _HEADER)
    lines = [line[:_LINE_CHARS] for line in text.splitlines()]
    if len(lines) > _FIRST_LINES + _LAST_LINES:
        left_out = len(lines) - _FIRST_LINES - _LAST_LINES
        lines[_FIRST_LINES:-_LAST_LINES] = [f"  ({left_out} lines left out)"]
    return "\n".join(f"  {line}".rstrip() for line in lines)


def in_user_code(error: BaseException) -> bool:
    """Whether the call that raised, or a call that led to it, is outside of SRL and of Python."""
    return any(
        not _is_srl(frame.filename) and not frame.filename.startswith((_PYTHON, "<"))
        for frame in traceback.extract_tb(error.__traceback__)
    )


_PYTHON = f"{Path(os.__file__).parent}{os.sep}"
"""The standard library."""


def _remove_srl_calls(stack: traceback.StackSummary) -> None:
    """Removes the calls before the user's code; without user code, all calls stay."""
    for index, frame in enumerate(stack):
        if not _is_srl(frame.filename) and not frame.filename.startswith("<frozen importlib"):
            del stack[:index]
            return


def _is_srl(file: str) -> bool:
    return file.startswith(_PACKAGE) and not file.startswith(_TESTING)
