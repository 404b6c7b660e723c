"""Planning in a worker process.

A plan needs the shapes of the networks, so whoever makes it imports torch. A trainer's process does
that in any case: it makes the plan, and the launcher is spared another second of everyone's time.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

import srl.errors
from srl.arena.shm import CONTROLLER, ShmArena
from srl.data.spec import EnvSpec
from srl.errors import RunError, SrlError
from srl.experiment import Experiment
from srl.files import write_whole
from srl.launch.plan import algorithm_settings, make_plan, network_settings
from srl.settings import convert
from srl.workers.wiring import Plan

ANSWER_FILE = "plan.json"


class Draft(msgspec.Struct, tag=True, kw_only=True):
    """What a plan is made of; see `make_plan`."""

    experiment: dict[str, Any]
    env_spec: EnvSpec
    device: str
    base_versions: dict[str, int]
    weights: dict[str, str]
    folder: str
    """The run's folder in shared memory, where the answer goes."""


class Planned(msgspec.Struct, tag=True, kw_only=True):
    """The answer: a plan, and the settings it was made of with all defaults spelt out."""

    plan: Plan
    algorithm: dict[str, Any]
    network: dict[str, Any]


class Refused(msgspec.Struct, tag=True, kw_only=True):
    """The answer where the experiment cannot work: the exception that a user will see."""

    error: str
    """Its name in `srl.errors`."""
    message: str


def write_answer(draft: Draft) -> None:
    """Makes the plan, leaves the answer in the run's folder and wakes the launcher."""
    folder = Path(draft.folder)
    write_whole(folder / ANSWER_FILE, msgspec.json.encode(_answer(draft)))
    arena = ShmArena(folder, "planner")
    arena.ring(CONTROLLER)
    arena.close()


def _answer(draft: Draft) -> Planned | Refused:
    try:
        experiment = convert(draft.experiment, Experiment, "")
        plan, _ = make_plan(
            experiment,
            draft.env_spec,
            draft.device,
            base_versions=draft.base_versions,
            weights=draft.weights,
        )
        return Planned(
            plan=plan,
            algorithm=algorithm_settings(experiment),
            network=network_settings(experiment),
        )
    except SrlError as error:
        return Refused(error=type(error).__name__, message=str(error))


def read_answer(folder: Path) -> Planned | None:
    """The answer, None while it is awaited; a refusal is raised."""
    try:
        data = (folder / ANSWER_FILE).read_bytes()
    except FileNotFoundError:
        return None
    answer: Planned | Refused = msgspec.json.decode(data, type=Planned | Refused)
    if isinstance(answer, Refused):
        kind: type[SrlError] = getattr(srl.errors, answer.error, RunError)
        # Past its constructor, which for some exceptions makes the message.
        raise kind.__new__(kind, answer.message)
    return answer
