"""Processes that each run a copy of a workload's parts, to measure a part while all cores run it.

Each copy builds its parts and reports that it is ready. Then it follows orders: each is one line of
JSON, which says to run one part for some seconds. The copy answers with the time of a call.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any, Self

import msgspec

from srl.errors import RunError
from srl.experiment import Experiment
from srl.launch.process.children import single_threaded
from srl.settings import convert, to_plain

CHUNK_SECONDS = 0.05
"""Calls are timed in chunks of this length, because one call may be too short for the clock."""
WARM_SECONDS = 0.3
"""A part runs for this long before its time counts."""


class CopyOrder(msgspec.Struct, kw_only=True):
    """An order to a copy: which part to run, and for how long."""

    part: str
    """"env", "inference", "training:<policy>", or "loop" for all in turn."""
    envs: int
    """The size of the group, or of the batch, in environments."""
    seconds: float
    threads: int = 1


class CopyTiming(msgspec.Struct, frozen=True, kw_only=True):
    """The time of a call in each chunk of a measurement, and the totals of all chunks."""

    walls: list[float]
    """Seconds of a call, for each chunk."""
    cpus: list[float]
    """Core-seconds of a call in all threads, for each chunk."""
    calls: int
    """Calls in all chunks."""
    seconds: float
    """Seconds of all chunks."""

    @property
    def wall(self) -> float:
        """Seconds of a call: the median over the chunks."""
        return statistics.median(self.walls)

    @property
    def cpu(self) -> float:
        """Core-seconds of a call: the median over the chunks."""
        return statistics.median(self.cpus)

    @staticmethod
    def together(found: list[CopyTiming]) -> CopyTiming:
        """Joins several measurements into one that has the chunks of all."""
        return CopyTiming(
            walls=[wall for one in found for wall in one.walls],
            cpus=[cpu for one in found for cpu in one.cpus],
            calls=sum(one.calls for one in found),
            seconds=max(one.seconds for one in found),
        )


class Setup(msgspec.Struct, kw_only=True):
    """The first line that a copy reads: which parts to build."""

    experiment: dict[str, Any]
    device: str
    sizes: tuple[int, ...]
    """The sizes of groups and batches, in environments; each gets parts of its own."""
    batches: tuple[int, ...] = ()
    """The sizes that need a batch to learn from."""


class Copies:
    """Starts `count` copies, which `run` one part at the same time."""

    def __init__(self, count: int, setup: Setup) -> None:
        self._stack = ExitStack()
        self._children = []
        for _ in range(count):
            child = subprocess.Popen(
                [sys.executable, "-m", "srl.bench.copies"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=single_threaded(),
                # As for worker processes, because the kernel shares cores fairly between sessions.
                start_new_session=True,
            )
            self._children.append(self._stack.enter_context(child))
            self._stack.callback(_end, child)
        for child in self._children:
            _send(child, msgspec.json.encode(setup))
        for child in self._children:
            _receive(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(self, order: CopyOrder, *, count: int | None = None) -> list[CopyTiming]:
        """Runs an order in the first `count` copies (None: in all); the other copies sleep."""
        return self.run_each([order] * len(self._children[:count]))

    def run_each(self, orders: list[CopyOrder]) -> list[CopyTiming]:
        """The same with one order for each of the first copies, all at the same time."""
        chosen = self._children[: len(orders)]
        for child, order in zip(chosen, orders, strict=True):
            _send(child, msgspec.json.encode(order))
        return [msgspec.json.decode(_receive(child), type=CopyTiming) for child in chosen]


def _send(child: subprocess.Popen[bytes], line: bytes) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(line + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        raise _failed(child) from None


def _receive(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise _failed(child)
    return line


def _failed(child: subprocess.Popen[bytes]) -> RunError:
    assert child.stderr is not None
    lines = child.stderr.read().decode(errors="replace").strip().splitlines()
    return RunError(f"bench: a copy of the workload's parts failed: {lines[-1] if lines else '?'}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """Ends a copy: it leaves when its input is closed, and is killed if it does not."""
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.close()
    try:
        child.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        child.kill()


# -- the process of a copy -------------------------------------------------------------------------


def timed(call: Callable[[], None], seconds: float) -> CopyTiming:
    """Times `call` for some seconds, after a warm-up that does not count."""
    start = time.perf_counter()
    calls = 0
    while calls == 0 or time.perf_counter() - start < WARM_SECONDS:
        call()
        calls += 1
    once = (time.perf_counter() - start) / calls
    chunk = max(1, round(CHUNK_SECONDS / once))
    walls: list[float] = []
    cpus: list[float] = []
    start = time.perf_counter()
    while not walls or time.perf_counter() - start < seconds:
        wall, cpu = time.perf_counter(), time.process_time()
        for _ in range(chunk):
            call()
        walls.append((time.perf_counter() - wall) / chunk)
        cpus.append((time.process_time() - cpu) / chunk)
    return CopyTiming(
        walls=walls,
        cpus=cpus,
        calls=chunk * len(walls),
        seconds=time.perf_counter() - start,
    )


def main() -> int:
    """The main function of a copy: reads its setup, then follows orders until the input ends."""
    import torch

    from srl.bench.parts import Parts
    from srl.launch.process.allocator import keep_large_buffers

    torch.set_num_threads(1)
    keep_large_buffers()
    setup = msgspec.json.decode(sys.stdin.buffer.readline(), type=Setup)
    experiment = convert(setup.experiment, Experiment, "")
    parts = {size: Parts(experiment, size, setup.device) for size in setup.sizes}
    for size in setup.sizes:
        if size in setup.batches:
            parts[size].collect()
        else:
            parts[size].act()
    answer = sys.stdout.buffer
    answer.write(b"ready\n")
    answer.flush()
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=CopyOrder)
        torch.set_num_threads(order.threads)
        own_parts = parts[order.envs]
        kind, _, policy = order.part.partition(":")
        calls: dict[str, Callable[[], None]] = {
            "env": own_parts.random_stepper(),
            "inference": own_parts.choose,
            "loop": own_parts.loop,
        }
        call = own_parts.policies[policy].update if kind == "training" else calls[kind]
        answer.write(msgspec.json.encode(timed(call, order.seconds)) + b"\n")
        answer.flush()
    for part in parts.values():
        part.close()
    return 0


def setup_of(
    experiment: Experiment, device: str, sizes: tuple[int, ...], batches: tuple[int, ...]
) -> Setup:
    """The setup of the copies for an experiment."""
    return Setup(experiment=to_plain(experiment), device=device, sizes=sizes, batches=batches)


if __name__ == "__main__":
    sys.exit(main())
