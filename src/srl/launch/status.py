"""The status of a run as a file: written by the head every second (less often where there are
thousands of workers), read by `srl status`.

A file rather than a socket, so that whoever can read the run directory can look, from any terminal,
while the run goes on and after it.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from srl.errors import RunError
from srl.files import write_whole
from srl.launch.controller import Controller
from srl.launch.fleet import Fleet
from srl.launch.pace import Pace
from srl.launch.places import HOME
from srl.launch.remote_place import RemotePlace
from srl.launch.restarts import Restarts
from srl.services.bottleneck import WorkerTimes, since

STATUS_FILE = "status.json"
EVERY_SECONDS = 1.0
_RATES = ("updates", "env_steps", "rows", "episodes")
"""What a worker's speed is counted in: the first of these that it counts."""


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker."""

    name: str
    host: str
    pid: int
    state: str
    """What it is doing, or why it does nothing."""
    rate: float
    """Of `unit` per second, since the line before."""
    unit: str
    busy: float
    """Share of the time since the line before."""
    waits: dict[str, float]
    """Shares, by what it waited for."""
    restarts: int
    env_failures: int


class HostStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One host."""

    name: str
    machine: str
    address: str
    state: str
    joined: int
    """How often."""
    processes: int
    gate: dict[str, int] = {}
    """What its gate has counted since the host joined: waits in nanoseconds, messages that were
    sent again (`resent`), found no room (`unsent`), came twice or late (`stale`) or fitted no plan
    (`rejected`), and strangers (`refused`; at home those at the control socket, too)."""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """A run at a moment."""

    written: float
    """Unix time."""
    name: str
    seconds: float
    env_steps: int
    policy_version: int
    join: str
    """Where hosts can join; empty where they cannot."""
    hosts: tuple[HostStatus, ...]
    workers: tuple[WorkerStatus, ...]
    scaled: dict[str, int]
    """Workers of each group that are to run."""
    capacity: dict[str, int]
    """Workers of each group that the plan has room for."""


class StatusFile:
    """Keeps the file."""

    def __init__(
        self, run_dir: Path, controller: Controller, fleet: Fleet, restarts: Restarts
    ) -> None:
        self._path = run_dir / STATUS_FILE
        self._controller = controller
        self._fleet = fleet
        self._restarts = restarts
        self._pace = Pace(EVERY_SECONDS)
        self._before: list[WorkerTimes] = []
        self._at = time.monotonic()

    def step(self) -> None:
        """Writes the file when it is time."""
        self._pace.step(self._write)

    def _write(self) -> None:
        now = time.monotonic()
        times = self._controller.times()
        workers = tuple(
            self._worker(worker, now - self._at)
            for worker in since(times, self._before)
            if worker.process in self._fleet.wanted
        )
        self._before, self._at = times, now
        write_whole(self._path, msgspec.json.encode(self._status(workers)))

    def _status(self, workers: tuple[WorkerStatus, ...]) -> Status:
        controller, fleet = self._controller, self._fleet
        scaled: dict[str, int] = {}
        capacity: dict[str, int] = {}
        for worker in controller.plan.workers:
            capacity[worker.group] = capacity.get(worker.group, 0) + 1
            wanted = worker.process in fleet.wanted
            scaled[worker.group] = scaled.get(worker.group, 0) + wanted
        rows = controller.board.rows.values()
        return Status(
            written=time.time(),
            name=controller.experiment.name,
            seconds=controller.seconds,
            env_steps=controller.env_steps,
            policy_version=max(row.get("count_policy_version") for row in rows),
            join=fleet.head.address if fleet.head is not None else "",
            hosts=tuple(self._hosts()),
            workers=workers,
            scaled=scaled,
            capacity=capacity,
        )

    def _hosts(self) -> list[HostStatus]:
        fleet = self._fleet
        if fleet.head is None:
            return []
        count = {name: 0 for name in (HOME, *fleet.head.hosts.wanted, *fleet.head.hosts.places)}
        for host in fleet.where.values():
            count[host] = count.get(host, 0) + 1
        return [self._host(name, fleet.places.get(name), count[name]) for name in count]

    def _host(self, name: str, place: object, processes: int) -> HostStatus:
        if isinstance(place, RemotePlace):
            silent = time.monotonic() - place.heard
            return HostStatus(
                name=name,
                machine=place.join.machine,
                address=place.join.address,
                state=f"silent for {silent:.0f} s" if silent > 2.0 else "here",
                joined=place.incarnation + 1,
                processes=processes,
                gate=place.traffic,
            )
        traffic = self._fleet.traffic
        gate = traffic.home() if traffic is not None and name == HOME else {}
        state = "here" if name == HOME else "missing"
        return HostStatus(
            name=name, machine="", address="", state=state, joined=0, processes=processes, gate=gate
        )

    def _worker(self, worker: WorkerTimes, seconds: float) -> WorkerStatus:
        row = self._controller.board.rows[worker.name]
        place = self._fleet.place_of(worker.process)
        unit = next((name for name in _RATES if row.get(f"count_{name}")), "steps")
        whole = max(seconds, 1e-9)
        return WorkerStatus(
            name=worker.name,
            host=self._fleet.where.get(worker.process, ""),
            pid=place.pid(worker.process) if place is not None else 0,
            state=self._state(worker, row.activity),
            rate=worker.counters.get(unit, 0.0) / whole,
            unit=unit,
            busy=min(1.0, worker.busy_seconds / whole),
            waits={name: min(1.0, s / whole) for name, s in worker.waits.items() if s > 0},
            restarts=self._restarts.total.get(worker.process, 0),
            env_failures=row.get("count_env_failures"),
        )

    def _state(self, worker: WorkerTimes, activity: str) -> str:
        if not self._fleet.is_alive(worker.process):
            return "to be started" if worker.process in self._fleet.wanted else "finished"
        if self._fleet.is_cut_off(worker.process):
            return "cut off"
        if worker.name in self._controller.suspended:
            return "stopped"
        return activity


def read_status(run_dir: Path) -> Status:
    """The last status of a run."""
    path = run_dir / STATUS_FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=Status)
    except FileNotFoundError:
        raise RunError(
            f"{run_dir}: expected a run in processes of its own, got no {STATUS_FILE}. It is "
            "written while a run goes on, in every layout but serial."
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise RunError(f"{path}: expected the status of a run, got {error}.") from None
