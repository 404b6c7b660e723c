"""The trainer group as one rank sees it: it forms a group, sums numbers, and notices a death.

Every rank has a part of each batch. Gradients and other numbers of the global batch are summed over
ranks, through shared memory or by torch.distributed. No call waits for long. A rank enters a sum
only when `services/trainer_table.py` says that all ranks have their parts of the batch. While a
rank waits inside a sum it updates its heartbeat. It leaves the sum as soon as the group has ended
or the run stops.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

from srl.algorithms.collective import Collective, CollectiveBroken
from srl.arena.shm import ShmArena
from srl.distributed.process_collective import ProcessCollective
from srl.distributed.shared_memory import SharedMemoryCollective
from srl.distributed.torch_distributed import TorchCollective, connect, make_group
from srl.services.trainer_table import (
    RENDEZVOUS_FOLDER,
    BatchNumbers,
    RankProgress,
    TrainerTable,
    global_numbers,
)
from srl.workers.wiring import Context

STOP_GRACE_SECONDS = 0.5
"""How long a rank waits inside a sum once the run stops."""
_PAUSE_SECONDS = (0.25, 4.0)
"""The pause after two groups that ended without an update, and the longest pause. After each
further group the pause is twice as long."""


class TrainerGroup:
    """One trainer's membership in the group of its policy's trainers."""

    def __init__(self, context: Context, clock: Callable[[], float] = time.monotonic) -> None:
        (policy,) = context.worker.trains
        members = [w for w in context.plan.workers if w.group == context.worker.group]
        self.rank = context.worker.index
        self.count = len(members)
        self.collective = Collective()
        self.formed = False
        self.device = rank_device(context.plan.device, self.rank, self.count)
        self._context = context
        self._processes = [w.process for w in sorted(members, key=lambda w: w.index)]
        self._clock = clock
        self._epoch = -1
        self._reports: list[RankProgress] = []
        """What every rank reported when it joined this group."""
        self._token = 0
        """The number that names this group."""
        self._announced = -1
        """The version of the last batch that this rank announced."""
        self.failures = 0
        """Groups that have ended since the last update that a whole group finished."""
        self._pauses_until = 0.0
        self._file: Path | None = None
        """The file by which the ranks last found each other, or that holds their numbers."""
        self._ended: list[ProcessCollective] = []
        """Links of ended groups: they are kept while a call in them is still under way."""
        if self.count > 1:
            self._table = TrainerTable(context.shared, policy, self.count)

    def meet(self, progress: RankProgress) -> bool:
        """Reports this rank and its progress to the group; True once all ranks have joined."""
        if self.count == 1:
            self._reports = [progress]
            return True
        epoch = self._table.epoch
        if epoch != self._epoch:
            self._epoch, self._announced = epoch, -1
            self._table.join(self.rank, epoch, progress, secrets.randbits(62))
            self._wake()
        if not self._table.all_joined(epoch):
            return False
        self._reports, self._token = self._table.progress_of_ranks(), self._table.token
        # These numbers are of this group only if no other group has begun meanwhile.
        return self._table.epoch == epoch

    @property
    def pause_seconds(self) -> float:
        """Seconds to wait before this rank joins again.

        There is no pause after a single death. Where connections keep failing, attempts without a
        pause would only load the machines.
        """
        return max(0.0, self._pauses_until - self._clock())

    def source(self) -> int:
        """The rank whose learner state all ranks take over.

        Of the ranks that hold what the run has learned, it is the furthest one. If there is none,
        it is the first rank, which continues from the checkpoint.
        """
        held = [report.holds for report in self._reports]
        return held.index(max(held))

    def furthest(self) -> RankProgress:
        """The largest value of each number that any rank has reported."""
        return RankProgress(*(max(known) for known in zip(*self._reports, strict=True)))

    def connect(self, beat: Callable[[], None], stopping: Callable[[], bool]) -> None:
        """Connects the ranks, once all have joined."""
        if self.count == 1:
            return
        epoch, table = self._epoch, self._table

        def look(waited: float) -> None:
            beat()
            if table.epoch != epoch:
                raise CollectiveBroken("another group is being formed")
            if waited > STOP_GRACE_SECONDS and stopping():
                raise CollectiveBroken("the run stops")

        # The first rank's random token gives each group another name.
        name = f"{self._context.worker.group}-{self._token:x}"
        context, shared = self._context, self._context.shared
        assert isinstance(shared, ShmArena)
        if self.device == "cpu" and not context.address:
            name = f"{RENDEZVOUS_FOLDER}/{name}"
            self._use_file(shared.path(name))
            processes, rank = self._processes, self.rank
            self.collective = SharedMemoryCollective(shared, name, processes, rank, look, stopping)
            return
        folder = (context.run_dir if context.address else shared.folder) / RENDEZVOUS_FOLDER
        folder.mkdir(exist_ok=True)
        file = self._use_file(folder / name)
        device = torch.device(self.device)
        link = partial(make_group, file, self.rank, self.count, device, context.address)
        group = connect(link, look)
        self.collective = TorchCollective(group, self.rank, self.count, self.device, look, stopping)

    def _use_file(self, file: Path) -> Path:
        """Notes the file of this group and removes the previous group's file.

        Every rank removes the old file, because the first rank may have died.
        """
        if self._file is not None:
            self._file.unlink(missing_ok=True)
        self._file = file
        return file

    def share(self, data: bytes, source: int) -> bytes:
        """Sends one rank's bytes to all ranks."""
        return (
            self.collective.broadcast(data, source)
            if isinstance(self.collective, ProcessCollective)
            else data
        )

    def ready(self, version: int, batch: Callable[[], BatchNumbers]) -> BatchNumbers | None:
        """Announces that this rank has its part of the next batch. Returns the numbers of the
        global batch once all ranks have their parts, None before."""
        if self.count == 1:
            return batch()
        if self._announced != version:
            if self._announced >= 0:
                # The update before this one was finished, so the connections work.
                self.failures = 0
            self._announced = version
            self._table.announce(self.rank, self._epoch, version, batch())
            self._wake()
        if not self._table.all_ready(self._epoch, version):
            return None
        return global_numbers(self._table.batches())

    @property
    def broken(self) -> bool:
        """Whether the group has ended, because some member has died or could not continue."""
        return self.count > 1 and self._table.epoch != self._epoch

    @property
    def over(self) -> bool:
        """Whether some rank gets no further batch, so that no rank can learn further."""
        return self.count > 1 and self._table.someone_left

    def giving_up(self, stopping: bool) -> bool:
        """Whether all ranks give up the current update because the run stops."""
        return (
            self.collective.giving_up
            if isinstance(self.collective, ProcessCollective)
            else stopping
        )

    def give_up(self) -> None:
        """Ends the group, so that all its members form a new one."""
        if self.count > 1:
            if isinstance(self.collective, ProcessCollective):
                self.collective.close()
                self._ended.append(self.collective)
            # (To destroy a link waits for the calls that are still under way in it.)
            self._ended = [one for one in self._ended if not one.idle]
            self.collective = Collective()
            self._table.regroup(self._epoch)
            self._wake()
            self.failures += 1
            if self.failures > 1:
                first, most = _PAUSE_SECONDS
                pause = min(most, first * 2.0 ** min(self.failures - 2, 16))
                self._pauses_until = self._clock() + pause
        self.formed = False

    def leave(self, left: bool) -> None:
        """Reports whether this rank gets no further batch. Writers on other hosts may come back, so
        the answer can change."""
        if self.count > 1 and self._table.leave(self.rank, left):
            self._wake()

    def _wake(self) -> None:
        # (An arena never wakes its own process.)
        self._context.shared.wake(*self._processes)


def rank_device(device: str, rank: int, count: int) -> str:
    """The device of a rank: each rank has a GPU of its own while there are enough."""
    if count == 1 or device != "cuda":
        return device
    return f"cuda:{rank % max(1, torch.cuda.device_count())}"
