"""Trainers that learn together: how they find each other, exchange numbers, and notice a death.

Every rank has a part of each batch. Gradients and other whole-batch numbers are summed over ranks
by torch.distributed (gloo; NCCL where each has a GPU of its own on one host). Nothing here waits
for long: a rank enters a sum only when `services/trainers.py` says that everyone has its batch, it
shows its heartbeat while it waits inside one, and it leaves as soon as the group has ended or the
run stops.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import torch

from srl.algorithms.ranks import GroupBroken, Ranks
from srl.arena.shm import ShmArena
from srl.services.trainers import (
    MEETING_FOLDER,
    BatchNumbers,
    Standing,
    Trainers,
    all_together,
)
from srl.workers.wiring import Context

LOOK = timedelta(milliseconds=100)
"""How often a rank that waits for others looks whether they are still there."""
STOP_GRACE_SECONDS = 0.5
"""How long it waits for them once the run stops."""
MEET_SECONDS = 20.0
"""How long ranks that have all joined may take to connect."""
REST_SECONDS = (0.25, 4.0)
"""How long it rests before it meets the others a third time without having learned anything with
them; twice as long each time after that, up to the second number."""
NEVER = timedelta(days=1)
"""The library's own limit: whether a silent rank is dead is not for a clock to say."""


class TrainerGroup:
    """One trainer's place among those of its policy."""

    def __init__(self, context: Context, clock: Callable[[], float] = time.monotonic) -> None:
        (policy,) = context.worker.trains
        members = [w for w in context.plan.workers if w.group == context.worker.group]
        self.rank = context.worker.index
        self.count = len(members)
        self.ranks = Ranks()
        self.formed = False
        self.device = rank_device(context.plan.device, self.rank, self.count)
        self._context = context
        self._others = [w.process for w in members if w.index != self.rank]
        self._clock = clock
        self._epoch = -1
        self._announced = -1
        self._failures = 0
        """Groups that have ended since the last update that all of one finished."""
        self._rests_until = 0.0
        self._met: Path | None = None
        """The file by which the ranks last found each other."""
        self._past: list[LinkedRanks] = []
        """Groups that ended. To take one apart waits for whatever is still under way in it."""
        if self.count > 1:
            self._trainers = Trainers(context.shared, policy, self.count)

    def meet(self, standing: Standing) -> bool:
        """Says that this rank is there and how things stand with it; True when everyone is."""
        if self.count == 1:
            self._alone = standing
            return True
        epoch = self._trainers.epoch
        if epoch != self._epoch:
            self._epoch, self._announced = epoch, -1
            self._trainers.join(self.rank, epoch, standing, secrets.randbits(62))
            self._ring()
        return self._trainers.all_joined(epoch)

    @property
    def rest_seconds(self) -> float:
        """How long it is to wait before it meets the others again. A member that died is replaced
        at once; where connections keep failing, trying without a pause would only load everyone."""
        return max(0.0, self._rests_until - self._clock())

    def source(self) -> int:
        """The rank whose weights all take: of those that hold what the run has learned the one
        that is furthest, else the first, which goes on from the checkpoint."""
        held = [standing.holds for standing in self._standings()]
        return held.index(max(held))

    def furthest(self) -> Standing:
        """Each number as the rank knows it that is furthest."""
        return Standing(*(max(known) for known in zip(*self._standings(), strict=True)))

    def _standings(self) -> list[Standing]:
        return self._trainers.standings() if self.count > 1 else [self._alone]

    def connect(self, beat: Callable[[], None], stopping: Callable[[], bool]) -> None:
        """Links the ranks, all of which are there."""
        if self.count == 1:
            return
        epoch, trainers = self._epoch, self._trainers

        def look(waited: float) -> None:
            beat()
            if trainers.epoch != epoch:
                raise GroupBroken("another group is being formed")
            if waited > STOP_GRACE_SECONDS and stopping():
                raise GroupBroken("the run stops")

        link = partial(_make_group, self._meeting_point(), self.rank, self.count)
        group = _connect(partial(link, torch.device(self.device), self._context.address), look)
        self.ranks = LinkedRanks(group, self.rank, self.count, self.device, look, stopping)

    def _meeting_point(self) -> Path:
        """The file by which the ranks find each other, where all of them see it."""
        context = self._context
        assert isinstance(context.shared, ShmArena)
        folder = (context.run_dir if context.address else context.shared.folder) / MEETING_FOLDER
        folder.mkdir(exist_ok=True)
        if self.rank == 0 and self._met is not None:
            self._met.unlink(missing_ok=True)
        self._met = folder / f"{context.worker.group}-{self._trainers.tokens()[0]:x}"
        return self._met

    def share(self, data: bytes, source: int) -> bytes:
        """What one rank has, for all of them."""
        return self.ranks.broadcast(data, source) if isinstance(self.ranks, LinkedRanks) else data

    def ready(self, version: int, batch: Callable[[], BatchNumbers]) -> BatchNumbers | None:
        """Says that this rank has its part of the next batch; what the whole batch is like once all
        have theirs, None until then."""
        if self.count == 1:
            return batch()
        if self._announced != version:
            if self._announced >= 0:
                # The update before this one was finished: the connections hold.
                self._failures = 0
            self._announced = version
            self._trainers.announce(self.rank, self._epoch, version, batch())
            self._ring()
        if not self._trainers.all_ready(self._epoch, version):
            return None
        return all_together(self._trainers.batches())

    @property
    def broken(self) -> bool:
        """The group has ended: some member has died, or could not go on."""
        return self.count > 1 and self._trainers.epoch != self._epoch

    @property
    def over(self) -> bool:
        """There is no further batch for some member, so for nobody."""
        return self.count > 1 and self._trainers.someone_left

    def giving_up(self, stopping: bool) -> bool:
        """Whether the update under way is given up because the run stops: by all ranks or none."""
        return self.ranks.giving_up if isinstance(self.ranks, LinkedRanks) else stopping

    def give_up(self) -> None:
        """Ends the group, so that all its members meet again."""
        if self.count > 1:
            self._past = [ranks for ranks in self._past if not ranks.idle]
            if isinstance(self.ranks, LinkedRanks):
                self._past.append(self.ranks)
            self.ranks = Ranks()
            self._trainers.regroup(self._epoch)
            self._ring()
            self._failures += 1
            if self._failures > 1:
                first, most = REST_SECONDS
                rest = min(most, first * 2.0 ** min(self._failures - 2, 16))
                self._rests_until = self._clock() + rest
        self.formed = False

    def leave(self) -> None:
        """There is nothing more to learn from for this rank."""
        if self.count > 1:
            self._trainers.leave(self.rank)
            self._ring()

    def _ring(self) -> None:
        self._context.shared.ring(*self._others)


class LinkedRanks(Ranks):
    """Ranks in processes of their own."""

    def __init__(
        self,
        group: Any,
        rank: int,
        count: int,
        device: str,
        look: Callable[[float], None],
        stopping: Callable[[], bool],
    ) -> None:
        self.rank, self.count = rank, count
        self.giving_up = False
        """Some rank knew that the run stops when it came to the last sum, so all give up here."""
        self._group = group
        self._device = device
        self._look = look
        self._stopping = stopping
        self._work: Any = None

    @property
    def idle(self) -> bool:
        """Nothing is under way."""
        return self._work is None or bool(self._work.is_completed())

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x`; with it, whether any of them is to stop."""
        own = torch.cat([x.flatten(), x.new_full((1,), float(self._stopping()))])
        self._wait(self._group.allreduce([own]))
        self.giving_up = bool(own[-1] > 0)
        return own[:-1].view_as(x)

    def gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x`: [count, ...]."""
        found = [torch.empty_like(x) for _ in range(self.count)]
        self._wait(self._group.allgather([found], [x.contiguous()]))
        return torch.stack(found)

    def broadcast(self, data: bytes, source: int) -> bytes:
        """The bytes of one rank."""
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
            raise GroupBroken(str(error)) from error

    def _ended(self, work: Any) -> bool:
        """Whether it has ended, well or not, after a while of waiting."""
        if self._device == "cpu":
            # Raises both where it failed and where the time was over, and it may end between the
            # two, so how it went is asked only of what has ended.
            with contextlib.suppress(RuntimeError):
                work.wait(LOOK)
            return bool(work.is_completed())
        # Waiting would only order it before what comes next on the device.
        end = time.monotonic() + LOOK.total_seconds()
        while not work.is_completed() and time.monotonic() < end:
            time.sleep(0.0002)
        return bool(work.is_completed())


def rank_device(device: str, rank: int, count: int) -> str:
    """Where a rank computes: each on a GPU of its own, as far as there are enough."""
    if count == 1 or device != "cuda":
        return device
    return f"cuda:{rank % torch.cuda.device_count()}"


def _connect(link: Callable[[], Any], look: Callable[[float], None]) -> Any:
    """A process group. It is made in a thread, so that a rank that dies meanwhile is noticed."""
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
            raise GroupBroken(f"no connection within {waited:.0f} s")
    if failed:
        raise GroupBroken(f"no connection: {failed[0]}") from failed[0]
    return made[0]


def _make_group(file: Path, rank: int, count: int, device: torch.device, address: str) -> Any:
    """A process group, found by a file that all ranks see. Without an address of this host they are
    all on it, and nobody else can reach them."""
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
