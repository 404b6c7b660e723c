"""Trainers that learn together: how they find each other, exchange numbers, and notice a death.

Every rank has a part of each batch. Gradients and other whole-batch numbers are summed over ranks,
through shared memory or by torch.distributed. Nothing here waits for long: a rank enters a sum only
when `services/trainers.py` says that everyone has its batch, it shows its heartbeat while it waits
inside one, and it leaves as soon as the group has ended or the run stops.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

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
from srl.workers.linked_ranks import LinkedRanks
from srl.workers.shared_ranks import SharedRanks
from srl.workers.wired_ranks import WiredRanks, connect, make_group
from srl.workers.wiring import Context

STOP_GRACE_SECONDS = 0.5
"""How long it waits for the others once the run stops."""
REST_SECONDS = (0.25, 4.0)
"""How long it rests before it meets the others a third time without having learned anything with
them; twice as long each time after that, up to the second number."""


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
        self._processes = [w.process for w in sorted(members, key=lambda w: w.index)]
        self._clock = clock
        self._epoch = -1
        self._standings: list[Standing] = []
        """What every rank said when it joined this group, and the token that names it."""
        self._token = 0
        self._announced = -1
        self.failures = 0
        """Groups that have ended since the last update that all of one finished."""
        self._rests_until = 0.0
        self._met: Path | None = None
        """The file by which the ranks last found each other, or that holds their numbers."""
        self._past: list[LinkedRanks] = []
        """Groups that ended. To take one apart waits for whatever is still under way in it."""
        if self.count > 1:
            self._trainers = Trainers(context.shared, policy, self.count)

    def meet(self, standing: Standing) -> bool:
        """Says that this rank is there and how things stand with it; True when everyone is."""
        if self.count == 1:
            self._standings = [standing]
            return True
        epoch = self._trainers.epoch
        if epoch != self._epoch:
            self._epoch, self._announced = epoch, -1
            self._trainers.join(self.rank, epoch, standing, secrets.randbits(62))
            self._ring()
        if not self._trainers.all_joined(epoch):
            return False
        self._standings, self._token = self._trainers.standings(), self._trainers.token
        # It is what this group has said only if no other has begun meanwhile.
        return self._trainers.epoch == epoch

    @property
    def rest_seconds(self) -> float:
        """How long it is to wait before it meets the others again. A member that died is replaced
        at once; where connections keep failing, trying without a pause would only load everyone."""
        return max(0.0, self._rests_until - self._clock())

    def source(self) -> int:
        """The rank whose weights all take: of those that hold what the run has learned the one
        that is furthest, else the first, which goes on from the checkpoint."""
        held = [standing.holds for standing in self._standings]
        return held.index(max(held))

    def furthest(self) -> Standing:
        """Each number as the rank knows it that is furthest."""
        return Standing(*(max(known) for known in zip(*self._standings, strict=True)))

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

        # By the first rank's token no two groups are taken for each other.
        name = f"{self._context.worker.group}-{self._token:x}"
        context, shared = self._context, self._context.shared
        assert isinstance(shared, ShmArena)
        if self.device == "cpu" and not context.address:
            name = f"{MEETING_FOLDER}/{name}"
            self._meet_in(shared.path(name))
            processes, rank = self._processes, self.rank
            self.ranks = SharedRanks(shared, name, processes, rank, look, stopping)
            return
        folder = (context.run_dir if context.address else shared.folder) / MEETING_FOLDER
        folder.mkdir(exist_ok=True)
        file = self._meet_in(folder / name)
        device = torch.device(self.device)
        link = partial(make_group, file, self.rank, self.count, device, context.address)
        group = connect(link, look)
        self.ranks = WiredRanks(group, self.rank, self.count, self.device, look, stopping)

    def _meet_in(self, file: Path) -> Path:
        """Takes the place of the file by which the group before has met; whoever was there removes
        that, for the first rank may have died."""
        if self._met is not None:
            self._met.unlink(missing_ok=True)
        self._met = file
        return file

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
                self.failures = 0
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
            if isinstance(self.ranks, LinkedRanks):
                self.ranks.close()
                self._past.append(self.ranks)
            self._past = [ranks for ranks in self._past if not ranks.idle]
            self.ranks = Ranks()
            self._trainers.regroup(self._epoch)
            self._ring()
            self.failures += 1
            if self.failures > 1:
                first, most = REST_SECONDS
                rest = min(most, first * 2.0 ** min(self.failures - 2, 16))
                self._rests_until = self._clock() + rest
        self.formed = False

    def leave(self, left: bool) -> None:
        """Says whether there is nothing more to learn from for this rank: on other hosts those who
        write may come back."""
        if self.count > 1 and self._trainers.leave(self.rank, left):
            self._ring()

    def _ring(self) -> None:
        # (Nobody rings for itself.)
        self._context.shared.ring(*self._processes)


def rank_device(device: str, rank: int, count: int) -> str:
    """Where a rank computes: each on a GPU of its own, as far as there are enough."""
    if count == 1 or device != "cuda":
        return device
    return f"cuda:{rank % torch.cuda.device_count()}"
