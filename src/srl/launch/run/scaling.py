"""Scales a run: workers join and leave it while it goes on.

The plan has room for a group's `max_count` workers; the head starts and ends processes within it.
Batches keep their size, so scaling does not change what is learned.
"""

from __future__ import annotations

from pathlib import Path

from srl.errors import ConfigError
from srl.launch.run.controller import Controller
from srl.launch.run.process_table import ProcessTable
from srl.plan import Plan
from srl.services.messages import Note


def processes_of(plan: Plan, group: str) -> list[str]:
    """The processes of a group, ordered by number."""
    return [worker.process for worker in plan.workers if worker.group == group]


def check_scale(plan: Plan, counts: dict[str, int], run_dir: Path) -> None:
    """Raises if the plan has no room for so many workers."""
    groups = list(dict.fromkeys(worker.group for worker in plan.workers))
    for group, count in counts.items():
        if group not in groups:
            raise ConfigError(
                f"scale: expected a group of workers ({', '.join(groups)}), got {group!r}."
            )
        room = len(processes_of(plan, group))
        if not 1 <= count <= room:
            hint = f" {_how_to_get_more(plan, group, count, run_dir)}" if count > room else ""
            raise ConfigError(
                f"scale: expected 1 to {room} workers of {group!r}, got {count}.{hint}"
            )


def _how_to_get_more(plan: Plan, group: str, count: int, run_dir: Path) -> str:
    """Text that says how to get more workers of a group than the plan has room for."""
    inline = plan.experiment["layout"] == "inline"
    owner = {"actor": "actor", "policy": "actor" if inline else "inference"}.get(group)
    if any(worker.trains for worker in plan.workers if worker.group == group):
        # Trainers divide each batch among them, so their number is part of the plan.
        setting, then = "trainer.count", ""
    elif group == "evaluator":
        setting, then = "evaluator.count", ""
    elif owner is not None:
        setting, then = f"{owner}.max_count", f", then `srl scale {run_dir} {group}={count}`"
    else:
        return f"Give the group {group!r} room in the run's dataflow (WorkerGroup.max_count)."
    fixed = "" if then else f"The number of {group} workers is fixed while a run goes on. "
    return (
        f"{fixed}Stop the run, which keeps a checkpoint, and go on with `srl resume {run_dir} "
        f"--set {setting}={count}`{then}."
    )


def check_streams(plan: Plan, counts: dict[str, int]) -> None:
    """Raises if a stream would have no writer or no reader left."""
    workers = {worker.name: worker for worker in plan.workers}
    for name, stream in plan.samples.items():
        for verb, ends in (("writes", stream.writers), ("reads", stream.readers)):
            here = [workers[end] for end in ends]
            if not any(w.index < counts.get(w.group, w.index + 1) for w in here):
                first = min(here, key=lambda w: w.index)
                raise ConfigError(
                    f"scale: expected at least {first.index + 1} workers of {first.group!r}, so "
                    f"that a worker {verb} stream {name!r}, got {counts[first.group]}."
                )


class Scaling:
    """Carries out the requests of `srl scale`."""

    def __init__(self, run_dir: Path, controller: Controller, process_table: ProcessTable) -> None:
        self._run_dir = run_dir
        self._controller = controller
        self._process_table = process_table

    def scale(self, counts: dict[str, int]) -> None:
        """Starts and ends processes, so that each group has this many workers."""
        plan, process_table = self._controller.plan, self._process_table
        check_scale(plan, counts, self._run_dir)
        groups = {worker.group for worker in plan.workers}
        scaled = {g: len(process_table.wanted.intersection(processes_of(plan, g))) for g in groups}
        check_streams(plan, {**scaled, **counts})
        for group, count in counts.items():
            processes = processes_of(plan, group)
            for process in processes[:count]:
                process_table.add(process)
            for process in processes[count:]:
                if process in process_table.wanted:
                    process_table.remove(process)
            text = f"{group}: {scaled[group]} -> {count} workers"
            self._controller.collector.add(Note("controller", "info", text))
