"""What the contract tests share: carriers, small streams, and puppets (real processes)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from srl.arena.arena import Arena, HeapArena
from srl.arena.shm import RunFolder, ShmArena, WakePipe
from srl.data.records import Trajectory
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.services.parameters import ParameterSpec
from srl.streams.inference import InferenceSpec, create_inference
from srl.streams.sample import SampleSink, SampleSpec, Slot, create_sample
from srl.streams.sample_accounting import StreamAccount
from srl.streams.sample_queue import FragmentInfo

if TYPE_CHECKING:
    from hosts import TcpCarrier

AGENT = AgentSpec(
    obs={"a": ArraySpec(shape=(2,)), "b": ArraySpec(dtype="uint8")}, action=Discrete(5)
)
EXTRAS = {"value": ArraySpec()}
STATE = {"h": ArraySpec(shape=(3,))}


@dataclass
class Carrier:
    """One way to carry streams: an arena for each process that takes part."""

    name: str
    folder: Path | None
    open: Callable[[str], Arena]

    def wake_pipe(self, process: str) -> WakePipe:
        assert self.folder is not None
        return WakePipe(self.folder, process)

    def create(self, spec: SampleSpec | InferenceSpec | ParameterSpec) -> None:
        """Makes a stream where its ends will be."""
        _create(spec, self.open("controller"))

    def agent(self, process: str) -> Arena:
        """What whoever watches over a process sees: its host's memory."""
        return self.open("controller")

    def publish(self, version: int) -> None:
        """Says at the owner of a sample stream which weights are the newest."""


def _create(
    spec: SampleSpec | InferenceSpec | ParameterSpec, arena: Arena, owned_elsewhere: bool = False
) -> None:
    match spec:
        case SampleSpec():
            create_sample(spec, arena, owned_elsewhere=owned_elsewhere)
        case InferenceSpec():
            create_inference(spec, arena)


class InlineCarrier(Carrier):
    def __init__(self) -> None:
        arena = HeapArena()
        super().__init__("inline", None, lambda process: arena)

    def close(self) -> None:
        pass


class ShmCarrier(Carrier):
    """Every process (real, or played by the test) maps the memory for itself."""

    def __init__(self) -> None:
        self._run = RunFolder()
        self._arenas: list[ShmArena] = []
        self._puppets: list[Puppet] = []
        super().__init__("shm", self._run.path, self._open)

    def _open(self, process: str) -> ShmArena:
        self._arenas.append(ShmArena(self._run.path, process))
        return self._arenas[-1]

    def puppet(self, process: str) -> Puppet:
        self._puppets.append(Puppet(self._run.path, process))
        return self._puppets[-1]

    def close(self) -> None:
        for puppet in self._puppets:
            puppet.end()
        for arena in self._arenas:
            arena.close()
        self._run.remove()


def make_carrier(name: str) -> InlineCarrier | ShmCarrier | TcpCarrier:
    match name:
        case "inline":
            return InlineCarrier()
        case "shm":
            return ShmCarrier()
        case _:
            from hosts import TcpCarrier

            return TcpCarrier()


class Puppet:
    """A real process at one end of a stream, moved by the test one call at a time."""

    def __init__(self, folder: Path, process: str, bridged: bool = False) -> None:
        script = str(Path(__file__).with_name("puppet.py"))
        self._process = subprocess.Popen(
            [sys.executable, script, str(folder), process, *(["bridged"] if bridged else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.pid = self._process.pid

    def start(self, call: str, **arguments: Any) -> None:
        """Begins a call; `result` waits for what it returns."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([call, arguments]) + "\n")
        self._process.stdin.flush()

    def result(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the puppet ended with {self._process.wait()}"
        return json.loads(line)

    def __call__(self, call: str, **arguments: Any) -> Any:
        self.start(call, **arguments)
        return self.result()

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        """Kills it and reaps it: afterwards its death is certain."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self._process.kill()
        self._process.communicate()


def sample_spec(**changes: Any) -> SampleSpec:
    """A stream of small fragments."""
    length = changes.pop("length", 4)
    base: dict[str, Any] = {
        "name": "test",
        "record": TrajectorySpec(
            length=length,
            rows=3,
            envs=3,
            agent=AGENT,
            extras=EXTRAS,
            policy_state=STATE,
            row={"key": ArraySpec(dtype="int64")},
        ),
        "slots": 4,
        "writers": ("w0",),
        "readers": ("r0",),
    }
    return SampleSpec(**{**base, **changes})


def inference_spec(**changes: Any) -> InferenceSpec:
    """A stream of small requests."""
    base: dict[str, Any] = {
        "name": "test",
        "agent": AGENT,
        "extras": EXTRAS,
        "policy_state": STATE,
        "rows": 3,
        "slots_per_client": 2,
        "clients": ("c0",),
        "servers": ("s0",),
    }
    return InferenceSpec(**{**base, **changes})


def plain(spec: SampleSpec | InferenceSpec) -> str:
    """A spec as a puppet is given it."""
    return msgspec.json.encode(spec).decode()


def claim(sink: SampleSink, version: int = 0) -> Slot | None:
    """A slot; where slots are granted by another host, the first look only asks for one."""
    return sink.claim(version) or sink.claim(version)


def fill(trajectory: Trajectory, tag: float, version: int = 0) -> None:
    """Writes a whole fragment that can be told from others."""
    for name in ("is_first", "terminated", "truncated"):
        getattr(trajectory, name).fill(False)
    trajectory.alive.fill(True)
    trajectory.acted.fill(True)
    trajectory.obs["a"].fill(tag)
    trajectory.obs["b"].fill(int(tag) % 256)
    trajectory.action.fill(int(tag) % 5)
    trajectory.reward.fill(tag)
    trajectory.policy_version.fill(version)
    trajectory.extras["value"].fill(tag)
    trajectory.policy_state["h"].fill(tag)
    trajectory.row["key"][...] = int(tag) + np.arange(3)


def write(slot: Slot, tag: float, version: int = 0) -> None:
    """Fills and commits."""
    fill(slot.trajectory, tag, version)
    slot.commit(FragmentInfo(len(slot.trajectory.reward), 12))


def tag_of(trajectory: Trajectory) -> float:
    """What a fragment was filled with; all of it, or the test fails."""
    tag = float(trajectory.reward[0, 0])
    assert (trajectory.reward == tag).all()
    assert (trajectory.obs["a"] == tag).all()
    assert (trajectory.obs["b"] == int(tag) % 256).all()
    assert (trajectory.extras["value"] == tag).all()
    assert (trajectory.policy_state["h"] == tag).all()
    assert (trajectory.action == int(tag) % 5).all()
    assert (trajectory.row["key"] == int(tag) + np.arange(3)).all()
    return tag


def versions_of(trajectory: Trajectory) -> np.ndarray:
    return trajectory.policy_version[:-1][trajectory.acted[:-1]]


def dropped(accounts: StreamAccount) -> dict[str, int]:
    """What was dropped, by reason."""
    return {reason: count for reason, count in accounts.dropped.items() if count}
