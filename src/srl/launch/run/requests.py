"""What users ask of a run that goes on: to scale it, to write a checkpoint, to stop.

A command writes the request into one file of the run directory, and the head writes its answer into
another. So whoever may write into the run directory may ask, and nobody else.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import msgspec

from srl.errors import ConfigError, RunError
from srl.files import read_limited, write_atomically

REQUEST_FILE = "request.json"
ANSWER_FILE = "answer.json"
MAX_REQUEST_BYTES = 1 << 20
EVERY_SECONDS = 0.5
STOP_REASON = "a user asked for it"


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request to a run."""

    token: str
    """The answer has the same token."""
    action: Literal["scale", "checkpoint", "stop"]
    counts: dict[str, int] = {}
    """For `scale`: how many workers of each group are to run."""


class RunAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The head's answer to a request."""

    token: str
    refusal: str = ""
    """Why the request was refused; empty if it was carried out."""


class Requests:
    """Carries out the requests to one run."""

    def __init__(
        self,
        run_dir: Path,
        *,
        scale: Callable[[dict[str, int]], None],
        checkpoint: Callable[[], None],
        stop: Callable[[], None],
        refuse: Callable[[str], None],
    ) -> None:
        """The first three carry a request out, or raise ConfigError; `refuse` is told why."""
        self._request = run_dir / REQUEST_FILE
        self._answer = run_dir / ANSWER_FILE
        self._scale, self._checkpoint, self._stop = scale, checkpoint, stop
        self._refuse = refuse
        self._next = 0.0
        # Requests and answers from before this start do not count.
        self._request.unlink(missing_ok=True)
        self._answer.unlink(missing_ok=True)

    def step(self) -> None:
        """Looks for a request every `EVERY_SECONDS`."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_SECONDS
        try:
            data = read_limited(self._request, MAX_REQUEST_BYTES)
        except (OSError, ConfigError):
            return
        self._request.unlink(missing_ok=True)
        try:
            request = msgspec.json.decode(data, type=RunRequest)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            self._refuse(f"{self._request}: expected a request, got {error}.")
            return
        refusal = ""
        try:
            self._carry_out(request)
        except ConfigError as error:
            refusal = str(error)
            self._refuse(refusal)
        answer = RunAnswer(token=request.token, refusal=refusal)
        write_atomically(self._answer, msgspec.json.encode(answer))

    def _carry_out(self, request: RunRequest) -> None:
        match request.action:
            case "scale":
                self._scale(request.counts)
            case "checkpoint":
                self._checkpoint()
            case "stop":
                self._stop()


def ask(
    run_dir: Path,
    action: Literal["scale", "checkpoint", "stop"],
    seconds: float,
    counts: dict[str, int] | None = None,
) -> None:
    """Asks something of a run, and waits up to `seconds` for its answer; raises ConfigError if the
    run refuses."""
    request = RunRequest(token=secrets.token_hex(8), action=action, counts=counts or {})
    try:
        write_atomically(run_dir / REQUEST_FILE, msgspec.json.encode(request))
    except OSError as error:
        raise RunError(
            f"{run_dir}: cannot ask this run ({error.strerror}): the request is a file in its "
            "folder, so you have to be able to write there."
        ) from None
    deadline = time.monotonic() + seconds
    while (answer := _read_answer(run_dir)) is None or answer.token != request.token:
        if time.monotonic() > deadline:
            raise RunError(
                f"{run_dir}: expected an answer within {seconds:.0f} s, got none. See `srl status "
                f"{run_dir}`."
            )
        time.sleep(0.05)
    if answer.refusal:
        raise ConfigError(answer.refusal)


def _read_answer(run_dir: Path) -> RunAnswer | None:
    try:
        return msgspec.json.decode(
            read_limited(run_dir / ANSWER_FILE, MAX_REQUEST_BYTES), type=RunAnswer
        )
    except (OSError, ConfigError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
