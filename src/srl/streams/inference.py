"""The inference stream: duplex, many clients (actors), one or more servers (policy workers).

Every lane of every client has one place for its request and one for its reply. A client writes its
request in place and submits it; a server takes what was submitted, and writes the reply in place.
Nothing is serialised, nothing is allocated, and a lane has at most one request open.

Waiting: no operation blocks. `submit` rings a server that waits, the client's own before others, or
all if none does; `answer` rings the clients. Whoever finds nothing to do names the stream to its
worker loop, which sleeps until rung. A server that looks takes what is there, whoever was rung for
it. Closing: a server that sees no client left is done. A server that died leaves what it had taken
and what it was rung for; `reclaim_server` gives it to the next.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from operator import itemgetter

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.layout import Shape, layout_bytes, layout_views, mark_unwritten
from srl.data.records import InferenceReply, InferenceRequest
from srl.data.spec import AgentSpec, ArraySpec, action_array, from_plain
from srl.data.tree import leaves, tree_map

IDLE, SUBMITTED, TAKEN, ANSWERED = range(4)


class InferenceSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the stream of one policy carries, and between whom."""

    name: str
    agent: AgentSpec
    extras: object = None
    policy_state: object = None
    rows: int
    """Rows of a lane."""
    lanes_per_client: int
    clients: tuple[str, ...]
    """The process of each client."""
    servers: tuple[str, ...]
    """The process of each server."""

    def __post_init__(self) -> None:
        for name in ("extras", "policy_state"):
            msgspec.structs.force_setattr(self, name, from_plain(getattr(self, name)))

    @property
    def num_lanes(self) -> int:
        """Lanes of all clients together."""
        return self.lanes_per_client * len(self.clients)


class InferenceMemory:
    """The stream's arrays, each [lanes, ...]."""

    def __init__(self, spec: InferenceSpec, arena: Arena) -> None:
        lanes, rows = spec.num_lanes, spec.rows

        def leaf(item: ArraySpec) -> Shape:
            return Shape((lanes, rows, *item.seen_shape), item.dtype)

        mask = spec.agent.action_mask
        shapes = {
            "status": Shape((lanes,), "uint8"),
            "server": Shape((lanes,), "int32"),
            "num_rows": Shape((lanes,), "int64"),
            "version": Shape((lanes,), "int64"),
            "open_clients": Shape((len(spec.clients),), "uint8"),
            "relayed": Shape((1,), "uint8"),
            "waiting": Shape((len(spec.servers) + 1,), "uint8"),
            "obs": tree_map(leaf, spec.agent.obs),
            "fed": tree_map(leaf, spec.policy_state),
            "is_first": Shape((lanes, rows), "bool"),
            "explore": Shape((lanes, rows), "float32"),
            "mask": leaf(mask) if mask else None,
            "action": leaf(action_array(spec.agent.action)),
            "state": tree_map(leaf, spec.policy_state),
            "extras": tree_map(leaf, spec.extras),
        }
        region = arena.region(f"inference/{spec.name}", layout_bytes(shapes), "actor.envs")
        views = layout_views(shapes, region)
        # Single numbers are read and written through memoryviews, several times faster than arrays.
        self.status = memoryview(views["status"])
        self.server = memoryview(views["server"])
        self.num_rows = memoryview(views["num_rows"])
        self.version = memoryview(views["version"])
        self.open_clients = memoryview(views["open_clients"])
        self.relayed = memoryview(views["relayed"])
        """1: requests also come from other hosts, or go there."""
        self.waiting = memoryview(views["waiting"])
        """1: when the server looked last there was nothing, and nobody has rung it since. (The last
        place is a relay's.)"""
        self.request = InferenceRequest(
            obs=views["obs"],
            state=views["fed"],
            is_first=views["is_first"],
            explore=views["explore"],
            action_mask=views["mask"],
        )
        self.reply = InferenceReply(
            action=views["action"], state=views["state"], extras=views["extras"]
        )


def _map_request(
    function: Callable[[np.ndarray], np.ndarray], request: InferenceRequest
) -> InferenceRequest:
    """A request whose arrays are what `function` makes of those of another one."""
    mask = request.action_mask
    return InferenceRequest(
        obs=tree_map(function, request.obs),
        state=tree_map(function, request.state),
        is_first=function(request.is_first),
        explore=function(request.explore),
        action_mask=None if mask is None else function(mask),
    )


def _reply_at(reply: InferenceReply, lane: int) -> InferenceReply:
    def pick(array: np.ndarray) -> np.ndarray:
        return array[lane]  # type: ignore[no-any-return]

    return InferenceReply(
        action=pick(reply.action),
        state=tree_map(pick, reply.state),
        extras=tree_map(pick, reply.extras),
    )


class InferenceClient:
    """An actor's end: write `request(lane)` in place, `submit`, and read `reply(lane)` once `poll`
    names it."""

    def __init__(self, spec: InferenceSpec, arena: Arena, client: int) -> None:
        self.spec = spec
        self._arena = arena
        self._memory = memory = InferenceMemory(spec, arena)
        first = client * spec.lanes_per_client
        own = slice(first, first + spec.lanes_per_client)
        self._status = memory.status[own]
        self._num_rows = memory.num_rows[own]
        self._version = memory.version[own]
        self._client = client
        self._requests = [
            _map_request(itemgetter(first + lane), memory.request)
            for lane in range(spec.lanes_per_client)
        ]
        self._replies = [
            _reply_at(memory.reply, first + lane) for lane in range(spec.lanes_per_client)
        ]
        for lane in range(spec.lanes_per_client):
            self._status[lane] = IDLE
        count = len(spec.servers)
        self._choices = [(client + number) % count for number in range(count)]
        memory.open_clients[client] = 1

    def request(self, lane: int) -> InferenceRequest:
        """The lane's request, [rows, ...], to write into. Its content stays until it is written
        again."""
        return self._requests[lane]

    def submit(self, lane: int, num_rows: int) -> None:
        """Hands the first `num_rows` rows of the lane's request to the servers."""
        assert self._status[lane] in (IDLE, ANSWERED), "a lane has at most one open request"
        self._num_rows[lane] = num_rows
        self._status[lane] = SUBMITTED
        waiting, servers = self._memory.waiting, self.spec.servers
        for choice in self._choices:
            if waiting[choice]:
                # Until it looks again, others are rung: it may be stopped, or take only a part.
                waiting[choice] = 0
                self._arena.ring(servers[choice])
                return
        # They are at work, and look again before they wait; or they are on another host.
        self._arena.ring(*servers)

    def poll(self) -> list[int]:
        """Lanes whose replies have come; each is named until `take`n."""
        return lanes_with(self._status, ANSWERED)

    def reply(self, lane: int) -> InferenceReply:
        """The lane's reply, [rows, ...], which every answer is written into."""
        return self._replies[lane]

    def take(self, lane: int) -> InferenceReply:
        """The lane's reply, of which the first `num_rows` rows count; valid until the next
        submit."""
        self._status[lane] = IDLE
        reply = self._replies[lane]
        reply.policy_version = self._version[lane]
        return reply

    def close(self) -> None:
        """Leaves: servers stop waiting for this client."""
        self._memory.open_clients[self._client] = 2
        self._arena.ring(*self.spec.servers)


class InferenceServer:
    """A policy worker's end: `poll` takes what was submitted, `gather` reads it,
    `answer` replies."""

    def __init__(self, spec: InferenceSpec, arena: Arena, server: int) -> None:
        self.spec = spec
        self._arena = arena
        self._server = server
        self._memory = memory = InferenceMemory(spec, arena)
        self._alone = len(spec.servers) == 1
        # All lanes' rows on one axis: rows of neighbouring lanes lie side by side.
        self._rows = _Rows(_map_request(_merge_lanes, memory.request))
        self._batch: _Rows | None = None
        self._targets = [_merge_lanes(array) for array in reply_leaves(memory.reply)]

    @property
    def closed(self) -> bool:
        """Clients have come, and all of them have left."""
        states = self._memory.open_clients.tobytes()
        return states.count(2) == len(states)

    def num_submitted_rows(self) -> int:
        """Rows that wait to be taken."""
        memory = self._memory
        return sum(memory.num_rows[lane] for lane in lanes_with(memory.status, SUBMITTED))

    def poll(self, max_rows: int = 0) -> list[int]:
        """Takes submitted lanes, as many as fit into `max_rows` but at least one; 0 takes all."""
        memory = self._memory
        lanes = lanes_with(memory.status, SUBMITTED)
        if lanes and (not self._alone or memory.relayed[0]):
            with self._arena.lock(f"inference/{self.spec.name}"):
                lanes = self._mark(lanes_with(memory.status, SUBMITTED), max_rows)
        elif lanes:
            lanes = self._mark(lanes, max_rows)
        memory.waiting[self._server] = not lanes
        return lanes

    def keep_away(self) -> None:
        """Says that this server has something else to do until its next `poll`."""
        self._memory.waiting[self._server] = 0

    def _mark(self, lanes: list[int], max_rows: int) -> list[int]:
        memory = self._memory
        if max_rows:
            sums = itertools.accumulate(memory.num_rows[lane] for lane in lanes)
            fits = [lane for lane, rows in zip(lanes, sums, strict=True) if rows <= max_rows]
            lanes = fits or lanes[:1]
        for lane in lanes:
            memory.server[lane] = self._server
            memory.status[lane] = TAKEN
        return lanes

    def gather(self, lanes: list[int]) -> tuple[InferenceRequest, list[int]]:
        """The taken lanes' rows as one request, and rows per lane.

        Rows that lie side by side are not copied; others are, into memory that is used again. The
        same rows come as the same object, so that what is made for it once can be kept.
        """
        counts = [self._memory.num_rows[lane] for lane in lanes]
        start = self._side_by_side(lanes, counts)
        if start is not None:
            return self._rows.part(start, sum(counts)), counts
        if self._batch is None:
            self._batch = _Rows(_map_request(np.empty_like, self._rows.request))
        at = 0
        for lane, count in zip(lanes, counts, strict=True):
            first = lane * self.spec.rows
            for to, source in zip(self._batch.leaves, self._rows.leaves, strict=True):
                to[at : at + count] = source[first : first + count]
            at += count
        return self._batch.part(0, at), counts

    def _side_by_side(self, lanes: list[int], counts: list[int]) -> int | None:
        """The first of the lanes' rows if they lie in one piece."""
        first, others = lanes[0], len(lanes) - 1
        if lanes[-1] - first == others and sum(counts) == self.spec.rows * others + counts[-1]:
            return first * self.spec.rows
        return None

    def answer(self, lanes: list[int], counts: list[int], reply: InferenceReply) -> None:
        """Writes the replies of `gather`ed lanes in place and wakes their clients."""
        self.answer_with(lanes, counts, reply_leaves(reply), reply.policy_version)

    def answer_with(
        self, lanes: list[int], counts: list[int], arrays: list[np.ndarray], policy_version: int
    ) -> None:
        """`answer` with the arrays of a reply: action, leaves of the state, leaves of the
        extras."""
        memory = self._memory
        # A client that died meanwhile has withdrawn its request; its successor asks anew, and may
        # have been answered by somebody else.
        held = [
            lane
            for lane in lanes
            if memory.status[lane] == TAKEN and memory.server[lane] == self._server
        ]
        start = self._side_by_side(lanes, counts) if len(held) == len(lanes) else None
        if start is not None:
            end = start + sum(counts)
            for to, value in zip(self._targets, arrays, strict=True):
                to[start:end] = value
        else:
            at = 0
            for lane, count in zip(lanes, counts, strict=True):
                if lane in held:
                    first = lane * self.spec.rows
                    for to, value in zip(self._targets, arrays, strict=True):
                        to[first : first + count] = value[at : at + count]
                at += count
        for lane in held:
            memory.version[lane] = policy_version
            memory.status[lane] = ANSWERED
        per_client = self.spec.lanes_per_client
        if len(lanes) == 1:
            self._arena.ring(self.spec.clients[lanes[0] // per_client])
            return
        self._arena.ring(*{self.spec.clients[lane // per_client] for lane in lanes})

    def close(self) -> None:
        """Leaves; what it had taken goes back, for another server."""
        reclaim_server(self.spec, self._arena, self._server)


def lanes_with(status: memoryview, value: int) -> list[int]:
    """Lanes in the given status. Most often there are none, which costs next to nothing."""
    cells = status.tobytes()
    if value not in cells:
        return []
    return [lane for lane, cell in enumerate(cells) if cell == value]


class _Rows:
    """A request whose parts are made once: views of the same rows are asked for at every tick."""

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


def _merge_lanes(array: np.ndarray) -> np.ndarray:
    """[lanes, rows, ...] as [lanes * rows, ...], in place."""
    return array.reshape(-1, *array.shape[2:])


def request_leaves(request: InferenceRequest) -> list[np.ndarray]:
    """A request's arrays, in a fixed order."""
    return [
        *leaves(request.obs), *leaves(request.state), request.is_first, request.explore,
        *leaves(request.action_mask),
    ]  # fmt: skip


def reply_leaves(reply: InferenceReply) -> list[np.ndarray]:
    """A reply's arrays, in a fixed order."""
    return [reply.action, *leaves(reply.state), *leaves(reply.extras)]


def create_inference(
    spec: InferenceSpec, arena: Arena, clients: Iterable[int] | None = None
) -> None:
    """Reserves the stream's memory and marks it unwritten: all of it, or the lanes of the given
    clients."""
    memory = InferenceMemory(spec, arena)
    arrays = [*leaves(memory.request.obs), memory.reply.action, *leaves(memory.reply.extras)]
    for client in range(len(spec.clients)) if clients is None else clients:
        first = client * spec.lanes_per_client
        mark_unwritten([array[first : first + spec.lanes_per_client] for array in arrays])


def reclaim_server(spec: InferenceSpec, arena: Arena, server: int) -> int:
    """Gives what a server had taken, or was rung for, to the others, and says how much it had
    taken; for a dead server only once its death is certain."""
    memory = InferenceMemory(spec, arena)
    with arena.lock(f"inference/{spec.name}"):
        memory.waiting[server] = 0
        held = [lane for lane in lanes_with(memory.status, TAKEN) if memory.server[lane] == server]
        for lane in held:
            memory.status[lane] = SUBMITTED
    # Always: a client that saw it wait may be about to ring it alone.
    arena.ring(*spec.servers)
    return len(held)


def reclaim_client(spec: InferenceSpec, arena: Arena, client: int) -> None:
    """Withdraws a dead client's requests."""
    memory = InferenceMemory(spec, arena)
    for lane in range(client * spec.lanes_per_client, (client + 1) * spec.lanes_per_client):
        memory.status[lane] = IDLE
