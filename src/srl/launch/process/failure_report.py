"""Failure reports: written by a process that fails, and shown by the head to the user."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from srl.errors import WorkerError

TAIL_LINES = 15
TAIL_BYTES = 1 << 16


class Failure(msgspec.Struct):
    """The failure report of a process, a file in its host's folder in shared memory."""

    worker: str
    error: str
    message: str
    expected: bool
    """Whether SRL raised the error on purpose, with a message for the user."""
    raised_at: str = ""
    """For an unexpected error: file, line and code of the calls that led to it."""


def failure_path(folder: Path, process: str) -> Path:
    """The file of a process's failure report."""
    return folder / f"{process}.failure"


def failure_report(folder: Path, process: str) -> Failure | None:
    """The failure report of a process, or None if it did not write one."""
    try:
        return msgspec.json.decode(failure_path(folder, process).read_bytes(), type=Failure)
    except (OSError, msgspec.DecodeError):
        # There is no report, or only a part of it. The log has what the process printed.
        return None


def failed(failure: Failure, run_dir: Path, process: str) -> WorkerError:
    """The error that the user sees. For an unexpected one it says where it was raised."""
    if failure.expected:
        return WorkerError(f"{failure.worker}: {failure.message}")
    log = run_dir / "logs" / f"{process}.log"
    return WorkerError(
        f"{failure.worker}: {failure.error}: {failure.message}\n{failure.raised_at}\n"
        f"The whole traceback is in {log}."
    )


def log_tail(run_dir: Path, process: str) -> str:
    """The last lines of a process's log."""
    path = run_dir / "logs" / f"{process}.log"
    lines: list[str] = []
    with suppress(OSError), path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - TAIL_BYTES))
        lines = file.read(TAIL_BYTES).decode(errors="replace").splitlines()[-TAIL_LINES:]
    return f"\nLast lines of logs/{process}.log:\n" + "\n".join(f"    {line}" for line in lines)
