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
├── WorkerError               a worker failed; carries its last words
└── RunError                  a run as a whole cannot go on (nothing makes progress, ...)
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class SrlError(Exception):
    """The root of the tree: the message says expected, got, where, and what to do."""


class ConfigError(SrlError):
    """A setting, name or option is wrong."""


class MissingDependency(SrlError):
    """An optional package is not installed; the message has the command that installs it."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(
            f"{what} needs an optional package. Install it with: pip install 'srl[{extra}]'"
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
    """A worker failed; the message carries its last words."""


class RunError(SrlError):
    """A run as a whole cannot go on."""


def nearest(name: str, known: Iterable[str]) -> str:
    """The end of an error message that names what the user may have meant."""
    known = sorted(known)
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    if close:
        return f"did you mean {' or '.join(repr(c) for c in close)}?"
    if known and len(known) <= 12:
        return f"known: {', '.join(known)}"
    return "see `srl list`"
