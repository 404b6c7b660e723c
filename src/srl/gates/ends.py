"""Who has come and who has left, told between hosts: clients to servers, writers to readers and
back, and which weights a host has."""

from __future__ import annotations

from collections.abc import Sequence

from srl.arena.arena import Arena
from srl.errors import SpecError
from srl.gates.messages import Status
from srl.gates.parameters import Receiving, Spreading
from srl.gates.post import Post, one_of
from srl.gates.samples import Borrowing
from srl.services.parameters import ParameterWriter
from srl.streams.inference import InferenceMemory
from srl.streams.sample_books import count_anew
from srl.streams.sample_memory import SampleMemory

STATUS_SECONDS = 1.0
"""How often everything is said anew, whether it has changed or not."""
OPEN, LEFT = 1, 2


class Ends:
    """What is mirrored between the hosts of all streams."""

    def __init__(
        self,
        arena: Arena,
        post: Post,
        borrowing: Sequence[Borrowing],
        spreading: Sequence[Spreading],
        receiving: Sequence[Receiving],
    ) -> None:
        self._arena = arena
        self._post = post
        self._inference = [InferenceMemory(spec, arena) for spec in post.plan.inference]
        self._samples = [SampleMemory(stream.spec, arena) for stream in post.plan.samples]
        self._parameters = [ParameterWriter(one.spec, arena) for one in post.plan.weights]
        self._borrowing = borrowing
        self._spreading = spreading
        self._receiving = receiving
        self._sent: dict[str, tuple[Status, float]] = {}
        self._asked: dict[tuple[str, int], int] = {}
        """How often trainers of each host have asked to count a stream anew, as far as was done."""
        self._seen = b""
        self._next = 0.0
        self.busy = False

    def follow(self, gone: frozenset[str]) -> None:
        """Tells everyone anew; writers of hosts that are gone are there no more."""
        self._seen, self._next = b"", 0.0
        for host in gone:
            self._sent.pop(host, None)
        self._asked = {key: asked for key, asked in self._asked.items() if key[0] not in gone}
        for memory, stream in zip(self._samples, self._post.plan.samples, strict=True):
            if memory.granted[0]:
                continue
            for writer, process in enumerate(stream.spec.writers):
                was_there = self._post.former_homes.get(process) in gone
                if memory.open_writers[writer] == OPEN and was_there:
                    memory.open_writers[writer] = 0

    def turn(self, now: float) -> None:
        """Says what has changed, and everything once a second."""
        seen = self._fingerprint()
        if seen == self._seen and now < self._next:
            return
        self._seen, self._next = seen, now + STATUS_SECONDS
        for peer in self._post.peers.others:
            if not self._post.greeted(peer.host):
                continue
            status = self._status(peer.host)
            before, when = self._sent.get(peer.host, (None, 0.0))
            if status != before or now >= when:
                if self._post.send(peer.host, status):
                    self._sent[peer.host] = (status, now + STATUS_SECONDS)
                else:
                    self._seen = b""

    def _fingerprint(self) -> bytes:
        """What others are to hear of at once."""
        found = [host.encode() for host in self._post.known_hosts]
        found += [memory.open_clients.tobytes() for memory in self._inference]
        for memory in self._samples:
            states = memory.open_writers.tobytes()
            numbers = (memory.open_readers, memory.base_version, memory.num_lost, memory.anew)
            found += [states, *(array.tobytes() for array in numbers)]
            if LEFT in states:
                # A writer that has left is said to have once all of its fragments have arrived.
                found.append(memory.status.tobytes())
        found += [b"%d" % part.version for part in self._receiving]
        return b"/".join(found)

    def _status(self, host: str) -> Status:
        post, plan = self._post, self._post.plan
        here = post.at_home
        clients = {
            number: {i: self._inference[number].open_clients[i] for i in here(spec.clients)}
            for number, spec in enumerate(plan.inference)
            if host in post.hosts(spec.servers)
        }
        writers, readers, books, anew = {}, {}, {}, {}
        for number, (memory, stream) in enumerate(zip(self._samples, plan.samples, strict=True)):
            spec = stream.spec
            if post.peers.hosts_of(spec.readers)[:1] == (host,):
                writers[number] = {i: self._writer(number, i) for i in here(spec.writers)}
                if memory.anew[0]:
                    anew[number] = tuple(int(cell) for cell in memory.anew)
            if host in post.hosts(spec.writers) and here(spec.readers):
                readers[number] = {i: int(memory.open_readers[i]) for i in here(spec.readers)}
                numbers = (memory.base_version, memory.num_lost, memory.next_ticket)
                books[number] = tuple(int(array[0]) for array in numbers)
        told = {n: part for n, part in enumerate(self._receiving) if host in part.told}
        versions = {number: part.version for number, part in told.items()}
        coming = {number: part.coming for number, part in told.items()}
        return Status(
            clients, writers, readers, books, versions, coming, anew,  # type: ignore[arg-type]
        )  # fmt: skip

    def _writer(self, number: int, writer: int) -> int:
        state = int(self._samples[number].open_writers[writer])
        held = state == LEFT and self._borrowing[number].holds_of(writer)
        return OPEN if held else state

    # -- hearing ---------------------------------------------------------------------------------

    def status(self, host: str, message: Status) -> None:
        """Takes over what another host says of its own."""
        plan = self._post.plan
        for number, states in message.clients.items():
            spec = one_of(plan.inference, number)
            self._check(host, spec.clients, states)
            cells = self._inference[number].open_clients
            changed = {i: s for i, s in states.items() if cells[i] != s}
            for client, state in changed.items():
                cells[client] = state
            if LEFT in changed.values():
                self._arena.ring(*spec.servers)
        for number, states in message.writers.items():
            self._mirror_writers(host, number, states)
        for number, states in message.readers.items():
            self._mirror_readers(host, number, states, message.books.get(number))
        for number, asked in message.anew.items():
            self._count_anew(host, number, *asked)
        for number, version in message.versions.items():
            trainers = one_of(plan.weights, number).trainers
            self._spreading[number].has(host, version, message.coming.get(number, 0))
            if version > self._receiving[number].version:
                # From a publisher that is gone: the one here is to count on from there.
                self._parameters[number].seen_elsewhere(version)
                self._arena.ring(*trainers)

    def _mirror_writers(self, host: str, number: int, states: dict[int, int]) -> None:
        spec = one_of(self._post.plan.samples, number).spec
        self._check(host, spec.writers, states)
        memory = self._samples[number]
        changed = {i: s for i, s in states.items() if memory.open_writers[i] != s}
        if memory.granted[0] or not changed:
            return
        for writer, state in changed.items():
            memory.open_writers[writer] = state
        if LEFT in changed.values():
            self._arena.ring(*spec.readers)

    def _mirror_readers(
        self, host: str, number: int, states: dict[int, int], books: tuple[int, int, int] | None
    ) -> None:
        spec = one_of(self._post.plan.samples, number).spec
        if not states:
            raise SpecError(f"status: {host} has no readers of stream {number} to speak for.")
        self._check(host, spec.readers, states)
        memory = self._samples[number]
        if not memory.granted[0]:
            return
        before = (memory.open_readers.tobytes(), memory.num_lost.tobytes())
        for reader, state in states.items():
            memory.open_readers[reader] = state
        if books is not None:
            memory.base_version[0], memory.num_lost[0], memory.next_ticket[0] = books
        if (memory.open_readers.tobytes(), memory.num_lost.tobytes()) != before:
            self._arena.ring(*spec.writers)

    def _count_anew(self, host: str, number: int, times: int, version: int, under_way: int) -> None:
        spec = one_of(self._post.plan.samples, number).spec
        memory = self._samples[number]
        if memory.granted[0] or self._asked.get((host, number), 0) >= times:
            return
        self._asked[host, number] = times
        # A new owner hears of what is long done, and so does a new gate of the old one.
        request = [times, version, under_way]
        if version >= memory.base_version[0] and memory.anew.tolist() != request:
            count_anew(spec, self._arena, version, under_way)
            memory.anew[:] = request

    def _check(self, host: str, processes: Sequence[str], states: dict[int, int]) -> None:
        for index in states:
            if index >= len(processes) or self._post.homes.get(processes[index]) != host:
                raise SpecError(f"status: {host} speaks for process {index}, which is not there.")
