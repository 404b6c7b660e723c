"""What the system shows of a process: its command line and its mark, changed after a fork.

A forked process has the command line and the environment of the process that forked it. Both lie in
its memory, where Linux reads them for `ps` and for /proc. So they can be overwritten by others that
are as long.
"""

from __future__ import annotations

import ctypes

PADDING = " " * 128
"""The last argument of a process whose command line will be replaced, so that there is room."""
_ARGUMENTS_START, _ARGUMENTS_END, _ENVIRONMENT_START, _ENVIRONMENT_END = 45, 46, 47, 48
"""Fields of /proc/self/stat behind the name of the process."""


def show_command(words: list[bytes]) -> None:
    """Replaces the command line. The last word becomes spaces, as many as fit."""
    start, end, *_ = _places()
    text = b"\0".join([*words, b""])
    spaces = end - start - len(text) - 1
    if spaces >= 0:
        ctypes.memmove(start, text + b" " * spaces, end - start - 1)


def replace_in_environment(old: bytes, new: bytes) -> None:
    """Replaces a text in the environment that the process was started with by one as long."""
    *_, start, end = _places()
    found = ctypes.string_at(start, end - start).find(old)
    if found >= 0 and len(old) == len(new):
        ctypes.memmove(start + found, new, len(new))


def _places() -> list[int]:
    """Where the arguments and the environment start and end; all 0 if the system does not say."""
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    places = (_ARGUMENTS_START, _ARGUMENTS_END, _ENVIRONMENT_START, _ENVIRONMENT_END)
    return [int(fields[place]) for place in places]
