"""Handing in a run as a Slurm job: settle it, write it down, and ask for what its hosts need."""

from __future__ import annotations

from srl.experiment import Experiment, build_graph, check_graph
from srl.launch.joining import host_requests
from srl.launch.placement import Placement
from srl.launch.places import HOME
from srl.launch.plan import available_cores, process_names, settle
from srl.launch.run_dir import RunDir
from srl.launch.slurm_job import job_parts, submit
from srl.services.summary import SUMMARY_FILE


def submit_run(experiment: Experiment, directory: RunDir) -> str:
    """Hands in the run and returns the job's number.

    Counts are settled here, by this machine, because the job asks for nodes by them.
    """
    settled = settle(experiment, available_cores(), experiment.trainer.device)
    graph = build_graph(settled)
    check_graph(graph)
    placed = process_names(graph, settled)
    placement = Placement(placed, settled.hosts, apart=settled.trainer.trust_network)
    at_home = [
        group
        for process, members in placed.items()
        if placement.preferred[process] == HOME
        for group, _, _ in members
    ]
    parts = job_parts(settled.resources.of(at_home), host_requests(settled, placed, placement))
    # Only to see that nobody trains there: the job has its own.
    with directory.locked():
        directory.write_config(settled)
        # How the job went is in one of its own.
        (directory.path / SUMMARY_FILE).unlink(missing_ok=True)
    return submit(settled.name, directory.path, parts, settled.slurm)
