"""The status of a run at one moment: what `srl status` and `srl watch` read.

The head writes it every second, with thousands of workers less often. It is a file and not a
socket, so that everyone who can read the run directory can read the status, during the run and
after it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from srl.errors import RunError
from srl.files import read_limited
from srl.services.metric_names import PolicyResult

STATUS_FILE = "status.json"
MAX_STATUS_BYTES = 1 << 26
"""Largest status that is read; a status of a hundred thousand workers fits."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one worker."""

    name: str
    host: str
    pid: int
    state: str
    """What the worker is doing, or why it does nothing."""
    rate: float
    """`unit` per second, since the last status."""
    unit: str
    busy: float
    """Share of the time since the last status in which the worker was busy."""
    waits: dict[str, float]
    """Shares of that time, by what the worker waited for."""
    restarts: int
    env_failures: int
    group: str = ""
    process: str = ""
    restarted: float = 0.0
    """Unix time of the last restart of its process; 0 if there was none."""


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one host."""

    name: str
    machine: str
    address: str
    state: str
    joined: int
    """How often the host has joined."""
    processes: int
    bridge: dict[str, int] = {}
    """Counters of its bridge since the host joined: waits in nanoseconds, messages that were sent
    again (`resent`), found no room (`unsent`), came twice or late (`stale`) or did not fit the plan
    (`rejected`), and refused connections (`refused`; the head's host adds what the control socket
    has refused)."""


class FlowStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of one arrow of the dataflow: a stream, or the weights of policies."""

    kind: Literal["inference", "sample", "weights"]
    source: str
    """The key of the box where it begins."""
    target: str
    """The key of the box where it ends; that of the source if it stays inside of each process."""
    title: str
    detail: str
    rate: float = 0.0
    """`unit` per second, over the last seconds."""
    unit: str = ""
    fill: float | None = None
    """Share of its slots that are in use; None if it has none, or they cannot be seen."""
    slots: int = 0
    age: float | None = None
    """Mean policy age in the last update, where trainers read it."""
    dropped: int = 0
    """Fragments that were lost since the run began."""


class BoxStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One box of the dataflow: processes with the same groups of workers, on alike hosts."""

    key: str
    column: int
    frame: str
    """Text about its host or hosts; empty where there is only one host."""
    groups: tuple[str, ...]
    processes: tuple[str, ...]


class RunStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The status of a run at one moment."""

    written: float
    """Unix time."""
    name: str
    seconds: float
    env_steps: int
    policy_version: int
    policies: dict[str, PolicyResult] = {}
    """The results of each policy, by name."""
    join: str
    """Address at which hosts can join; empty if they cannot."""
    hosts: tuple[HostStatus, ...]
    workers: tuple[WorkerStatus, ...]
    scaled: dict[str, int]
    """Workers of each group that are to run."""
    capacity: dict[str, int]
    """Workers of each group that the plan has room for."""
    layout: str = ""
    boxes: tuple[BoxStatus, ...] = ()
    flows: tuple[FlowStatus, ...] = ()
    bottleneck: str = ""
    """Why the run is not faster, in words."""
    bottleneck_setting: str | None = None
    """The one setting to change, as `--set` takes it."""


def read_status(run_dir: Path) -> RunStatus:
    """Reads the last status of a run."""
    path = run_dir / STATUS_FILE
    try:
        return msgspec.json.decode(read_limited(path, MAX_STATUS_BYTES), type=RunStatus)
    except FileNotFoundError:
        raise RunError(
            f"{run_dir}: expected a run that goes on or has ended, got no {STATUS_FILE}. It is "
            "written every second while a run goes on."
        ) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path}: expected the status of a run, got {error}.") from None
