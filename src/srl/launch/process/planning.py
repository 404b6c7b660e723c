"""Makes the plan of a run in a process of its own: `python -m srl.launch.process.planning`.

A plan needs the shapes of the networks, so the process that makes it imports torch. The template
of the workers with torch forks it. So the head imports no torch, and stays small.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

import srl.errors
from srl.data.spec import EnvSpec
from srl.errors import RunError, SrlError
from srl.experiment import Experiment
from srl.files import write_atomically
from srl.launch.plan.build import make_plan
from srl.launch.process.interpreter import exit_now, log_to_stderr
from srl.launch.run.signals import leave_to_parent
from srl.plan import Plan
from srl.settings import convert
from srl.tracebacks import USER_ERRORS, described

ANSWER_FILE = "plan.json"


class Draft(msgspec.Struct, kw_only=True):
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


def main() -> int:
    """Reads a draft from standard input, and writes the answer into the run's folder."""
    leave_to_parent()
    log_to_stderr()
    data = bytearray()
    while not data.endswith(b"\n"):
        more = os.read(0, 1 << 16)
        if not more:
            return 0
        data += more
    draft = msgspec.json.decode(data, type=Draft)
    write_atomically(Path(draft.folder) / ANSWER_FILE, msgspec.json.encode(_answer(draft)))
    return 0


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
    except USER_ERRORS as error:
        return Refused(
            error=RunError.__name__, message=f"the run could not start: {described(error)}"
        )


def read_answer(folder: Path) -> Plan | None:
    """The plan, or None if there is no answer; raises the error of a refusal."""
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


if __name__ == "__main__":
    exit_now(main())
