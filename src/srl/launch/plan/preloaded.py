"""Which modules the processes of a run import before they have the plan.

There are two lists: one for all processes with torch, and one for all without. So one template
serves each kind. Users' modules are in neither list: they are imported where they are used.
"""

from __future__ import annotations

from srl.algorithms.registry import ALGORITHMS
from srl.envs.packages import packages_of
from srl.experiment import Experiment
from srl.graph import WorkerGroup
from srl.launch.plan.placement import Placed
from srl.policies.registry import POLICIES

_WORKER, _PLANNING = "srl.launch.process.worker", "srl.launch.process.planning"
_GROUPS = "srl.envs.vector_group"
"""The smallest module that imports Gymnasium and the code that all groups share."""


def modules_of(placed: Placed, experiment: Experiment) -> dict[str, tuple[str, ...]]:
    """The modules of each process."""
    with_torch = modules_with_torch(placed, experiment)
    groups = [
        group for members in placed.values() if not _needs_torch(members) for _, group, _ in members
    ]
    without = _sorted(_modules(groups, experiment))
    return {
        process: with_torch if _needs_torch(members) else without
        for process, members in placed.items()
    }


def modules_with_torch(placed: Placed, experiment: Experiment) -> tuple[str, ...]:
    """The modules of all processes with torch, and of the process that makes the plan."""
    groups = [
        group for members in placed.values() if _needs_torch(members) for _, group, _ in members
    ]
    learns = {POLICIES.get(experiment.network["name"], ""), _PLANNING}
    learns.add(ALGORITHMS.get(experiment.algorithm["name"], ""))
    return _sorted(_modules(groups, experiment) | learns)


def _needs_torch(members: list[tuple[str, WorkerGroup, int]]) -> bool:
    """Whether a worker has a network: it serves, learns, or follows weights to act by itself."""
    return any(
        group.serves or group.trains or (group.follows and not group.requests)
        for _, group, _ in members
    )


def _modules(groups: list[WorkerGroup], experiment: Experiment) -> set[str]:
    found = {group.kind for group in groups if group.kind.startswith("srl.")}
    if any(group.requests for group in groups):
        found |= {_GROUPS, *packages_of(experiment.env.id)}
    return found


def _sorted(paths: set[str]) -> tuple[str, ...]:
    """The modules of import paths."""
    return tuple(sorted({path.partition(":")[0] for path in paths | {_WORKER}} - {""}))
