"""The inference stream: duplex, many clients (actors), one or more servers (policy workers).

Every slot of every client holds one request and its reply. A client writes its request in place and
submits it. A server takes submitted slots, and writes the replies in place. Nothing is serialised
or allocated, and a slot has at most one open request.

Waiting: no operation blocks. `submit` wakes one waiting server (the client's own is preferred), or
all servers if none waits; `answer` wakes the clients. A worker that finds nothing to do names the
stream to its process loop, which sleeps until it is woken. `poll` takes every submitted slot, also
those for which another server was woken. Closing: a server is done when all clients have left. A
server that died leaves slots that it took or was woken for; `reclaim_server` gives them to others.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from operator import itemgetter

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.memory_layout import Shape, layout_bytes, layout_views, mark_unwritten
from srl.data.records import InferenceReply, InferenceRequest
from srl.data.spec import AgentSpec, ArraySpec, action_array, from_plain
from srl.data.tree import Tree, leaves, tree_map

IDLE, SUBMITTED, TAKEN, ANSWERED = range(4)


class InferenceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of one policy's stream, and the processes at its ends."""

    name: str
    agent: AgentSpec
    extras: object = None
    policy_state: object = None
    rows: int
    """Rows of a slot."""
    slots_per_client: int
    clients: tuple[str, ...]
    """The process of each client."""
    servers: tuple[str, ...]
    """The process of each server."""

    def __post_init__(self) -> None:
        for name in ("extras", "policy_state"):
            msgspec.structs.force_setattr(self, name, from_plain(getattr(self, name)))

    @property
    def num_slots(self) -> int:
        """Slots of all clients together."""
        return self.slots_per_client * len(self.clients)


class InferenceMemory:
    """The stream's arrays, each [slots, ...]."""

    def __init__(self, spec: InferenceSpec, arena: Arena) -> None:
        shapes = _shapes(spec)
        region = arena.region(f"inference/{spec.name}", layout_bytes(shapes), "actor.envs")
        views = layout_views(shapes, region)
        # Single numbers are read and written through memoryviews, several times faster than arrays.
        self.status = memoryview(views["status"])
        self.server = memoryview(views["server"])
        self.num_rows = memoryview(views["num_rows"])
        self.version = memoryview(views["version"])
        self.open_clients = memoryview(views["open_clients"])
        self.used_by_bridge = memoryview(views["used_by_bridge"])
        """1: a bridge also takes or submits requests, for other hosts."""
        self.waiting = memoryview(views["waiting"])
        """1: the last `poll` of the server found nothing, and no client has woken it since. The
        last entry is the bridge's, which takes slots under the number after the last server."""
        self.request = InferenceRequest(
            obs=views["obs"],
            policy_state=views["fed"],
            is_first=views["is_first"],
            explore=views["explore"],
            action_mask=views["mask"],
        )
        self.reply = InferenceReply(
            action=views["action"], policy_state=views["state"], extras=views["extras"]
        )


def inference_bytes(spec: InferenceSpec) -> int:
    """Bytes of a stream's region."""
    return layout_bytes(_shapes(spec))


def _shapes(spec: InferenceSpec) -> dict[str, Tree]:
    slots, rows = spec.num_slots, spec.rows

    def leaf(item: ArraySpec) -> Shape:
        return Shape((slots, rows, *item.seen_shape), item.dtype)

    mask = spec.agent.action_mask
    return {
        "status": Shape((slots,), "uint8"),
        "server": Shape((slots,), "int32"),
        "num_rows": Shape((slots,), "int64"),
        "version": Shape((slots,), "int64"),
        "open_clients": Shape((len(spec.clients),), "uint8"),
        "used_by_bridge": Shape((1,), "uint8"),
        "waiting": Shape((len(spec.servers) + 1,), "uint8"),
        "obs": tree_map(leaf, spec.agent.obs),
        "fed": tree_map(leaf, spec.policy_state),
        "is_first": Shape((slots, rows), "bool"),
        "explore": Shape((slots, rows), "float32"),
        "mask": leaf(mask) if mask else None,
        "action": leaf(action_array(spec.agent.action)),
        "state": tree_map(leaf, spec.policy_state),
        "extras": tree_map(leaf, spec.extras),
    }


def _map_request(
    function: Callable[[np.ndarray], np.ndarray], request: InferenceRequest
) -> InferenceRequest:
    """A request with the results of `function` for each array of another request."""
    mask = request.action_mask
    return InferenceRequest(
        obs=tree_map(function, request.obs),
        policy_state=tree_map(function, request.policy_state),
        is_first=function(request.is_first),
        explore=function(request.explore),
        action_mask=None if mask is None else function(mask),
    )


def _reply_at(reply: InferenceReply, slot: int) -> InferenceReply:
    def pick(array: np.ndarray) -> np.ndarray:
        return array[slot]  # type: ignore[no-any-return]

    return InferenceReply(
        action=pick(reply.action),
        policy_state=tree_map(pick, reply.policy_state),
        extras=tree_map(pick, reply.extras),
    )


class InferenceClient:
    """An actor's end: write `request(slot)` in place, `submit` it, and `take` the reply once `poll`
    returns the slot."""

    def __init__(self, spec: InferenceSpec, arena: Arena, client: int) -> None:
        self.spec = spec
        self._arena = arena
        self._memory = memory = InferenceMemory(spec, arena)
        first = client * spec.slots_per_client
        own = slice(first, first + spec.slots_per_client)
        self._status = memory.status[own]
        self._num_rows = memory.num_rows[own]
        self._version = memory.version[own]
        self._client = client
        self._requests = [
            _map_request(itemgetter(first + slot), memory.request)
            for slot in range(spec.slots_per_client)
        ]
        self._replies = [
            _reply_at(memory.reply, first + slot) for slot in range(spec.slots_per_client)
        ]
        for slot in range(spec.slots_per_client):
            self._status[slot] = IDLE
        count = len(spec.servers)
        self._server_order = [(client + number) % count for number in range(count)]
        memory.open_clients[client] = 1

    def request(self, slot: int) -> InferenceRequest:
        """The slot's request, [rows, ...], to write into. Its content stays until it is written
        again."""
        return self._requests[slot]

    def submit(self, slot: int, num_rows: int) -> None:
        """Hands the first `num_rows` rows of the slot's request to the servers."""
        assert self._status[slot] in (IDLE, ANSWERED), "a slot has at most one open request"
        self._num_rows[slot] = num_rows
        self._status[slot] = SUBMITTED
        waiting, servers = self._memory.waiting, self.spec.servers
        for server in self._server_order:
            if waiting[server]:
                # Later requests wake other servers, until this one polls again: it may be stopped,
                # or take only some of the slots.
                waiting[server] = 0
                self._arena.wake(servers[server])
                return
        # No server waits: all are busy and poll again before they wait, or are on another host.
        self._arena.wake(*servers)

    def poll(self) -> list[int]:
        """Slots whose replies have come; a slot is returned until `take`."""
        return slots_with(self._status, ANSWERED)

    def reply(self, slot: int) -> InferenceReply:
        """The slot's reply, [rows, ...]; every answer is written into the same arrays."""
        return self._replies[slot]

    def take(self, slot: int) -> InferenceReply:
        """Takes the slot's reply. Its first `num_rows` rows are valid, until the next `submit`."""
        self._status[slot] = IDLE
        reply = self._replies[slot]
        reply.policy_version = self._version[slot]
        return reply

    def close(self) -> None:
        """Leaves the stream: servers stop waiting for this client."""
        self._memory.open_clients[self._client] = 2
        self._arena.wake(*self.spec.servers)


class InferenceServer:
    """A policy worker's end: `poll` takes submitted slots, `gather` reads their requests, `answer`
    writes the replies."""

    def __init__(self, spec: InferenceSpec, arena: Arena, server: int) -> None:
        self.spec = spec
        self._arena = arena
        self._server = server
        self._memory = memory = InferenceMemory(spec, arena)
        self._is_only_server = len(spec.servers) == 1
        # The rows of all slots on one axis: rows of neighbouring slots lie side by side.
        self._rows = _RequestRows(_map_request(_merge_slots, memory.request))
        self._batch: _RequestRows | None = None
        self._targets = [_merge_slots(array) for array in reply_leaves(memory.reply)]

    @property
    def closed(self) -> bool:
        """Whether clients have come, and all of them have left."""
        states = self._memory.open_clients.tobytes()
        return states.count(2) == len(states)

    def num_submitted_rows(self) -> int:
        """The number of submitted rows that no server has taken."""
        memory = self._memory
        return sum(memory.num_rows[slot] for slot in slots_with(memory.status, SUBMITTED))

    def poll(self, max_rows: int = 0) -> list[int]:
        """Takes submitted slots, as many as fit into `max_rows` but at least one; 0 takes all."""
        memory = self._memory
        slots = slots_with(memory.status, SUBMITTED)
        if slots and (not self._is_only_server or memory.used_by_bridge[0]):
            with self._arena.lock(f"inference/{self.spec.name}"):
                slots = self._mark_taken(slots_with(memory.status, SUBMITTED), max_rows)
        elif slots:
            slots = self._mark_taken(slots, max_rows)
        memory.waiting[self._server] = not slots
        return slots

    def mark_busy(self) -> None:
        """Makes clients prefer other servers until the next `poll`, because this one is busy."""
        self._memory.waiting[self._server] = 0

    def _mark_taken(self, slots: list[int], max_rows: int) -> list[int]:
        memory = self._memory
        if max_rows:
            sums = itertools.accumulate(memory.num_rows[slot] for slot in slots)
            fits = [slot for slot, rows in zip(slots, sums, strict=True) if rows <= max_rows]
            slots = fits or slots[:1]
        for slot in slots:
            memory.server[slot] = self._server
            memory.status[slot] = TAKEN
        return slots

    def gather(self, slots: list[int]) -> tuple[InferenceRequest, list[int]]:
        """The rows of taken slots as one request, and the number of rows of each slot.

        Rows that lie side by side are not copied. Others are copied into memory that is used again.
        The same rows always come as the same object, so a caller can keep what it makes for it.
        """
        counts = [self._memory.num_rows[slot] for slot in slots]
        start = self._side_by_side(slots, counts)
        if start is not None:
            return self._rows.part(start, sum(counts)), counts
        if self._batch is None:
            self._batch = _RequestRows(_map_request(np.empty_like, self._rows.request))
        at = 0
        for slot, count in zip(slots, counts, strict=True):
            first = slot * self.spec.rows
            for to, source in zip(self._batch.leaves, self._rows.leaves, strict=True):
                to[at : at + count] = source[first : first + count]
            at += count
        return self._batch.part(0, at), counts

    def _side_by_side(self, slots: list[int], counts: list[int]) -> int | None:
        """The index of the slots' first row if their rows lie in one piece, or None."""
        first, others = slots[0], len(slots) - 1
        if slots[-1] - first == others and sum(counts) == self.spec.rows * others + counts[-1]:
            return first * self.spec.rows
        return None

    def answer(self, slots: list[int], counts: list[int], reply: InferenceReply) -> None:
        """Writes the replies of slots that were `gather`ed, and wakes their clients."""
        self.answer_with(slots, counts, reply_leaves(reply), reply.policy_version)

    def answer_with(
        self, slots: list[int], counts: list[int], arrays: list[np.ndarray], policy_version: int
    ) -> None:
        """`answer` with the arrays of a reply: the action, then the leaves of the policy state and
        of the extras."""
        memory = self._memory
        # The request of a client that died meanwhile was withdrawn. Its next incarnation submits
        # again, and another server may have answered it.
        held = [
            slot
            for slot in slots
            if memory.status[slot] == TAKEN and memory.server[slot] == self._server
        ]
        start = self._side_by_side(slots, counts) if len(held) == len(slots) else None
        if start is not None:
            end = start + sum(counts)
            for to, value in zip(self._targets, arrays, strict=True):
                to[start:end] = value
        else:
            at = 0
            for slot, count in zip(slots, counts, strict=True):
                if slot in held:
                    first = slot * self.spec.rows
                    for to, value in zip(self._targets, arrays, strict=True):
                        to[first : first + count] = value[at : at + count]
                at += count
        for slot in held:
            memory.version[slot] = policy_version
            memory.status[slot] = ANSWERED
        per_client = self.spec.slots_per_client
        if len(slots) == 1:
            self._arena.wake(self.spec.clients[slots[0] // per_client])
            return
        self._arena.wake(*{self.spec.clients[slot // per_client] for slot in slots})

    def close(self) -> None:
        """Leaves the stream; slots that this server took are submitted again, for others."""
        reclaim_server(self.spec, self._arena, self._server)


def slots_with(status: memoryview, value: int) -> list[int]:
    """Slots in the given status. Most often there are none, and that costs next to nothing."""
    cells = status.tobytes()
    if value not in cells:
        return []
    return [slot for slot, cell in enumerate(cells) if cell == value]


class _RequestRows:
    """A request, and views of ranges of its rows. Each view is made once, because every tick needs
    the same ones."""

    def __init__(self, request: InferenceRequest) -> None:
        self.request = request
        self.leaves = request_leaves(request)
        self._parts: dict[tuple[int, int], InferenceRequest] = {}

    def part(self, start: int, count: int) -> InferenceRequest:
        """`count` rows from `start` on."""
        found = self._parts.get((start, count))
        if found is None:
            found = _map_request(lambda array: array[start : start + count], self.request)
            self._parts[start, count] = found
        return found


def _merge_slots(array: np.ndarray) -> np.ndarray:
    """[slots, rows, ...] as [slots * rows, ...], in place."""
    return array.reshape(-1, *array.shape[2:])


def request_leaves(request: InferenceRequest) -> list[np.ndarray]:
    """A request's arrays, in a fixed order."""
    return [
        *leaves(request.obs), *leaves(request.policy_state), request.is_first, request.explore,
        *leaves(request.action_mask),
    ]  # fmt: skip


def reply_leaves(reply: InferenceReply) -> list[np.ndarray]:
    """A reply's arrays, in a fixed order."""
    return [reply.action, *leaves(reply.policy_state), *leaves(reply.extras)]


def create_inference(
    spec: InferenceSpec, arena: Arena, clients: Iterable[int] | None = None
) -> None:
    """Reserves the stream's memory and marks it as unwritten: all of it, or only the slots of the
    given clients."""
    memory = InferenceMemory(spec, arena)
    arrays = [*leaves(memory.request.obs), memory.reply.action, *leaves(memory.reply.extras)]
    for client in range(len(spec.clients)) if clients is None else clients:
        first = client * spec.slots_per_client
        mark_unwritten([array[first : first + spec.slots_per_client] for array in arrays])


def reclaim_server(spec: InferenceSpec, arena: Arena, server: int) -> int:
    """Submits again the slots that a server took, wakes all servers, and returns the number of
    these slots. For a dead server: only once its death is certain."""
    memory = InferenceMemory(spec, arena)
    with arena.lock(f"inference/{spec.name}"):
        memory.waiting[server] = 0
        held = [slot for slot in slots_with(memory.status, TAKEN) if memory.server[slot] == server]
        for slot in held:
            memory.status[slot] = SUBMITTED
    # Always: a client that saw this server waiting wakes only this one.
    arena.wake(*spec.servers)
    return len(held)


def reclaim_client(spec: InferenceSpec, arena: Arena, client: int) -> None:
    """Withdraws a dead client's requests."""
    memory = InferenceMemory(spec, arena)
    for slot in range(client * spec.slots_per_client, (client + 1) * spec.slots_per_client):
        memory.status[slot] = IDLE
