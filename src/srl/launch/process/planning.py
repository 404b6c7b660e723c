"""Makes the plan of a run in a worker process.

A plan needs the shapes of the networks, so the process that makes it imports torch. A trainer's
process imports torch in any case. So it makes the plan, and the head saves about a second at the
start of the run.
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
from srl.files import write_atomically
from srl.launch.plan.build import make_plan
from srl.settings import convert
from srl.workers.wiring import Plan

ANSWER_FILE = "plan.json"


class Draft(msgspec.Struct, tag=True, kw_only=True):
    """A request for a plan: the arguments of `make_plan`."""

    experiment: dict[str, Any]
    env_spec: EnvSpec
    device: str
    base_versions: dict[str, int]
    folder: str
    """The run's folder in shared memory, where the answer is written."""


class Planned(msgspec.Struct, tag=True, kw_only=True):
    """The answer: a plan."""

    plan: Plan


class Refused(msgspec.Struct, tag=True, kw_only=True):
    """The answer if the experiment cannot work: the error that the user will see."""

    error: str
    """The name of its class in `srl.errors`."""
    message: str


def write_answer(draft: Draft) -> None:
    """Makes the plan, writes the answer into the run's folder and wakes the head."""
    folder = Path(draft.folder)
    write_atomically(folder / ANSWER_FILE, msgspec.json.encode(_answer(draft)))
    arena = ShmArena(folder, "planner")
    arena.wake(CONTROLLER)
    arena.close()


def _answer(draft: Draft) -> Planned | Refused:
    try:
        experiment = convert(draft.experiment, Experiment, "")
        plan, _ = make_plan(
            experiment,
            draft.env_spec,
            draft.device,
            base_versions=draft.base_versions,
        )
        return Planned(plan=plan)
    except SrlError as error:
        return Refused(error=type(error).__name__, message=str(error))


def read_answer(folder: Path) -> Plan | None:
    """The plan, or None while there is no answer; raises the error of a refusal."""
    try:
        data = (folder / ANSWER_FILE).read_bytes()
    except FileNotFoundError:
        return None
    answer: Planned | Refused = msgspec.json.decode(data, type=Planned | Refused)
    if isinstance(answer, Refused):
        kind: type[SrlError] = getattr(srl.errors, answer.error, RunError)
        # Without the constructor: for some exceptions it would make another message.
        raise kind.__new__(kind, answer.message)
    return answer.plan
