"""`srl status`: every worker of a run with its host, state, speed, waits and restarts."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from srl.cli.options import Verbs, add_verb

if TYPE_CHECKING:
    from srl.launch.status import HostStatus, Status, WorkerStatus

_EXAMPLES = """
srl status runs/cartpole
srl status runs/cartpole --watch
srl status runs/cartpole --json
"""
_OLD_SECONDS = 5.0
"""A status that is older than this is not of a run that goes on."""
_WATCH_SECONDS = 1.0
_SHOWN_WAITS = 2


def add_verbs(verbs: Verbs) -> None:
    """Adds the verb."""
    parser = add_verb(verbs, "status", "list the workers and hosts of a run", _EXAMPLES)
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    parser.add_argument("--watch", action="store_true", help="again every second, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="as JSON, for programs")
    parser.set_defaults(run=_status)


def _status(args: argparse.Namespace) -> int:
    import msgspec

    from srl.launch.status import read_status

    while True:
        status = read_status(Path(args.directory))
        if args.json:
            print(msgspec.json.encode(status).decode())
        else:
            print(describe_status(status, time.time()), flush=True)
        if not args.watch:
            return 0
        time.sleep(_WATCH_SECONDS)
        print()


def describe_status(status: Status, now: float) -> str:
    """A status as lines of text."""
    age = now - status.written
    when = "" if age < _OLD_SECONDS else f"; not running: this is how it was {age:,.0f} s ago"
    lines = [
        f"{status.name}: {status.seconds:,.0f} s, {status.env_steps:,} steps, "
        f"version {status.policy_version}{when}"
    ]
    if status.join:
        lines.append(f"hosts join at {status.join}")
    if status.hosts:
        lines += ["", *_table(_HOST_TITLES, [_host(host) for host in status.hosts])]
    lines += ["", *_table(_WORKER_TITLES, [_worker(worker) for worker in status.workers])]
    return "\n".join(lines)


_HOST_TITLES = (
    "host", "state", "machine", "address", "joined", "processes", "waited for", "messages",
)  # fmt: skip
_WORKER_TITLES = ("worker", "host", "pid", "state", "rate", "busy", "waits for", "restarts", "")


def _host(host: HostStatus) -> tuple[str, ...]:
    joined = f"{host.joined}x" if host.joined else ""
    waits = {"replies": "wait_requests_ns", "slots": "wait_slots_ns"}
    seconds = {what: host.gate.get(name, 0) / 1e9 for what, name in waits.items()}
    counts = {what: n for what, n in host.gate.items() if n and what not in waits.values()}
    return (
        host.name,
        host.state,
        host.machine,
        host.address,
        joined,
        str(host.processes),
        ", ".join(f"{what} {s:,.1f} s" for what, s in seconds.items() if s >= 0.05),
        ", ".join(f"{n:,} {what}" for what, n in counts.items()),
    )


def _worker(worker: WorkerStatus) -> tuple[str, ...]:
    longest = sorted(worker.waits.items(), key=lambda item: -item[1])[:_SHOWN_WAITS]
    waits = ", ".join(f"{name} {share:.0%}" for name, share in longest if share >= 0.01)
    failures = f"{worker.env_failures} environment failures" if worker.env_failures else ""
    return (
        worker.name,
        worker.host,
        str(worker.pid or ""),
        worker.state,
        f"{worker.rate:,.0f} {worker.unit.replace('_', ' ')}/s",
        f"{worker.busy:.0%}",
        waits,
        str(worker.restarts),
        failures,
    )


def _table(titles: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(len(row[i]) for row in (titles, *rows)) for i in range(len(titles))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (titles, *rows)
    ]
