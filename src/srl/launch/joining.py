"""Which engine starts the agents of a run, and what it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from srl.experiment import Experiment
from srl.launch.engines import Engine, HostRequest
from srl.launch.local_agents import LocalAgents, People
from srl.launch.placement import Placed, Placement
from srl.resolve import resolve

ENGINES = {"ray": "srl.launch.ray:RayEngine", "slurm": "srl.launch.slurm:SlurmEngine"}
"""Engines that need a package or a cluster; each is made by `(experiment, run_dir)`."""


def make_engine(experiment: Experiment, run_dir: Path) -> Engine:
    """The engine that the `launcher` setting names."""
    match experiment.launcher:
        case "processes":
            return LocalAgents(run_dir)
        case "manual":
            return People()
        case other:
            kind: Any = resolve(ENGINES[other])
            engine: Engine = kind(experiment, run_dir)
            return engine


def host_requests(
    experiment: Experiment, placed: Placed, placement: Placement
) -> list[HostRequest]:
    """What each host of the `hosts` setting needs, for the workers that are placed there."""
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
