"""The status of a run as a file: the head writes it every second, `srl status` reads it.

With thousands of workers the head writes it less often. It is a file and not a socket, so that
everyone who can read the run directory can read the status, during the run and after it.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from srl.errors import RunError
from srl.files import read_limited, write_atomically
from srl.launch.cluster.node import HEAD_HOST
from srl.launch.cluster.remote_node import RemoteNode
from srl.launch.run.controller import Controller
from srl.launch.run.process_table import ProcessTable
from srl.launch.run.restarts import Restarts
from srl.launch.run.throttle import Throttle
from srl.services.metric_names import PolicyResult
from srl.services.worker_times import WorkerTimes, since

STATUS_FILE = "status.json"
MAX_STATUS_BYTES = 1 << 26
"""Largest status that is read; a status of a hundred thousand workers fits."""
EVERY_SECONDS = 1.0
_RATES = ("updates", "env_steps", "rows", "episodes")
"""Counters that a worker's speed is measured by; the first one that is not 0 is used."""


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


class StatusFile:
    """Writes the status file of a run."""

    def __init__(
        self, run_dir: Path, controller: Controller, process_table: ProcessTable, restarts: Restarts
    ) -> None:
        self._path = run_dir / STATUS_FILE
        self._controller = controller
        self._process_table = process_table
        self._restarts = restarts
        self._throttle = Throttle(EVERY_SECONDS)
        self._times_before: list[WorkerTimes] = []
        self._written_at = time.monotonic()

    def step(self) -> None:
        """Writes the file when it is time."""
        self._throttle.step(self._write)

    def _write(self) -> None:
        now = time.monotonic()
        times = self._controller.times()
        workers = tuple(
            self._worker(worker, now - self._written_at)
            for worker in since(times, self._times_before)
            if worker.process in self._process_table.wanted
        )
        self._times_before, self._written_at = times, now
        write_atomically(self._path, msgspec.json.encode(self._status(workers)))

    def _status(self, workers: tuple[WorkerStatus, ...]) -> RunStatus:
        controller, process_table = self._controller, self._process_table
        scaled: dict[str, int] = {}
        capacity: dict[str, int] = {}
        for worker in controller.plan.workers:
            capacity[worker.group] = capacity.get(worker.group, 0) + 1
            wanted = worker.process in process_table.wanted
            scaled[worker.group] = scaled.get(worker.group, 0) + wanted
        rows = controller.stats_table.rows.values()
        return RunStatus(
            written=time.time(),
            name=controller.experiment.name,
            seconds=controller.seconds,
            env_steps=controller.env_steps,
            policy_version=max(row.get("count_policy_version") for row in rows),
            policies=controller.names.results(controller.collector.snapshot()),
            join=process_table.head.address if process_table.head is not None else "",
            hosts=tuple(self._hosts()),
            workers=workers,
            scaled=scaled,
            capacity=capacity,
        )

    def _hosts(self) -> list[HostStatus]:
        process_table = self._process_table
        if process_table.head is None:
            return []
        count = {
            name: 0
            for name in (
                HEAD_HOST,
                *process_table.head.hosts.wanted,
                *process_table.head.hosts.nodes,
            )
        }
        for host in process_table.where.values():
            count[host] = count.get(host, 0) + 1
        return [self._host(name, process_table.nodes.get(name), count[name]) for name in count]

    def _host(self, name: str, node: object, processes: int) -> HostStatus:
        if isinstance(node, RemoteNode):
            silent = time.monotonic() - node.heard
            return HostStatus(
                name=name,
                machine=node.join.machine,
                address=node.join.address,
                state=f"silent for {silent:.0f} s" if silent > 2.0 else "here",
                joined=node.incarnation + 1,
                processes=processes,
                bridge=node.traffic,
            )
        traffic = self._process_table.traffic
        bridge = traffic.home() if traffic is not None and name == HEAD_HOST else {}
        state = "here" if name == HEAD_HOST else "missing"
        return HostStatus(
            name=name,
            machine="",
            address="",
            state=state,
            joined=0,
            processes=processes,
            bridge=bridge,
        )

    def _worker(self, worker: WorkerTimes, seconds: float) -> WorkerStatus:
        row = self._controller.stats_table.rows[worker.name]
        node = self._process_table.node_of(worker.process)
        unit = next((name for name in _RATES if row.get(f"count_{name}")), "steps")
        elapsed = max(seconds, 1e-9)
        return WorkerStatus(
            name=worker.name,
            host=self._process_table.where.get(worker.process, ""),
            pid=node.pid(worker.process) if node is not None else 0,
            state=self._state(worker, row.activity),
            rate=worker.counters.get(unit, 0.0) / elapsed,
            unit=unit,
            busy=min(1.0, worker.busy_seconds / elapsed),
            waits={name: min(1.0, s / elapsed) for name, s in worker.waits.items() if s > 0},
            restarts=self._restarts.total.get(worker.process, 0),
            env_failures=row.get("count_env_failures"),
        )

    def _state(self, worker: WorkerTimes, activity: str) -> str:
        if not self._process_table.is_alive(worker.process):
            return "to be started" if worker.process in self._process_table.wanted else "finished"
        if self._process_table.is_cut_off(worker.process):
            return "cut off"
        if worker.name in self._controller.suspended:
            return "stopped"
        return activity


def read_status(run_dir: Path) -> RunStatus:
    """Reads the last status of a run."""
    path = run_dir / STATUS_FILE
    try:
        return msgspec.json.decode(read_limited(path, MAX_STATUS_BYTES), type=RunStatus)
    except FileNotFoundError:
        raise RunError(
            f"{run_dir}: expected a run in processes of its own, got no {STATUS_FILE}. It is "
            "written while a run goes on, in every layout but serial."
        ) from None
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{path}: expected the status of a run, got {error}.") from None
