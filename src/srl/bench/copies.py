"""Processes that each run a copy of a workload's parts, so that a part can be measured while all
cores do the same.

Each copy builds its parts, says that it is ready, and then does what it is told, one line of JSON
at a time: run one part for some seconds, and say what a call of it took.
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
from srl.launch.children import single_threaded
from srl.settings import convert, to_plain

CHUNK_SECONDS = 0.05
"""Calls are timed together until they took this long: one call may be shorter than the clock."""
WARM_SECONDS = 0.3


class Order(msgspec.Struct, kw_only=True):
    """What a copy is told to run."""

    part: str
    """"env", "inference", "training:<policy>", or "loop" for all in turn."""
    envs: int
    """The size of the group, or of the batch, in environments."""
    seconds: float
    threads: int = 1


class Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What a call took in each of many short pieces of a measurement, and all calls together."""

    walls: list[float]
    cpus: list[float]
    """Of all threads."""
    calls: int
    seconds: float
    """Of all calls."""

    @property
    def wall(self) -> float:
        """Seconds of a call: the median over the pieces."""
        return statistics.median(self.walls)

    @property
    def cpu(self) -> float:
        """Core-seconds of a call: the median over the pieces."""
        return statistics.median(self.cpus)

    @staticmethod
    def together(found: list[Taken]) -> Taken:
        """The pieces of several measurements, as if they were of one."""
        return Taken(
            walls=[wall for one in found for wall in one.walls],
            cpus=[cpu for one in found for cpu in one.cpus],
            calls=sum(one.calls for one in found),
            seconds=max(one.seconds for one in found),
        )


class Setup(msgspec.Struct, kw_only=True):
    """The first line that a copy reads."""

    experiment: dict[str, Any]
    device: str
    sizes: tuple[int, ...]
    """Group and batch sizes that its parts are made for."""
    batches: tuple[int, ...] = ()
    """Those of them that need a batch to learn from."""


class Copies:
    """So many processes; `run` has all of them, or the first of them, run one part at once."""

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
                # As worker processes are: the kernel shares cores fairly between sessions.
                start_new_session=True,
            )
            self._children.append(self._stack.enter_context(child))
            self._stack.callback(_end, child)
        for child in self._children:
            _tell(child, msgspec.json.encode(setup))
        for child in self._children:
            _hear(child)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stack.close()

    def run(self, order: Order, *, count: int | None = None) -> list[Taken]:
        """What each copy took; the others sleep."""
        return self.run_each([order] * len(self._children[:count]))

    def run_each(self, orders: list[Order]) -> list[Taken]:
        """The same with an order for each of the first copies, all at the same time."""
        chosen = self._children[: len(orders)]
        for child, order in zip(chosen, orders, strict=True):
            _tell(child, msgspec.json.encode(order))
        return [msgspec.json.decode(_hear(child), type=Taken) for child in chosen]


def _tell(child: subprocess.Popen[bytes], line: bytes) -> None:
    assert child.stdin is not None
    try:
        child.stdin.write(line + b"\n")
        child.stdin.flush()
    except BrokenPipeError:
        raise _failed(child) from None


def _hear(child: subprocess.Popen[bytes]) -> bytes:
    assert child.stdout is not None
    line = child.stdout.readline()
    if not line:
        raise _failed(child)
    return line


def _failed(child: subprocess.Popen[bytes]) -> RunError:
    assert child.stderr is not None
    said = child.stderr.read().decode(errors="replace").strip().splitlines()
    return RunError(f"bench: a copy of the workload's parts failed: {said[-1] if said else '?'}")


def _end(child: subprocess.Popen[bytes]) -> None:
    """A copy ends by itself when nobody tells it anything more."""
    assert child.stdin is not None
    with suppress(BrokenPipeError):
        child.stdin.close()
    try:
        child.wait(timeout=10.0)
    except subprocess.TimeoutExpired:
        child.kill()


# -- the copy's own process ------------------------------------------------------------------------


def timed(call: Callable[[], None], seconds: float) -> Taken:
    """Calls it for so long, after a short while that does not count."""
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
    return Taken(
        walls=walls,
        cpus=cpus,
        calls=chunk * len(walls),
        seconds=time.perf_counter() - start,
    )


def main() -> int:
    """A copy: reads its setup and then orders, until there are no more."""
    import torch

    from srl.bench.parts import Parts
    from srl.launch.allocator import keep_large_buffers

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
        order = msgspec.json.decode(line, type=Order)
        torch.set_num_threads(order.threads)
        mine = parts[order.envs]
        kind, _, policy = order.part.partition(":")
        calls: dict[str, Callable[[], None]] = {
            "env": mine.random_stepper(),
            "inference": mine.choose,
            "loop": mine.loop,
        }
        call = mine.lanes[policy].update if kind == "training" else calls[kind]
        answer.write(msgspec.json.encode(timed(call, order.seconds)) + b"\n")
        answer.flush()
    for part in parts.values():
        part.close()
    return 0


def setup_of(
    experiment: Experiment, device: str, sizes: tuple[int, ...], batches: tuple[int, ...]
) -> Setup:
    """The setup of copies of an experiment's parts."""
    return Setup(experiment=to_plain(experiment), device=device, sizes=sizes, batches=batches)


if __name__ == "__main__":
    sys.exit(main())
