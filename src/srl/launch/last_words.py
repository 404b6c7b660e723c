"""What a process leaves behind when it fails, and how the launcher tells it to the user."""

from __future__ import annotations

from pathlib import Path

import msgspec

from srl.errors import WorkerError

TAIL_LINES = 15


class Failure(msgspec.Struct):
    """The last words of a process, left in the run's folder."""

    worker: str
    error: str
    message: str
    expected: bool
    """Raised on purpose: the message is meant for the user."""


def failure_path(folder: Path, process: str) -> Path:
    """Where a process leaves its last words."""
    return folder / f"{process}.failure"


def last_words(folder: Path, process: str) -> Failure | None:
    """What a process said before it ended, if it could."""
    try:
        return msgspec.json.decode(failure_path(folder, process).read_bytes(), type=Failure)
    except (OSError, msgspec.DecodeError):
        # Nothing was left, or not all of it: what it printed is in its log.
        return None


def failed(failure: Failure, run_dir: Path, process: str) -> WorkerError:
    """The error that a user sees; a surprise comes with the end of the log."""
    if failure.expected:
        return WorkerError(f"{failure.worker}: {failure.message}")
    return WorkerError(
        f"{failure.worker}: {failure.error}: {failure.message}{log_tail(run_dir, process)}"
    )


def log_tail(run_dir: Path, process: str) -> str:
    """The last lines of a process's log."""
    path = run_dir / "logs" / f"{process}.log"
    lines = path.read_text(errors="replace").splitlines()[-TAIL_LINES:] if path.exists() else []
    return f"\nLast lines of logs/{process}.log:\n" + "\n".join(f"    {line}" for line in lines)
