"""Workers that join and leave a running experiment: what `srl scale` asks for, as a file.

The plan has room for a group's `max_count` workers; the head starts and ends processes within it.
Batches keep their size, so what is learned from does not change.
"""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from srl.errors import ConfigError
from srl.launch.controller import Controller
from srl.launch.fleet import Fleet
from srl.services.messages import Note
from srl.workers.wiring import Plan

SCALE_FILE = "scale.json"
EVERY_SECONDS = 0.5


class ScaleRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How many workers of each group are to run."""

    counts: dict[str, int]


def processes_of(plan: Plan, group: str) -> list[str]:
    """The processes of a group in the order of their numbers."""
    return [worker.process for worker in plan.workers if worker.group == group]


def check_scale(counts: dict[str, int], capacity: dict[str, int], scaled: dict[str, int]) -> None:
    """Raises if the plan has no room for so many workers."""
    for group, count in counts.items():
        if group not in capacity:
            raise ConfigError(
                f"scale: expected a group of workers ({', '.join(capacity)}), got {group!r}."
            )
        if not 1 <= count <= capacity[group]:
            fixed = capacity[group] == scaled[group]
            hint = "" if not fixed else ". Start (or resume) the run with room for more"
            raise ConfigError(
                f"scale: expected 1 to {capacity[group]} workers of {group!r}, got "
                f"{count}{hint}: --set {group}.max_count={max(count, 1)}."
            )


def check_streams(plan: Plan, counts: dict[str, int]) -> None:
    """Raises if nobody would be left at some end of a stream."""
    workers = {worker.name: worker for worker in plan.workers}
    for name, stream in plan.samples.items():
        for verb, ends in (("writes", stream.writers), ("reads", stream.readers)):
            here = [workers[end] for end in ends]
            if not any(w.index < counts.get(w.group, w.index + 1) for w in here):
                first = min(here, key=lambda w: w.index)
                raise ConfigError(
                    f"scale: expected at least {first.index + 1} workers of {first.group!r}, so "
                    f"that someone {verb} stream {name!r}, got {counts[first.group]}."
                )


class Scaling:
    """Does what the file asks for."""

    def __init__(self, run_dir: Path, controller: Controller, fleet: Fleet) -> None:
        self._path = run_dir / SCALE_FILE
        self._controller = controller
        self._fleet = fleet
        self._next = 0.0
        # What a run before this one was asked for is over.
        self._path.unlink(missing_ok=True)

    def step(self) -> None:
        """Looks for a request now and then."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + EVERY_SECONDS
        try:
            data = self._path.read_bytes()
        except OSError:
            return
        self._path.unlink(missing_ok=True)
        try:
            self._scale(msgspec.json.decode(data, type=ScaleRequest).counts)
        except (msgspec.DecodeError, ConfigError) as error:
            self._say("warning", str(error))

    def _scale(self, counts: dict[str, int]) -> None:
        plan, fleet = self._controller.plan, self._fleet
        groups = {worker.group for worker in plan.workers}
        capacity = {group: len(processes_of(plan, group)) for group in groups}
        scaled = {g: len(fleet.wanted.intersection(processes_of(plan, g))) for g in groups}
        check_scale(counts, capacity, scaled)
        check_streams(plan, {**scaled, **counts})
        for group, count in counts.items():
            processes = processes_of(plan, group)
            for process in processes[:count]:
                fleet.add(process)
            for process in processes[count:]:
                if process in fleet.wanted:
                    fleet.remove(process)
            self._say("info", f"{group}: {scaled[group]} -> {count} workers")

    def _say(self, level: str, text: str) -> None:
        self._controller.collector.add(Note("controller", level, text))  # type: ignore[arg-type]


def write_request(run_dir: Path, counts: dict[str, int]) -> None:
    """Asks a running experiment for so many workers of each group."""
    aside = run_dir / f".{SCALE_FILE}"
    aside.write_bytes(msgspec.json.encode(ScaleRequest(counts=counts)))
    aside.replace(run_dir / SCALE_FILE)
