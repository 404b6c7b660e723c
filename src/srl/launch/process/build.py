"""Builds the workers of one process and writes their parts of checkpoints, in every layout."""

from __future__ import annotations

import logging
from pathlib import Path

from srl.arena.arena import Arena
from srl.data.codec import load_state
from srl.plan import Plan, WorkerPlan
from srl.resolve import resolve
from srl.services.checkpoints import Checkpoint, weights_part, write_part
from srl.services.metrics_client import MetricsClient
from srl.services.worker_stats import StatsTable
from srl.tracebacks import USER_ERRORS
from srl.workers.wiring import Context
from srl.workers.worker import CurrentWorker, Worker

log = logging.getLogger("srl")


def build_workers(
    members: list[WorkerPlan],
    plan: Plan,
    *,
    stats_table: StatsTable,
    metrics: MetricsClient,
    shared: Arena,
    local: Arena,
    run_dir: Path,
    current: CurrentWorker,
    address: str = "",
    incarnation: int = 0,
) -> list[Worker]:
    """Builds the workers of one process, in the order of the plan."""
    workers: list[Worker] = []
    for member in members:
        current.name = member.name
        stats = stats_table.rows[member.name]
        stats.enter("starting")
        context = Context(
            plan=plan,
            worker=member,
            stats=stats,
            metrics=metrics,
            shared=shared,
            local=local,
            run_dir=run_dir,
            address=address,
            incarnation=incarnation,
        )
        worker = resolve(member.kind).build(context)
        worker.stats = stats
        workers.append(worker)
    return workers


def write_worker(worker: Worker, folder: Path, exact: bool) -> None:
    """Writes a worker's part of a checkpoint, and the weights it owns."""
    if exact or worker.in_every_checkpoint:
        state = worker.state(exact)
        if state is not None:
            write_part(folder, worker.name, state)
            worker.save_segments(folder)
    for policy, weights in worker.weights().items():
        write_part(folder, weights_part(policy), weights)


def restore_worker(worker: Worker, checkpoint: Checkpoint, *, exact: bool) -> None:
    """Restores a worker from its part, if the checkpoint has one."""
    part = checkpoint.manifest.parts.get(worker.name)
    if part is not None:
        if segments := checkpoint.manifest.segments.get(worker.name):
            worker.load_segments(checkpoint.path, segments)
        worker.restore(load_state(checkpoint.path / part.file), exact)


def close_workers(workers: list[Worker]) -> None:
    """Closes every worker, even if one of them fails: then the error is only logged."""
    for worker in workers:
        try:
            worker.close()
        except USER_ERRORS:
            log.exception("%s failed to close", worker.name)
