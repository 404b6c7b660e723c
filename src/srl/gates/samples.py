"""Samples between hosts.

The readers' host owns a stream and lends its slots. `Borrowing`, where writers are, asks for slots
for those that wait, puts what is granted where they find it, sends what they commit, and gives back
what they leave. `Lending`, at the owner, grants slots, writes the fragments that come into them,
and takes back what it lent to hosts that are gone. Every loan has a number of its own, so that
whatever comes twice or too late is known; and a slot on either side is used again only when the
other side has said that the loan is over.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass

from srl.arena.arena import Arena
from srl.errors import SpecError
from srl.gates.messages import Done, Fragment, Grant, Return, Took, Want
from srl.gates.post import Post, Timer
from srl.net.framing import Body
from srl.services.parameters import ParameterReader
from srl.streams.lending import Borrower, Lender
from srl.streams.sample import SampleSpec
from srl.streams.sample_memory import LOST, READY

ASK_SECONDS = 1.0
"""A writer that waits is mentioned again so often."""
FIRST_SECONDS = (2.0, 10.0)
LATER_SECONDS = (4.0, 30.0)
"""Fragments are large, and links may be slow: they get more time than other messages, four times as
long as they usually take before one is sent again for the first time, and up to eight times later.
At least and at most."""


@dataclass(slots=True)
class _Loan:
    host: str
    writer: int
    slot: int
    """The owner's slot, or the one here."""
    ticket: int
    timer: Timer
    told: bool = False
    """At the owner: the grant has arrived. Here: what came of it was sent."""


class Borrowing:
    """The writers' side of one stream, on a host without its readers."""

    def __init__(
        self,
        number: int,
        spec: SampleSpec,
        arena: Arena,
        post: Post,
        versions: ParameterReader | None,
    ) -> None:
        self._number = number
        self._spec = spec
        self._post = post
        self._end = Borrower(spec, arena)
        self._versions = versions
        self._owner = ""
        self._loans: dict[int, _Loan] = {}
        """By lease."""
        self._over: deque[int] = deque(maxlen=8 * spec.slots)
        """The last leases that are over, should their grants come once more."""
        self._asked: dict[int, tuple[float, float]] = {}
        """Writers that wait: since when, and when to mention them again."""
        self._seconds = 0.0
        """How long a fragment takes to be acknowledged, smoothed."""

    @property
    def busy(self) -> bool:
        """Whether anything is to come from the owner."""
        return bool(self._asked) or any(loan.told for loan in self._loans.values())

    def holds_of(self, writer: int) -> bool:
        """Whether a writer's fragments or slots have not all gone to the owner yet."""
        return self._end.holds_of(writer)

    def follow(self, gone: frozenset[str]) -> None:
        """Begins anew where the owner is another one, or is there anew."""
        owner = next(iter(self._post.peers.hosts_of(self._spec.readers)), "")
        if owner == self._owner and owner not in gone:
            return
        self._owner = owner
        self._asked.clear()
        for loan in self._loans.values():
            self._end.revoke(loan.slot)
        self._loans.clear()
        if owner and owner != self._post.own:
            self._end.begin()
        elif owner:
            self._end.take_over(0 if self._versions is None else self._versions.version)

    def turn(self, now: float) -> None:
        """Asks for those who wait, and sends what they have committed or left."""
        if not self._owner or self._owner == self._post.own:
            return
        self._ask(now)
        ended = self._end.ended()
        if not ended:
            return
        leases = {loan.slot: lease for lease, loan in self._loans.items()}
        for slot, status in ended.items():
            lease = leases.get(slot)
            if lease is None:
                # Granted by an owner that is gone, or before this gate came.
                self._post.counters.add("stale")
                self._end.forget(slot)
            else:
                self._send(lease, self._loans[lease], status, now)

    def _ask(self, now: float) -> None:
        wanting = self._end.wanting()
        if not wanting and not self._asked:
            return
        for writer in set(self._asked).difference(wanting):
            del self._asked[writer]
        due = [w for w in wanting if w not in self._asked or now >= self._asked[w][1]]
        if due and self._post.send(self._owner, Want(self._number, due)):
            for writer in due:
                since = self._asked.get(writer, (now, now))[0]
                self._asked[writer] = (since, now + ASK_SECONDS)

    def _send(self, lease: int, loan: _Loan, status: int, now: float) -> None:
        if loan.told and now < loan.timer.due:
            return
        memory, slot, post = self._end.memory, loan.slot, self._post
        if status == READY:
            length, whole = int(memory.length[slot]), not post.packs(self._owner)
            steps = int(memory.env_steps[slot])
            whole = whole and length == self._spec.trajectory.capacity
            message = Fragment(self._number, lease, length, steps, whole)
            parts = self._end.parts(slot, length, whole=whole)
            sent = post.send(self._owner, message, parts, None if whole else self._end.pixels())
        else:
            sent = post.send(self._owner, Return(self._number, lease, status == LOST))
        if not sent:
            return
        if loan.told:
            post.counters.add("resent")
            loan.timer.again(now)
        else:
            loan.told = True
            first = _between(4 * self._seconds, *FIRST_SECONDS)
            loan.timer = Timer(now, first, _between(8 * self._seconds, *LATER_SECONDS))

    def grant(self, host: str, message: Grant) -> None:
        """A slot was granted: its writer finds it, or the owner gets it back."""
        if host != self._owner:
            raise SpecError(f"grant: expected one from {self._owner}, got one from {host}.")
        if message.writer >= len(self._spec.writers):
            raise SpecError(f"grant: there is no writer {message.writer}.")
        now = self._post.clock()
        if message.lease in self._over:
            self._post.counters.add("stale")
            return
        if message.lease not in self._loans:
            slot = self._end.accept(message.writer, message.ticket)
            if slot is None:
                # Said again until the owner knows: it repeats the grant.
                self._post.send(host, Return(self._number, message.lease, False))
                return
            since = self._asked.pop(message.writer, (now, now))[0]
            self._post.counters.add("wait_slots_ns", int((now - since) * 1e9))
            loan = _Loan(host, message.writer, slot, message.ticket, Timer(now))
            self._loans[message.lease] = loan
        else:
            self._post.counters.add("stale")
        self._post.send(host, Took(self._number, message.lease))

    def done(self, host: str, message: Done) -> None:
        """The owner has what came of a loan, or knows nothing of it: the slot here is free."""
        loan = self._loans.get(message.lease)
        if loan is None or host != self._owner or not loan.told:
            self._post.counters.add("stale")
            return
        del self._loans[message.lease]
        self._over.append(message.lease)
        self._seconds = 0.9 * self._seconds + 0.1 * (self._post.clock() - loan.timer.sent)
        self._end.free(loan.slot)


class Lending:
    """The owner's side of one stream."""

    def __init__(
        self,
        number: int,
        spec: SampleSpec,
        arena: Arena,
        post: Post,
        versions: ParameterReader | None,
    ) -> None:
        self._number = number
        self._spec = spec
        self._post = post
        self._end = Lender(spec, arena)
        self._versions = versions if spec.max_policy_age is not None else None
        self._is_informed = False
        """Whether weights come to this host, which then lends a slot when its writer may begin.
        Elsewhere the writer waits with the slot in hand."""
        # Above all numbers of this gate's predecessors, should there have been any.
        self._lease = time.time_ns()
        self._loans: dict[int, _Loan] = {}
        self._waiting: dict[tuple[str, int], None] = {}
        """Hosts and writers, in the order in which they asked."""

    @property
    def busy(self) -> bool:
        """Whether a grant has not been heard of yet, or somebody waits."""
        return bool(self._waiting) or any(not loan.told for loan in self._loans.values())

    def follow(self, gone: frozenset[str]) -> None:
        """Takes back what was lent to hosts that are gone."""
        self._is_informed = self._versions is not None and any(
            self._post.at_home((*one.spec.readers, *one.trainers))
            for one in self._post.plan.weights
            if one.spec.policy == self._versions.spec.policy
        )
        lost = {lease: loan for lease, loan in self._loans.items() if loan.host in gone}
        for lease in lost:
            del self._loans[lease]
        for host, writer in list(self._waiting):
            if host in gone:
                del self._waiting[host, writer]
        slots = [loan.slot for loan in lost.values()]
        if self._is_owner():
            homes = self._post.homes
            away = {
                writer
                for writer, process in enumerate(self._spec.writers)
                if homes.get(process, self._post.own) != self._post.own
            }
            # What a gate before this one had lent: nobody knows of it any more.
            known = {*slots, *(loan.slot for loan in self._loans.values())}
            slots += [slot for slot in self._end.lent_to(away) if slot not in known]
        if slots:
            self._end.take_back(slots, lost=True)

    def _newest(self) -> int | None:
        """The newest weights here, if their age counts and they do come here."""
        if self._versions is None or not self._is_informed:
            return None
        return self._versions.version

    def _is_owner(self) -> bool:
        return self._post.peers.hosts_of(self._spec.readers)[:1] == (self._post.own,)

    def turn(self, now: float) -> None:
        """Grants slots to those who wait, and says it again to those who may not have heard."""
        while self._waiting:
            host, writer = next(iter(self._waiting))
            lent = self._end.lend(writer, self._newest())
            if lent is None:
                break
            del self._waiting[host, writer]
            self._lease += 1
            self._loans[self._lease] = _Loan(host, writer, *lent, Timer(now))
            self._grant(self._lease)
        for lease, loan in self._loans.items():
            if not loan.told and now >= loan.timer.due:
                loan.timer.again(now)
                self._post.counters.add("resent")
                self._grant(lease)

    def _grant(self, lease: int) -> None:
        loan = self._loans[lease]
        self._post.send(loan.host, Grant(self._number, loan.writer, loan.ticket, lease))

    def want(self, host: str, message: Want) -> None:
        """Writers wait for slots."""
        for writer in message.writers:
            known = writer < len(self._spec.writers)
            if not known or self._post.homes.get(self._spec.writers[writer]) != host:
                raise SpecError(f"want: writer {writer} is not on {host}.")
        if not self._is_owner():
            raise SpecError(f"want: the readers of {self._spec.name!r} are elsewhere.")
        untold = {loan.writer: lease for lease, loan in self._loans.items() if not loan.told}
        for writer in message.writers:
            if writer in untold:
                # It may not have heard of what it got already.
                self._grant(untold[writer])
            else:
                self._waiting.setdefault((host, writer))

    def took(self, host: str, message: Took) -> None:
        """A grant has arrived."""
        loan = self._loan(host, message.lease)
        if loan is not None:
            loan.told = True

    def fragment(self, host: str, message: Fragment, body: Body) -> None:
        """A fragment has come: into its slot, and to the readers."""
        if not 0 < message.length <= self._spec.trajectory.capacity:
            raise SpecError(f"fragment: no fragment has {message.length} ticks.")
        loan = self._loan(host, message.lease)
        if loan is not None:
            parts = self._end.parts(loan.slot, message.length, whole=message.whole)
            body.copy_into(part.data for part in parts)
            del self._loans[message.lease]
            self._end.commit(loan.slot, message.length, message.env_steps)
            self._post.counters.add("fragments")
        self._post.send(host, Done(self._number, message.lease))

    def returned(self, host: str, message: Return) -> None:
        """A loan comes back without a fragment."""
        loan = self._loan(host, message.lease)
        if loan is not None:
            del self._loans[message.lease]
            self._end.take_back([loan.slot], lost=message.lost)
        self._post.send(host, Done(self._number, message.lease))

    def _loan(self, host: str, lease: int) -> _Loan | None:
        loan = self._loans.get(lease)
        if loan is None or loan.host != host:
            self._post.counters.add("stale")
            return None
        return loan


def _between(seconds: float, least: float, most: float) -> float:
    return min(max(least, seconds), most)
