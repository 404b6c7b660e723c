"""Takes from a Python process, and from those that it starts, what only Linux has.

Python imports this module at its start if its folder is in PYTHONPATH. It imports the packages that
ask for the system themselves before that.
"""

# ruff: noqa: F401
from __future__ import annotations

import ctypes
import fcntl
import os
import resource
import select
import signal
import socket
import sys
import sysconfig
import urllib.request
from typing import Any

import gymnasium
import torch

MISSING: dict[Any, tuple[str, ...]] = {
    os: (
        *("memfd_create", "pidfd_open", "eventfd", "eventfd_read", "eventfd_write", "splice"),
        *("sched_setaffinity", "sched_getaffinity", "sched_setscheduler", "pipe2", "getrandom"),
        *("posix_fadvise", "posix_fallocate", "copy_file_range", "waitid"),
    ),
    fcntl: ("F_SETPIPE_SZ", "F_GETPIPE_SZ", "F_ADD_SEALS", "F_OFD_SETLK", "F_SETSIG", "F_SETLEASE"),
    resource: ("prlimit", "RLIMIT_OFILE", "RLIMIT_SIGPENDING", "RLIMIT_RTTIME"),
    select: ("epoll",),
    signal: ("sigtimedwait", "sigwaitinfo"),
    socket: ("SO_PEERCRED", "SOCK_CLOEXEC", "SOCK_NONBLOCK", "SOCK_SEQPACKET", "MSG_CMSG_CLOEXEC"),
}
FOLDERS = ("/proc", "/sys", "/dev/shm")


def _check(path: object) -> None:
    if isinstance(path, str | bytes | os.PathLike) and os.fsdecode(path).startswith(FOLDERS):
        raise FileNotFoundError(2, "No such file or directory", os.fsdecode(path))


def _refuse(event: str, args: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir", "os.mkdir"):
        _check(args[0])


class _Library(ctypes.CDLL):
    def __init__(self, name: Any = None, *args: Any, **kwargs: Any) -> None:
        if "libc.so" in str(name):
            raise OSError("no glibc")
        super().__init__(name, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name in ("prctl", "mallopt"):
            raise AttributeError(name)
        return super().__getattr__(name)


def _without_folders(call: Any) -> Any:
    def checked(path: Any, *args: Any, **kwargs: Any) -> Any:
        _check(path)
        return call(path, *args, **kwargs)

    return checked


# Python reads a file whose name has the system's name.
sysconfig.get_config_vars()
for _module, _names in MISSING.items():
    for _name in _names:
        if hasattr(_module, _name):
            delattr(_module, _name)
for _name in ("stat", "lstat", "readlink"):
    setattr(os, _name, _without_folders(getattr(os, _name)))
sys.addaudithook(_refuse)
ctypes.CDLL = _Library  # type: ignore[misc]
sys.platform = "darwin"
