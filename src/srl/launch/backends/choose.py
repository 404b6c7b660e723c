"""Chooses the backend that starts the agents of a run, and the hosts to request from it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from srl.experiment import Experiment
from srl.launch.backends.backend import Backend, HostRequest
from srl.launch.backends.local import LocalAgents, ManualAgents
from srl.launch.plan.placement import Placed, Placement
from srl.resolve import resolve

BACKENDS = {
    "ray": "srl.launch.backends.ray:RayBackend",
    "slurm": "srl.launch.backends.slurm:SlurmBackend",
}
"""Import paths of backends that need a package or a cluster. Each takes `(experiment, run_dir)`."""


def make_backend(experiment: Experiment, run_dir: Path) -> Backend:
    """Makes the backend that the `launcher` setting names."""
    match experiment.launcher:
        case "processes":
            return LocalAgents(run_dir, experiment.stopped_seconds)
        case "manual":
            return ManualAgents()
        case other:
            kind: Any = resolve(BACKENDS[other])
            backend: Backend = kind(experiment, run_dir)
            return backend


def host_requests(
    experiment: Experiment, placed: Placed, placement: Placement
) -> list[HostRequest]:
    """A request for each host of the `hosts` setting, with what its workers need."""
    requests = []
    for name, groups in experiment.hosts.items():
        workers = [
            group
            for process, members in placed.items()
            if placement.preferred[process] == name
            for group, _, _ in members
        ]
        requests.append(
            HostRequest(
                name=name, kind="+".join(groups), resources=experiment.resources.of(workers)
            )
        )
    return requests
