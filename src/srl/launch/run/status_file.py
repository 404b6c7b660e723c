"""Writes the status of a run into its folder, every second."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec

from srl.files import write_atomically
from srl.launch.cluster.node import HEAD_HOST, Node
from srl.launch.cluster.remote_node import RemoteNode
from srl.launch.run.controller import Controller
from srl.launch.run.dataflow_status import DataflowStatus
from srl.launch.run.process_table import ProcessTable
from srl.launch.run.restarts import Restarts
from srl.launch.run.status import STATUS_FILE, HostStatus, RunStatus, WorkerStatus
from srl.launch.run.throttle import Throttle
from srl.plan import Plan
from srl.services.worker_times import WorkerTimes, since
from srl.streams.sample_accounting import StreamAccount

EVERY_SECONDS = 1.0
_RATES = ("updates", "env_steps", "rows", "episodes")
"""Counters that a worker's speed is measured by; the first one that is not 0 is used."""


class OneThread:
    """In place of a process table, for a run whose workers all run in this thread."""

    head = None
    traffic = None

    def __init__(self, plan: Plan) -> None:
        self.wanted = set(plan.processes)
        self.where = dict.fromkeys(plan.processes, HEAD_HOST)
        self.nodes: dict[str, Node] = {}

    def node_of(self, process: str) -> Node | None:
        """None: no node started this process."""
        return None

    def is_alive(self, process: str) -> bool:
        """True: it asks itself."""
        return True

    def is_cut_off(self, process: str) -> bool:
        """False: it is here."""
        return False


class StatusFile:
    """Writes the status file of a run."""

    def __init__(
        self,
        run_dir: Path,
        controller: Controller,
        process_table: ProcessTable | OneThread,
        restarts: Restarts,
    ) -> None:
        self._path = run_dir / STATUS_FILE
        self._controller = controller
        self._process_table = process_table
        self._restarts = restarts
        self._dataflow = DataflowStatus(controller.plan, controller.arena, self._accounts_elsewhere)
        self._groups = {worker.name: worker.group for worker in controller.plan.workers}
        self._own_pid = os.getpid() if isinstance(process_table, OneThread) else 0
        self._where: dict[str, str] = {}
        """The host on which each process is, or was last."""
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
        policies = controller.names.results(controller.collector.snapshot())
        self._where.update(process_table.where)
        boxes, flows = self._dataflow.look(self._where, workers, policies)
        diagnosis = controller.diagnose()
        return RunStatus(
            written=time.time(),
            name=controller.experiment.name,
            seconds=controller.seconds,
            env_steps=controller.env_steps,
            policy_version=max(row.get("count_policy_version") for row in rows),
            policies=policies,
            join=process_table.head.address if process_table.head is not None else "",
            hosts=tuple(self._hosts()),
            workers=workers,
            scaled=scaled,
            capacity=capacity,
            layout=controller.experiment.layout,
            boxes=boxes,
            flows=flows,
            bottleneck=diagnosis.text,
            bottleneck_setting=diagnosis.setting,
        )

    def _accounts_elsewhere(self) -> list[dict[str, StreamAccount]]:
        """The accounts of sample streams on each other host that is or was here."""
        if self._process_table.head is None:
            return []
        hosts = self._process_table.head.hosts
        return [p.accounts for p in (*hosts.nodes.values(), *hosts.lost)]

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
            pid=node.pid(worker.process) if node is not None else self._own_pid,
            state=self._state(worker, row.activity),
            rate=worker.counters.get(unit, 0.0) / elapsed,
            unit=unit,
            busy=min(1.0, worker.busy_seconds / elapsed),
            waits={name: min(1.0, s / elapsed) for name, s in worker.waits.items() if s > 0},
            restarts=self._restarts.total.get(worker.process, 0),
            env_failures=row.get("count_env_failures"),
            group=self._groups[worker.name],
            process=worker.process,
            restarted=self._restarted(worker.process),
        )

    def _restarted(self, process: str) -> float:
        seconds = self._restarts.seconds_since(process)
        return time.time() - seconds if seconds is not None else 0.0

    def _state(self, worker: WorkerTimes, activity: str) -> str:
        if not self._process_table.is_alive(worker.process):
            return "to be started" if worker.process in self._process_table.wanted else "finished"
        if self._process_table.is_cut_off(worker.process):
            return "cut off"
        if worker.name in self._controller.suspended:
            return "stopped"
        return activity
