"""Submits a run as a Slurm job: resolves and saves its settings, and requests its nodes."""

from __future__ import annotations

from srl.experiment import Experiment, build_graph
from srl.graph import check_graph
from srl.launch.backends.choose import host_requests
from srl.launch.backends.slurm_job import job_parts, submit
from srl.launch.cluster.node import HEAD_HOST
from srl.launch.directory.run_dir import RunDir
from srl.launch.plan.build import available_cores, process_names, resolve_settings
from srl.launch.plan.placement import Placement
from srl.reporting.summary import SUMMARY_FILE


def submit_run(experiment: Experiment, directory: RunDir) -> str:
    """Submits the run and returns the job's number.

    Counts that the user left open are computed here, from this machine's cores, because the job
    requests nodes by these counts.
    """
    settled = resolve_settings(experiment, available_cores(), experiment.trainer.device)
    graph = build_graph(settled)
    check_graph(graph)
    placed = process_names(graph, settled)
    placement = Placement(placed, settled.hosts, apart=settled.trainer.trust_network)
    on_head = [
        group
        for process, members in placed.items()
        if placement.preferred[process] == HEAD_HOST
        for group, _, _ in members
    ]
    parts = job_parts(settled.resources.of(on_head), host_requests(settled, placed, placement))
    # The lock only shows that no run trains there. The job takes its own lock.
    with directory.locked():
        directory.write_config(settled)
        # The job will write its own summary.
        (directory.path / SUMMARY_FILE).unlink(missing_ok=True)
    return submit(settled.name, directory.path, parts, settled.slurm)
