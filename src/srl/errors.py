"""Every exception that SRL raises on purpose.

SrlError                      something the user can act on; printed without a traceback
├── ConfigError               a setting, name or option is wrong
├── MissingDependency         an optional package is not installed
├── SpecError                 data does not fit the spec that was declared for it
├── EnvError                  an environment raised, hung, or broke its protocol
├── PolicyError               a policy returned something that its spec forbids
├── LearnError                a loss or a gradient turned NaN or infinite
├── StreamError               a stream was used against its contract
├── SharedMemoryError         shared memory is too small or gone
├── NetError                  a key, an address or a message between hosts is not what it must be
├── CheckpointError           a checkpoint cannot be written or read
├── WorkerError               a worker failed; carries its failure report
└── RunError                  a run as a whole cannot continue (nothing makes progress, ...)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SrlError(Exception):
    """The base class: the message says what was expected, what came, where, and what to do."""

    def __str__(self) -> str:
        # The message may quote a file or another host.
        return printable(super().__str__())


class ConfigError(SrlError):
    """A setting, name or option is wrong."""


DISTRIBUTION = "really-scalable-rl"
"""The name of the installed package. The package index has another project called `srl`."""


def install_command(extra: str) -> str:
    """The command that installs an optional part of this project with the packages it needs."""
    return f"pip install '{DISTRIBUTION}[{extra}]'"


class MissingDependency(SrlError):
    """An optional package is not installed; the message has the command that installs it."""

    def __init__(self, what: str, package: str, extra: str) -> None:
        super().__init__(
            f"{what} needs the optional package {package!r}. Install it with: "
            f"{install_command(extra)}"
        )


class SpecError(SrlError):
    """Data does not fit the spec that was declared for it."""


class EnvError(SrlError):
    """An environment raised, hung, or broke its protocol."""


class PolicyError(SrlError):
    """A policy returned something that its spec forbids."""


class LearnError(SrlError):
    """A loss or a gradient turned NaN or infinite."""


class StreamError(SrlError):
    """A stream was used against its contract."""


class SharedMemoryError(SrlError):
    """Shared memory is too small or gone."""


class NetError(SrlError):
    """A key, an address or a message between hosts is not what it must be."""


class CheckpointError(SrlError):
    """A checkpoint cannot be written or read."""


class WorkerError(SrlError):
    """A worker failed; the message carries its failure report."""


class RunError(SrlError):
    """A run as a whole cannot continue."""


def printable(text: str) -> str:
    """Text that is safe to show in a terminal; lines and tabs stay.

    Characters that control a terminal (colours, the cursor, the direction of writing, its title)
    become visible text, like `\\x1b`.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in "\n\t" else repr(char)[1:-1] for char in text
    )


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message: names that the user may have meant."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    if known and len(known) <= 12:
        return f"known: {', '.join(known)}"
    return "see `srl list`"
