"""summary.json: how a run went, for people and for programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from srl.errors import RunError
from srl.files import read_limited, write_atomically
from srl.reporting.bottleneck import Diagnosis
from srl.services.metric_names import PolicyResult, subject
from srl.services.worker_times import Share, WorkerTimes, shares

SUMMARY_FILE = "summary.json"
MAX_SUMMARY_BYTES = 1 << 24
Outcome = Literal["finished", "stopped", "failed"]
_SINGLE_POLICY_FIELDS = (
    *("episode_return_mean", "episode_length_mean", "eval_return_mean", "best_checkpoint"),
)
"""Results of the only policy, or the only one that learns, which a summary has at its top level."""


class WorkerSummary(msgspec.Struct, frozen=True):
    """How the workers of one kind spent their time."""

    busy: float
    """Share of the time that it worked."""
    waits: dict[str, float] = {}
    """Share of the time that it waited, by what it waited for."""
    waited_for: str | None = None
    """The longest of the waits."""


class Summary(msgspec.Struct, kw_only=True, frozen=True):
    """The results of a run, as in summary.json."""

    status: Outcome
    """finished: it reached its goal; stopped: a user stopped it (Ctrl-C); failed: see `error`."""
    reason: str = ""
    """Why the run ended, in words."""
    env_steps: int = 0
    seconds: float = 0.0
    """Seconds of training, those before a resume included."""
    env_steps_per_second: float = 0.0
    """Mean over the whole run."""
    seconds_to_first_update: float | None = None
    """From the command (or the call of `srl.train`) to the end of the first update."""
    episodes: int = 0
    episode_return_mean: float | None = None
    """Mean over the last 100 training episodes; None if no episode ended, or if several policies
    learn (see `policies`)."""
    episode_length_mean: float | None = None
    eval_return_mean: float | None = None
    policy_version: int = 0
    policy_age_mean: float | None = None
    """Mean policy age in the last update."""
    policies: dict[str, PolicyResult] = {}
    """The results of each policy, by name."""
    workers: dict[str, WorkerSummary] = {}
    """How workers spent their time, by worker kind."""
    bottleneck: str = ""
    """Why the run was not faster, in words."""
    bottleneck_setting: str | None = None
    """The one setting to change, or None if none would help."""
    best_checkpoint: int | None = None
    """Number of the best checkpoint; None if several policies learn (see `policies`)."""
    error: str | None = None
    """The error of a failed run, else None."""
    name: str = ""
    """Name of the recipe or environment."""
    seed: int | None = None
    metrics: dict[str, float | None] = {}
    """All other metrics, as last measured."""


def summarise(
    status: Outcome,
    snapshot: Mapping[str, float],
    policies: dict[str, PolicyResult],
    times: list[WorkerTimes],
    diagnosis: Diagnosis,
    *,
    observed_seconds: float,
    **more: Any,
) -> Summary:
    """Makes a summary from a metrics snapshot and the workers' times.

    `times` cover the last `observed_seconds`, without the time before a resume. `more` are further
    fields of Summary.
    """
    seconds, steps = float(snapshot["seconds"]), int(snapshot["env_steps"])
    known: dict[str, Any] = {
        key: snapshot[key]
        for key in Summary.__struct_fields__
        if key in snapshot and key not in ("seconds", "env_steps", "env_steps_per_second")
    }
    if (result := subject(policies)) is not None:
        known |= {name: getattr(result, name) for name in _SINGLE_POLICY_FIELDS}
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
        "policies": policies,
        **known,
    }
    return Summary(**{**fields, **more})


def write_summary(run_dir: Path, summary: Summary) -> Path:
    """Replaces summary.json in one step: a reader sees the old file or the new one."""
    path = run_dir / SUMMARY_FILE
    text = msgspec.json.format(msgspec.json.encode(summary), indent=2) + b"\n"
    try:
        write_atomically(path, text, to_disk=True)
    except OSError as error:
        raise RunError(
            f"{path}: cannot write the summary ({error.strerror}). "
            "Free some space or check the folder's permissions."
        ) from error
    return path


def read_summary(run_dir: Path) -> Summary:
    """Reads the summary of a run that has ended."""
    path = run_dir / SUMMARY_FILE
    try:
        return msgspec.json.decode(read_limited(path, MAX_SUMMARY_BYTES), type=Summary)
    except OSError as error:
        raise RunError(
            f"{path}: expected a summary, got {error.strerror}. Is this a run that has ended?"
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path}: expected a summary, got something else ({error}).") from None


def _worker(share: Share) -> WorkerSummary:
    return WorkerSummary(share.busy, share.waits, share.longest_wait)
