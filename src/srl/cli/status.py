"""`srl status`: shows every worker of a run with its host, state, speed, waits and restarts."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from srl.cli.options import Verbs, add_verb
from srl.errors import printable

if TYPE_CHECKING:
    from srl.launch.run.status import HostStatus, RunStatus, WorkerStatus

_EXAMPLES = """
srl status runs/cartpole
srl status runs/cartpole --watch
srl status runs/cartpole --json
"""
_OLD_SECONDS = 5.0
"""If the status is older than this, the run has ended."""
_WATCH_SECONDS = 1.0
_SHOWN_WAITS = 2


def add_verbs(verbs: Verbs) -> None:
    """Adds `srl status`."""
    parser = add_verb(verbs, "status", "list the workers and hosts of a run", _EXAMPLES)
    parser.add_argument("directory", metavar="RUN", help="the run's folder")
    parser.add_argument(
        "--watch", action="store_true", help="print it again every second, until Ctrl-C"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, for programs")
    parser.set_defaults(run=_status)


def _status(args: argparse.Namespace) -> int:
    import json

    import msgspec

    from srl.launch.run.status import read_status

    while True:
        status = read_status(Path(args.directory))
        if args.json:
            print(json.dumps(json.loads(msgspec.json.encode(status))))
        else:
            print(describe_status(status, time.time()), flush=True)
        if not args.watch:
            return 0
        time.sleep(_WATCH_SECONDS)
        print()


def describe_status(status: RunStatus, now: float) -> str:
    """A status as lines of text."""
    age = now - status.written
    when = "" if age < _OLD_SECONDS else f"; not running: this was its state {age:,.0f} s ago"
    from srl.reporting.console import align, policy_table

    lines = [f"{status.name}: {status.seconds:,.0f} s, {status.env_steps:,} steps{when}"]
    if status.policies:
        lines += ["", *align(policy_table(status.policies))]
    if status.join:
        lines.append(f"hosts join at {status.join}")
    if status.hosts:
        lines += ["", *align([_HOST_TITLES, *map(_host, status.hosts)])]
    lines += ["", *align([_WORKER_TITLES, *map(_worker, status.workers)])]
    return printable("\n".join(lines))


_HOST_TITLES = (
    "host", "state", "machine", "address", "joined", "processes", "waited for", "messages",
)  # fmt: skip
_WORKER_TITLES = ("worker", "host", "pid", "state", "rate", "busy", "waits for", "restarts", "")


def _host(host: HostStatus) -> tuple[str, ...]:
    joined = f"{host.joined}x" if host.joined else ""
    waits = {"replies": "wait_requests_ns", "slots": "wait_slots_ns"}
    seconds = {what: host.bridge.get(name, 0) / 1e9 for what, name in waits.items()}
    counts = {what: n for what, n in host.bridge.items() if n and what not in waits.values()}
    return (
        host.name,
        host.state,
        host.machine,
        host.address,
        joined,
        str(host.processes),
        ", ".join(f"{what} {s:,.1f} s" for what, s in seconds.items() if s >= 0.05),
        ", ".join(f"{n:,} {what.removesuffix('_messages')}" for what, n in counts.items()),
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
