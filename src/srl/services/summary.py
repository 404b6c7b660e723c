"""summary.json: how a run went, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from srl.errors import RunError
from srl.files import write_whole
from srl.services.bottleneck import Diagnosis, Share, WorkerTimes, shares

SUMMARY_FILE = "summary.json"
Status = Literal["finished", "stopped", "failed"]


class WorkerSummary(msgspec.Struct, frozen=True):
    """Where the time of one worker kind went."""

    busy: float
    """Share of its time."""
    waits: dict[str, float] = {}
    """Share of its time by what it waited for."""
    waited_for: str | None = None
    """The longest of the waits."""


class Summary(msgspec.Struct, kw_only=True, frozen=True):
    """How a run went."""

    status: Status
    """finished: it reached its goal; stopped: it was asked to (Ctrl-C); failed: see `error`."""
    reason: str = ""
    """Why it ended, in words."""
    env_steps: int = 0
    seconds: float = 0.0
    """Of training, those before a resume included."""
    env_steps_per_second: float = 0.0
    """Over the whole run."""
    seconds_to_first_update: float | None = None
    """From the command (or the call of `srl.train`) to the end of its first update."""
    episodes: int = 0
    episode_return_mean: float | None = None
    """Over the last 100 training episodes; None where none ended."""
    episode_length_mean: float | None = None
    eval_return_mean: float | None = None
    policy_version: int = 0
    policy_age_mean: float | None = None
    """Of the last update."""
    workers: dict[str, WorkerSummary] = {}
    """By worker kind."""
    bottleneck: str = ""
    """Why it was not faster."""
    bottleneck_setting: str | None = None
    """The one setting to change, or None."""
    best_checkpoint: int | None = None
    """Its number."""
    error: str | None = None
    """What failed, where it did."""
    name: str = ""
    """Of the recipe or environment."""
    seed: int | None = None
    metrics: dict[str, float | None] = {}
    """The last snapshot: everything else that was measured."""


def summarise(
    status: Status,
    snapshot: Mapping[str, float],
    times: list[WorkerTimes],
    diagnosis: Diagnosis,
    *,
    observed_seconds: float,
    **more: Any,
) -> Summary:
    """A summary from what the collector and the board know. `times` are of the last
    `observed_seconds`, which do not count those before a resume; `more` are fields of Summary."""
    seconds, steps = float(snapshot["seconds"]), int(snapshot["env_steps"])
    known = {
        key: snapshot[key]
        for key in Summary.__struct_fields__
        if key in snapshot and key not in ("seconds", "env_steps", "env_steps_per_second")
    }
    rest = {
        key: float(value)
        for key, value in snapshot.items()
        if key not in Summary.__struct_fields__ and not isinstance(value, bool)
    }
    fields: dict[str, Any] = {
        "status": status,
        "env_steps": steps,
        "seconds": seconds,
        "env_steps_per_second": steps / seconds if seconds > 0 else 0.0,
        "workers": {
            kind: _worker(share) for kind, share in shares(times, observed_seconds).items()
        },
        "bottleneck": diagnosis.text,
        "bottleneck_setting": diagnosis.setting,
        "metrics": rest,
        **known,
    }
    return Summary(**{**fields, **more})


def write_summary(run_dir: Path, summary: Summary) -> Path:
    """Replaces summary.json in one move: a reader sees the old one or the new one."""
    path = run_dir / SUMMARY_FILE
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
    try:
        write_whole(path, text, to_disk=True)
    except OSError as error:
        raise RunError(
            f"{path}: cannot write the summary ({error.strerror}). "
            "Free some space or check the folder's permissions."
        ) from error
    return path


def read_summary(run_dir: Path) -> Summary:
    """The summary of a run that has ended."""
    path = run_dir / SUMMARY_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Summary)
    except OSError as error:
        raise RunError(
            f"{path}: expected a summary, got {error.strerror}. Is this a run that has ended?"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise RunError(f"{path}: expected a summary, got something else ({error}).") from None


def _worker(share: Share) -> WorkerSummary:
    return WorkerSummary(share.busy, share.waits, share.longest_wait)
