"""Every process of a run, at home and on other hosts: where each is, and what is still to be
started."""

from __future__ import annotations

import secrets
import shutil
import time
import zlib
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from srl.arena.shm import CONTROLLER, GATE, LockHeld, RunFolder, ShmArena
from srl.errors import RunError
from srl.launch.books import Books
from srl.launch.control import Brief, Notice
from srl.launch.gatekeeper import GateKeeper
from srl.launch.local import LocalPlace
from srl.launch.pace import Pace
from srl.launch.placement import Placement
from srl.launch.places import HOME, Exit, Place
from srl.launch.remote_place import RemotePlace
from srl.launch.stay import SESSION_FILE
from srl.launch.traffic import Traffic
from srl.launch.worker import checkpoint_path
from srl.net.peers import GateUp, Peer, Peers
from srl.services.board import Board
from srl.services.trainers import MEETING_FOLDER
from srl.streams.sample_books import Ledger
from srl.workers.wiring import Plan, SamplePlan

if TYPE_CHECKING:
    from srl.launch.head import Head

FINISH_SECONDS = 2.5
"""How long other hosts may take to end what runs there and to say goodbye."""
REJOIN_SECONDS = 3.0
"""How long trainers wait for their host when it is gone: one that only joins anew takes less, and
trainers do not return from where they go."""


class Fleet:
    """Starts processes where they belong, and again elsewhere where a host is gone."""

    def __init__(
        self,
        modules: dict[str, tuple[str, ...]],
        placement: Placement,
        wanted: Iterable[str],
        run_dir: Path,
        head: Head | None,
    ) -> None:
        """Starts the `wanted` processes of this host at once; `modules` maps every process to the
        modules that it will need."""
        self.head = head
        self.folder = RunFolder()
        gated = head is not None
        self.arena = ShmArena(self.folder.path, CONTROLLER, gated=gated)
        self.home = LocalPlace(HOME, self.arena, run_dir / "logs", gated=gated)
        self.news: list[str] = []
        """What the user should hear."""
        self.wanted = set(wanted)
        """Processes that are to run."""
        self.where: dict[str, str] = {}
        """The host of each process that was started."""
        self._modules = modules
        self._placement = placement
        self._run_dir = run_dir
        self._incarnations: dict[str, int] = {}
        self._waiting: dict[str, float] = {}
        """Processes to be started, and not before when."""
        self._pace = Pace()
        self._moving: set[str] = set()
        """Processes that are told to finish, and start again when they have."""
        self._gone: dict[str, float] = {}
        """When each host was lost that was."""
        self._books = Books(self.arena)
        self.traffic = None if head is None else Traffic(self.arena, head.hosts.turned_away)
        self._savers: set[str] = set()
        """Processes that write into checkpoints, or go where one does that trains with them."""
        self._plan: Plan | None = None
        self._keeper = GateKeeper(self.home.children, self.arena, HOME, 0)
        self._gate: GateUp | None = None
        self._gate_ended = ""
        """How the gate here ended, until it is replaced."""
        self._epoch = 0
        self._moved = False
        """Whether something is elsewhere than the address book says."""
        self.checkpoint = ""
        """What processes that are started go on from."""
        try:
            for process in modules:
                if process in self.wanted:
                    if placement.preferred[process] == HOME:
                        self._start(process, self.home)
                    else:
                        self._waiting[process] = 0.0
        except BaseException:
            self.close()
            raise

    def attach(self, plan: Plan, board: Board) -> None:
        """Says what the processes are to do."""
        self._plan = plan
        self._books.attach(plan)
        self._savers = {w.process for w in plan.workers if w.in_every_checkpoint or w.trains}
        address = self.head.bind if self.head is not None else ""
        self.home.attach(plan, str(self._run_dir), address=address)
        if self.head is None:
            return
        self._keeper.start(plan, self.head.bind, self.head.gate_port)
        probe = secrets.token_hex(8)
        (self._run_dir / SESSION_FILE).write_text(probe)
        packed = zlib.compress(msgspec.json.encode(plan), level=1)
        brief = Brief(plan=packed, run_dir=str(self._run_dir.absolute()), probe=probe)
        self.head.hosts.brief(brief, plan, board)

    def give_orders(self) -> None:
        """Hands out the plan to the processes that wait for it."""
        for process in self.home.processes:
            if process != GATE:
                self.home.order(process, self.checkpoint)

    # -- who is where ------------------------------------------------------------------------------

    @property
    def places(self) -> dict[str, Place]:
        """This host, and those that have joined."""
        others = self.head.hosts.places if self.head is not None else {}
        return {HOME: self.home, **others}

    def place_of(self, process: str) -> Place | None:
        """Where a process is, if that host is here."""
        name = self.where.get(process, "")
        if name == HOME or self.head is None:
            return self.home if name == HOME else None
        return self.head.hosts.places.get(name)

    def is_alive(self, process: str) -> bool:
        """Whether a process was started and has not ended, as far as is known."""
        place = self.place_of(process)
        return place is not None and place.is_alive(process)

    @property
    def all_ended(self) -> bool:
        """Whether no process is left, and none is to be started."""
        told = all(name == GATE for place in self.places.values() for name in place.processes)
        return told and not self._waiting

    def is_cut_off(self, process: str) -> bool:
        """Whether the host of a process is silent at the moment."""
        return self.head is not None and self.head.hosts.is_silent(self.where.get(process, ""))

    def incarnation(self, process: str) -> int:
        """How often a process was started again."""
        return max(0, self._incarnations.get(process, 0))

    def reads_here(self, stream: SamplePlan) -> bool:
        """Whether a stream's readers are to be at home, and its slots with them."""
        preferred = self._placement.preferred
        return all(preferred[process] == HOME for process in stream.spec.readers)

    def books(self) -> dict[str, Ledger]:
        """Where the fragments of every sample stream went, on all hosts together."""
        if self.head is None:
            return self._books.all(())
        hosts = self.head.hosts
        return self._books.all(p.books for p in (*hosts.places.values(), *hosts.lost))

    def between_hosts(self) -> dict[str, float]:
        """What was waited for, sent again and refused between hosts; nothing where there is one."""
        if self.head is None or self.traffic is None:
            return {}
        hosts = self.head.hosts
        return self.traffic.all(p.traffic for p in (*hosts.places.values(), *hosts.lost))

    # -- while it runs -----------------------------------------------------------------------------

    def turn(self) -> None:
        """Hears the other hosts, starts what can be started, and keeps the address book."""
        if self.head is not None:
            self.news += self.head.poll()
            self._greet()
        if self._waiting:
            self._pace.step(self._start_waiting)
        if self.head is None:
            return
        up = self._keeper.news()
        if up is not None:
            self._gate = up
            self._moved = True
        self._publish()

    def _greet(self) -> None:
        assert self.head is not None
        hosts = self.head.hosts
        while hosts.joined:
            place = hosts.joined.popleft()
            again = " again" if place.incarnation else ""
            self.news.append(
                f"host {place.name} joined{again} ({place.join.machine}, {place.join.address}, "
                f"{place.join.cores} cores)"
            )
            self._bring_back(place)

    def _bring_back(self, place: RemotePlace) -> None:
        """What ran elsewhere while a host was away returns to it."""
        for process, where in self.where.items():
            if self._placement.preferred[process] == place.name != where:
                current = self.place_of(process)
                if current is not None and current.is_alive(process):
                    self._moving.add(process)
                    current.leave(process)

    def request(self, process: str, delay: float = 0.0) -> None:
        """Has a process started (again), after a while."""
        self._waiting[process] = time.monotonic() + delay

    def _start_waiting(self) -> None:
        now = time.monotonic()
        load = Counter(self.where.values())
        places, here = self.places, self._here()
        awaited = [name for name, when in self._gone.items() if now < when + REJOIN_SECONDS]
        for process, due in list(self._waiting.items()):
            if now < due:
                continue
            able = self._here(process) if process in self._savers else here
            host = self._placement.choose(process, able, load, awaited)
            if host is None or not self._may_start(process, places[host]):
                continue
            del self._waiting[process]
            self._start(process, places[host])
            places[host].order(process, self.checkpoint)
            load[host] += 1

    def _here(self, saver: str = "") -> dict[str, tuple[str, ...]]:
        """The hosts that have joined, with what each said that it holds; for a process that writes
        into the run directory only those that see it, and the one that is meant for it."""
        places = self.head.hosts.places if self.head is not None else {}
        meant = self._placement.preferred.get(saver)
        return {
            name: place.join.holds
            for name, place in places.items()
            if not saver or name == meant or place.sees_run_dir
        }

    def _may_start(self, process: str, place: Place) -> bool:
        """Whether a host is ready for a process."""
        if not isinstance(place, RemotePlace) or process not in self._savers:
            return True
        if place.sees_run_dir is False:
            raise RunError(
                f"host {place.name!r}: expected the run directory {self._run_dir.absolute()} "
                f"there too, because {process} writes checkpoints into it, got none. Put it on "
                "a file system that both hosts share, or let it run at home."
            )
        return place.sees_run_dir is True

    def _start(self, process: str, place: Place) -> None:
        before = self.where.get(process, place.name)
        if before != place.name and self._placement.is_bound(process):
            self.news.append(f"{process} goes on at {place.name}, because {before} is gone")
        self._moving.discard(process)
        incarnation = self._incarnations.get(process, -1) + 1
        self._incarnations[process] = incarnation
        self._moved = self._moved or self.where.get(process) != place.name
        self.where[process] = place.name
        place.start(process, incarnation, self._modules[process])

    def exits(self) -> list[Exit]:
        """Processes that have ended since the last time, those of lost hosts included."""
        found = []
        for ended in self.home.exits():
            if ended.process == GATE:
                self._gate_ended = ended.how
            else:
                found.append(ended)
        if self._gate_ended:
            with suppress(LockHeld):
                self._replace_gate(self._gate_ended)
                self._gate_ended = ""
        if self.head is not None:
            for place in self.head.hosts.places.values():
                found += place.exits()
            while self.head.hosts.lost:
                found += self._lose(self.head.hosts.lost.popleft())
        return found

    def _replace_gate(self, how: str) -> None:
        """Starts another gate here; everyone learns of it by the address book. What was on its way
        through the dead one is asked for, or collected, again."""
        self.home.take_back_relayed()
        self._keeper.replace(how)
        self.news.append(f"the gate at home {how}; starting another one")

    def _lose(self, place: RemotePlace) -> list[Exit]:
        self.news.append(f"host {place.name} is gone: {place.gone}")
        self._gone[place.name] = time.monotonic()
        self._books.lose(place.books)
        if self.traffic is not None:
            self.traffic.lose(place.traffic)
        found = place.exits()
        for process in place.processes:
            found.append(
                Exit(
                    process=process,
                    incarnation=place.incarnation_of(process),
                    pid=place.pid(process),
                    code=-9,
                    lost=f"{place.name}: {place.gone}",
                )
            )
        return found

    def is_sent_away(self, process: str) -> bool:
        """Whether a process that has finished did so because its agent leaves: on several hosts
        nobody finishes by himself before the run does."""
        known = process in self._moving or process not in self.wanted
        return self.head is not None and not known

    def left(self, process: str) -> bool:
        """Notes that a process has finished; True if it will be started again."""
        if process in self._moving:
            self._moving.discard(process)
            self.request(process)
            return True
        self._moved = self.where.pop(process, None) is not None or self._moved
        return False

    # -- coming and going --------------------------------------------------------------------------

    def add(self, process: str) -> None:
        """Starts a process that the plan has room for."""
        if process not in self.wanted and self.is_alive(process):
            # It is on its way out.
            self._moving.add(process)
        self.wanted.add(process)
        if self.is_alive(process) or process in self._waiting:
            return
        self._placement.add(process, self._here(), Counter(self.where.values()))
        self.request(process)

    def remove(self, process: str) -> None:
        """Lets a process finish while the run goes on."""
        self.wanted.discard(process)
        self._moving.discard(process)
        self._waiting.pop(process, None)
        place = self.place_of(process)
        if place is not None:
            place.leave(process)

    # -- the address book --------------------------------------------------------------------------

    def _publish(self) -> None:
        """Gives everyone the address book when it has changed."""
        assert self.head is not None
        hosts = self.head.hosts
        if self._gate is None or not (self._moved or hosts.book_changed):
            return
        self._moved = False
        at: dict[str, list[str]] = {}
        for process, host in self.where.items():
            at.setdefault(host, []).append(process)
        home = Peer(
            host=HOME,
            incarnation=self._gate.incarnation,
            address=self._gate.address,
            public_key=self._gate.public_key,
            processes=tuple(at.get(HOME, ())),
        )
        book = (home, *(p.peer(tuple(at.get(n, ()))) for n, p in hosts.places.items()))
        self._epoch += 1
        hosts.publish(book, self._epoch)
        self._keeper.publish(Peers(own=HOME, epoch=self._epoch, peers=book))

    # -- orders for all ----------------------------------------------------------------------------

    def notify(self, board: Board) -> None:
        """Tells every process what the board says now."""
        if self.head is not None:
            path = checkpoint_path(self.folder.path)
            folder = path.read_text() if board.checkpoint else ""
            self.head.hosts.notify(
                Notice(stop=board.stop, checkpoint=board.checkpoint, folder=folder)
            )
        for process in self.home.processes:
            self.arena.ring(process)

    def hear(self) -> None:
        """Takes what other hosts say, while nothing is to be started any more."""
        if self.head is not None:
            self.head.hosts.poll()

    # -- the end -----------------------------------------------------------------------------------

    def end(self, seconds: float) -> None:
        """Waits for every process to end, and kills those at home that do not."""
        self._waiting.clear()
        self.home.children.release()
        if self.head is not None:
            for name in self.head.hosts.finish(FINISH_SECONDS):
                self.news.append(f"host {name} did not say goodbye in time")
        self.home.children.end(seconds)

    def close(self) -> None:
        """Ends everything and removes the shared memory."""
        self.home.close()
        if self.head is not None:
            self.head.close()
        self.arena.close()
        self.folder.remove()
        shutil.rmtree(self._run_dir / MEETING_FOLDER, ignore_errors=True)
