"""Presence: tells other hosts which ends of streams have come and left.

Servers hear of clients, readers of writers, and writers of readers. Hosts also tell which version
of the weights they have.
"""

from __future__ import annotations

from collections.abc import Sequence

from srl.arena.arena import Arena
from srl.bridge.messages import PresenceReport
from srl.bridge.messenger import PeerMessenger, one_of
from srl.bridge.parameters import WeightsReceiver, WeightsSender
from srl.bridge.samples import FragmentSender
from srl.errors import SpecError
from srl.services.parameters import ParameterWriter
from srl.streams.admission import open_queue
from srl.streams.inference import InferenceMemory

REPORT_SECONDS = 1.0
"""How often everything is sent again, whether it has changed or not."""
OPEN, LEFT = 1, 2


class Presence:
    """Sends the presence of this host's ends to other hosts, and copies theirs into memory here."""

    def __init__(
        self,
        arena: Arena,
        messenger: PeerMessenger,
        fragment_sender: Sequence[FragmentSender],
        weights_sender: Sequence[WeightsSender],
        weights_receiver: Sequence[WeightsReceiver],
    ) -> None:
        self._arena = arena
        self._messenger = messenger
        self._inference = [InferenceMemory(spec, arena) for spec in messenger.plan.inference]
        self._samples = [open_queue(stream.spec, arena) for stream in messenger.plan.samples]
        self._parameters = [ParameterWriter(one.spec, arena) for one in messenger.plan.weights]
        self._fragment_sender = fragment_sender
        self._weights_sender = weights_sender
        self._weights_receiver = weights_receiver
        self._sent: dict[str, tuple[PresenceReport, float]] = {}
        self._done_requests: dict[tuple[str, int], int] = {}
        """For each host and stream: the number of the trainer's last request for a new base version
        that was done here."""
        self._last_fingerprint = b""
        self._next_report = 0.0
        self.busy = False

    def follow(self, gone: frozenset[str]) -> None:
        """Applies a new address book: reports to all hosts again, and removes writers of `gone`
        hosts."""
        self._last_fingerprint, self._next_report = b"", 0.0
        for host in gone:
            self._sent.pop(host, None)
        self._done_requests = {
            key: asked for key, asked in self._done_requests.items() if key[0] not in gone
        }
        for admission in self._samples:
            queue = admission.queue
            if queue.owned_elsewhere[0]:
                continue
            for writer, process in enumerate(queue.spec.writers):
                was_there = self._messenger.former_host_by_process.get(process) in gone
                if queue.open_writers[writer] == OPEN and was_there:
                    queue.open_writers[writer] = 0

    def turn(self, now: float) -> None:
        """Sends changes at once, and everything once a second."""
        seen = self._fingerprint()
        if seen == self._last_fingerprint and now < self._next_report:
            return
        self._last_fingerprint, self._next_report = seen, now + REPORT_SECONDS
        for peer in self._messenger.peers.others:
            if not self._messenger.greeted(peer.host):
                continue
            report = self._report(peer.host)
            before, when = self._sent.get(peer.host, (None, 0.0))
            if report != before or now >= when:
                if self._messenger.send(peer.host, report):
                    self._sent[peer.host] = (report, now + REPORT_SECONDS)
                else:
                    self._last_fingerprint = b""

    def _fingerprint(self) -> bytes:
        """The state whose changes are sent at once, as bytes to compare."""
        parts = [host.encode() for host in self._messenger.known_hosts]
        parts += [memory.open_clients.tobytes() for memory in self._inference]
        for admission in self._samples:
            queue = admission.queue
            states = queue.open_writers.tobytes()
            versions = (admission.base_version, admission.first_ticket, admission.restart_request)
            numbers = (queue.open_readers, *versions)
            parts += [states, *(array.tobytes() for array in numbers)]
            if LEFT in states:
                # A writer counts as left only when all of its fragments have arrived.
                parts.append(queue.status.tobytes())
        parts += [b"%d" % part.version for part in self._weights_receiver]
        return b"/".join(parts)

    def _report(self, host: str) -> PresenceReport:
        messenger, plan = self._messenger, self._messenger.plan
        here = messenger.indices_here
        clients = {
            number: {i: self._inference[number].open_clients[i] for i in here(spec.clients)}
            for number, spec in enumerate(plan.inference)
            if host in messenger.hosts(spec.servers)
        }
        writers, readers, accounts, restart_requests = {}, {}, {}, {}
        for number, admission in enumerate(self._samples):
            spec, queue = admission.spec, admission.queue
            if messenger.peers.hosts_of(spec.readers)[:1] == (host,):
                writers[number] = {i: self._writer(number, i) for i in here(spec.writers)}
                if admission.restart_request[0]:
                    restart_requests[number] = tuple(
                        int(cell) for cell in admission.restart_request
                    )
            if host in messenger.hosts(spec.writers) and here(spec.readers):
                readers[number] = {i: int(queue.open_readers[i]) for i in here(spec.readers)}
                numbers = (admission.base_version, admission.first_ticket, queue.next_ticket)
                accounts[number] = tuple(int(array[0]) for array in numbers)
        reporting = {
            n: part for n, part in enumerate(self._weights_receiver) if host in part.reports_to
        }
        versions = {number: part.version for number, part in reporting.items()}
        coming = {number: part.coming for number, part in reporting.items()}
        return PresenceReport(
            clients, writers, readers, accounts, versions, coming, restart_requests,  # type: ignore[arg-type]
        )  # fmt: skip

    def _writer(self, number: int, writer: int) -> int:
        state = int(self._samples[number].queue.open_writers[writer])
        is_sending = state == LEFT and self._fragment_sender[number].holds_of(writer)
        return OPEN if is_sending else state

    # -- hearing ---------------------------------------------------------------------------------

    def on_presence_report(self, host: str, message: PresenceReport) -> None:
        """Copies what another host reports about its own ends."""
        plan = self._messenger.plan
        for number, states in message.clients.items():
            spec = one_of(plan.inference, number)
            self._check(host, spec.clients, states)
            cells = self._inference[number].open_clients
            changed = {i: s for i, s in states.items() if cells[i] != s}
            for client, state in changed.items():
                cells[client] = state
            if LEFT in changed.values():
                self._arena.wake(*spec.servers)
        for number, states in message.writers.items():
            self._mirror_writers(host, number, states)
        for number, states in message.readers.items():
            self._mirror_readers(host, number, states, message.accounts.get(number))
        for number, asked in message.restart_requests.items():
            self._restart_version_count(host, number, *asked)
        for number, version in message.versions.items():
            trainers = one_of(plan.weights, number).trainers
            self._weights_sender[number].has(host, version, message.coming.get(number, 0))
            if version > self._weights_receiver[number].version:
                # A lost publisher made that version. The trainers here must continue above it.
                self._parameters[number].note_remote_version(version)
                self._arena.wake(*trainers)

    def _mirror_writers(self, host: str, number: int, states: dict[int, int]) -> None:
        spec = one_of(self._messenger.plan.samples, number).spec
        self._check(host, spec.writers, states)
        queue = self._samples[number].queue
        changed = {i: s for i, s in states.items() if queue.open_writers[i] != s}
        if queue.owned_elsewhere[0] or not changed:
            return
        for writer, state in changed.items():
            queue.open_writers[writer] = state
        if LEFT in changed.values():
            self._arena.wake(*spec.readers)

    def _mirror_readers(
        self, host: str, number: int, states: dict[int, int], accounts: tuple[int, int, int] | None
    ) -> None:
        spec = one_of(self._messenger.plan.samples, number).spec
        if not states:
            raise SpecError(
                f"presence report: {host} reports on stream {number}, but runs no reader of it."
            )
        self._check(host, spec.readers, states)
        admission = self._samples[number]
        queue, first_ticket = admission.queue, admission.first_ticket
        if not queue.owned_elsewhere[0]:
            return
        before = (queue.open_readers.tobytes(), first_ticket.tobytes())
        for reader, state in states.items():
            queue.open_readers[reader] = state
        if accounts is not None:
            admission.base_version[0], first_ticket[0], queue.next_ticket[0] = accounts
        if (queue.open_readers.tobytes(), first_ticket.tobytes()) != before:
            self._arena.wake(*spec.writers)

    def _restart_version_count(
        self, host: str, number: int, times: int, version: int, under_way: int
    ) -> None:
        spec = one_of(self._messenger.plan.samples, number).spec
        admission = self._samples[number]
        done = self._done_requests.get((host, number), 0)
        if admission.queue.owned_elsewhere[0] or done >= times:
            return
        self._done_requests[host, number] = times
        # A new owner, or a new bridge of the same owner, also hears of requests that are done.
        request = [times, version, under_way]
        if version >= admission.base_version[0] and admission.restart_request.tolist() != request:
            with admission.queue.lock():
                admission.restart_version_count(version, under_way)
            admission.restart_request[:] = request
            self._arena.wake(*spec.writers)

    def _check(self, host: str, processes: Sequence[str], states: dict[int, int]) -> None:
        host_of = self._messenger.host_by_process.get
        for index in states:
            if index >= len(processes) or host_of(processes[index]) != host:
                raise SpecError(
                    f"presence report: {host} reports on process {index}, which it does not run."
                )
