"""Collectives between ranks on several hosts, or on GPUs, by torch.distributed.

It uses gloo, or NCCL where each rank has a GPU of its own on one host.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch

from srl.algorithms.collective import CollectiveBroken
from srl.distributed.process_collective import LOOK_SECONDS, ProcessCollective

MEET_SECONDS = 20.0
"""Timeout for connecting the ranks, after all have joined."""
_PORTS = (
    "Trainers listen on ports that the system chooses: their hosts must reach each other on all."
)
NEVER = timedelta(days=1)
"""Timeout of the library itself, which is never reached: time alone cannot tell that a silent rank
is dead."""


class TorchCollective(ProcessCollective):
    """One rank's link, over a process group of torch."""

    def __init__(
        self,
        group: Any,
        rank: int,
        count: int,
        device: str,
        look: Callable[[float], None],
        stopping: Callable[[], bool],
    ) -> None:
        super().__init__(rank, count, look, stopping)
        self._group = group
        self._device = device
        self._work: Any = None

    @property
    def idle(self) -> bool:
        """Whether no operation is under way."""
        return self._work is None or bool(self._work.is_completed())

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`: [count, ...]."""
        found = [torch.empty_like(x) for _ in range(self.count)]
        self._wait(self._group.allgather([found], [x.contiguous()]))
        return torch.stack(found)

    def _total(self, x: torch.Tensor) -> torch.Tensor:
        self._wait(self._group.allreduce([x]))
        return x

    def broadcast(self, data: bytes, source: int) -> bytes:
        """Returns the bytes of the rank `source` on every rank."""
        size = torch.tensor([len(data)], device=self._device)
        self._send(size, source)
        content = torch.zeros(int(size), dtype=torch.uint8, device=self._device)
        if self.rank == source:
            content.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))
        self._send(content, source)
        return content.cpu().numpy().tobytes()

    def _send(self, x: torch.Tensor, source: int) -> None:
        options = torch.distributed.BroadcastOptions()
        options.rootRank, options.rootTensor = source, 0
        self._wait(self._group.broadcast([x], options))

    def _wait(self, work: Any) -> None:
        self._work = work
        start = time.monotonic()
        while not self._ended(work):
            self._look(time.monotonic() - start)
        try:
            work.wait()
        except RuntimeError as error:
            raise CollectiveBroken(str(error)) from error

    def _ended(self, work: Any) -> bool:
        """Whether `work` has ended, well or not; waits for it for LOOK_SECONDS at most."""
        if self._device == "cpu":
            # wait() raises where the work failed, and where the time is over. The work may end
            # between the two, so its result is read only after it has ended.
            with contextlib.suppress(RuntimeError):
                work.wait(timedelta(seconds=LOOK_SECONDS))
            return bool(work.is_completed())
        # wait() would only order it before later work on the device.
        end = time.monotonic() + LOOK_SECONDS
        while not work.is_completed() and time.monotonic() < end:
            time.sleep(0.0002)
        return bool(work.is_completed())


def connect(link: Callable[[], Any], look: Callable[[float], None]) -> Any:
    """Makes a process group with `link`, in a thread, so that a rank that dies meanwhile is
    noticed."""
    made: list[Any] = []
    failed: list[Exception] = []

    def make() -> None:
        try:
            made.append(link())
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=make, daemon=True)
    start = time.monotonic()
    thread.start()
    while thread.is_alive():
        thread.join(0.05)
        waited = time.monotonic() - start
        look(waited)
        if waited > MEET_SECONDS:
            raise CollectiveBroken(f"no connection within {waited:.0f} s. {_PORTS}")
    if failed:
        raise CollectiveBroken(f"no connection ({failed[0]}). {_PORTS}") from failed[0]
    return made[0]


def make_group(file: Path, rank: int, count: int, device: torch.device, address: str) -> Any:
    """Makes a process group; its ranks find each other by a file that all see.

    Without an `address` of this host all ranks are on it, and no other host can reach them.
    """
    distributed: Any = torch.distributed
    store = distributed.FileStore(str(file), count)
    store.set_timeout(timedelta(seconds=MEET_SECONDS))
    if device.type == "cuda" and torch.cuda.device_count() >= count and not address:
        torch.cuda.set_device(device)
        return distributed.ProcessGroupNCCL(
            store, rank, count, distributed.ProcessGroupNCCL.Options()
        )
    options = distributed.ProcessGroupGloo._Options()
    hostname = address or "127.0.0.1"
    options._devices = [distributed.ProcessGroupGloo.create_device(hostname=hostname)]
    options._timeout = NEVER
    options._threads = 1
    return distributed.ProcessGroupGloo(store, rank, count, options)
