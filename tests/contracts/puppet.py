"""A process that does what a test tells it, line by line: one end of a stream, for real."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from carriers import fill, tag_of, write

from srl.arena.shm import ShmArena, WakePipe
from srl.data.records import InferenceReply, Snapshot
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.streams.inference import InferenceServer, InferenceSpec
from srl.streams.sample import SampleSink, SampleSource, SampleSpec, Slot, TakenFragment
from srl.streams.sample_queue import FragmentInfo

WAIT_SECONDS = 120.0


class Puppet:
    """Each method is a call that a test can make."""

    slot: Slot
    sink: SampleSink
    source: SampleSource
    server: InferenceServer

    def __init__(self, folder: Path, process: str, bridged: bool) -> None:
        self.arena = ShmArena(folder, process, bridged=bridged, lazy=bridged)
        self.wake_pipe = WakePipe(folder, process)
        self.items: list[TakenFragment] = []

    # -- wake pipes and locks ----------------------------------------------------------------------

    def hello(self) -> str:
        return "hello"

    def wake(self, process: str) -> None:
        self.arena.wake(process)

    def wait(self, seconds: float) -> dict[str, Any]:
        """Waits to be woken; how long that took, on the clock and of the processor."""
        start, cpu = time.monotonic(), time.process_time()
        woken = self.wake_pipe.wait(seconds)
        return {
            "woken": woken,
            "seconds": time.monotonic() - start,
            "cpu_seconds": time.process_time() - cpu,
        }

    def hold_lock(self, name: str) -> str:
        self.held = self.arena.lock(name)
        self.held.__enter__()
        return "held"

    # -- samples ---------------------------------------------------------------------------------

    def open_sink(self, spec: str, writer: int) -> None:
        self.sink = SampleSink(msgspec.json.decode(spec, type=SampleSpec), self.arena, writer)

    def claim(self, version: int = 0) -> int | None:
        slot = self.sink.claim(version)
        if slot is None:
            return None
        self.slot = slot
        return slot.index

    def fill(self, tag: float, version: int = 0) -> None:
        fill(self.slot.trajectory, tag, version)

    def commit(self) -> None:
        self.slot.commit(FragmentInfo(len(self.slot.trajectory.reward), 12))

    def claim_soon(self) -> int:
        """Claims a slot, asleep until there is one."""
        while (index := self.claim()) is None:
            assert self.wake_pipe.wait(WAIT_SECONDS), "never woken"
        return index

    def write(self, tag: float) -> None:
        """Writes one item, asleep until there is room."""
        self.claim_soon()
        write(self.slot, tag)

    def write_all(self, first: int, count: int) -> int:
        """Writes items one after another, asleep whenever there is no room."""
        sleeps = 0
        for tag in range(first, first + count):
            while (slot := self.sink.claim(0)) is None:
                sleeps += 1
                assert self.wake_pipe.wait(WAIT_SECONDS), "never woken"
            write(slot, tag)
        self.sink.close()
        return sleeps

    def open_source(self, spec: str, reader: int) -> None:
        self.source = SampleSource(msgspec.json.decode(spec, type=SampleSpec), self.arena, reader)

    def take(self) -> float | None:
        item = self.source.take()
        if item is None:
            return None
        self.items.append(item)
        return tag_of(item.trajectory)

    def release(self) -> None:
        self.items.pop(0).release()

    def acknowledge(self, count: int) -> None:
        self.source.acknowledge(count)

    def read_all(self, looks: int = 1) -> list[float]:
        """Reads to the end, asleep whenever nothing is ready at so many looks."""
        tags = []
        while True:
            items = (self.source.take() for _ in range(looks))
            item = next((found for found in items if found is not None), None)
            if item is not None:
                tags.append(tag_of(item.trajectory))
                item.release()
                self.source.acknowledge(1)
            elif self.source.closed:
                return tags
            else:
                assert self.wake_pipe.wait(WAIT_SECONDS), "never woken"

    # -- inference -------------------------------------------------------------------------------

    def open_server(self, spec: str, server: int) -> None:
        self.server = InferenceServer(
            msgspec.json.decode(spec, type=InferenceSpec), self.arena, server
        )

    def poll(self) -> list[int]:
        self.slots = self.server.poll()
        return self.slots

    def serve(self) -> int:
        """Answers until every client has left; the action is the observation's number."""
        rows = 0
        while True:
            slots = self.server.poll(max_rows=5)
            if slots:
                request, counts = self.server.gather(slots)
                rows += len(request.is_first)
                self.server.answer(
                    slots,
                    counts,
                    InferenceReply(
                        action=request.obs["a"][:, 0].astype(np.int64) % 5,
                        policy_state={"h": request.policy_state["h"] + 1},
                        extras={"value": request.obs["a"][:, 0].copy()},
                        policy_version=1,
                    ),
                )
            elif self.server.closed:
                return rows
            else:
                assert self.wake_pipe.wait(WAIT_SECONDS), "never woken"

    # -- parameters ------------------------------------------------------------------------------

    def publish(self, spec: str, versions: int, until: list[str]) -> int:
        """Publishes weights filled with their version, as fast as it can: so many versions, and
        until all these files exist."""
        decoded = msgspec.json.decode(spec, type=ParameterSpec)
        writer = ParameterWriter(decoded, self.arena)
        weights = {n: np.empty(shape, dtype) for n, (shape, dtype) in decoded.shapes.items()}
        version, deadline = 0, time.monotonic() + WAIT_SECONDS
        while version < versions or not all(Path(path).exists() for path in until):
            version += 1
            for array in weights.values():
                array.fill(version)
            writer.publish(Snapshot(version, weights))
            assert time.monotonic() < deadline, "readers are shut out"
        return version

    def read_until(self, spec: str, different: int, done: str) -> dict[str, Any]:
        """Reads as fast as it can until it has seen so many versions, and makes a file then; which
        versions were seen, and how many were mixtures."""
        decoded = msgspec.json.decode(spec, type=ParameterSpec)
        reader = ParameterReader(decoded, self.arena)
        weights = {n: np.zeros(shape, dtype) for n, (shape, dtype) in decoded.shapes.items()}
        mixtures, seen = 0, [-1]
        while len(set(seen)) <= different:
            seen.append(reader.read(weights))
            if seen[-1] >= 0:
                mixtures += any((array != seen[-1]).any() for array in weights.values())
        Path(done).touch()
        return {"mixtures": mixtures, "seen": seen}


def main() -> None:
    puppet = Puppet(Path(sys.argv[1]), sys.argv[2], sys.argv[3:] == ["bridged"])
    for line in sys.stdin:
        call, arguments = json.loads(line)
        print(json.dumps(getattr(puppet, call)(**arguments)), flush=True)


if __name__ == "__main__":
    main()
