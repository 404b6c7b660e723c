"""The inference stream: duplex, many clients (actors), one or more servers (policy workers).

Every lane of every client has one place for its request and one for its reply. A client writes its
request in place and submits it; a server takes what was submitted, and writes the reply in place.
Nothing is serialised, nothing is allocated, and a lane has at most one request open.

Waiting: no operation blocks. `submit` rings the servers, `answer` rings the clients; whoever finds
nothing to do names the stream to its worker loop, which sleeps until rung. Closing: a server that
sees no client left is done. A server that died leaves what it had taken; `reclaim_server` gives it
to the next.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np

from srl.arena.arena import Arena
from srl.data.layout import Shape, layout_bytes, layout_views, mark_unwritten
from srl.data.records import InferenceReply, InferenceRequest
from srl.data.spec import AgentSpec, ArraySpec, action_array, from_plain
from srl.data.tree import Tree, leaves, tree_map

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


class _Memory:
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
        self.status: np.ndarray = views["status"]
        self.server: np.ndarray = views["server"]
        self.num_rows: np.ndarray = views["num_rows"]
        self.version: np.ndarray = views["version"]
        self.open_clients: np.ndarray = views["open_clients"]
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


def _request_at(request: InferenceRequest, index: object) -> InferenceRequest:
    def pick(array: np.ndarray) -> np.ndarray:
        return array[index]  # type: ignore[call-overload,no-any-return]

    return InferenceRequest(
        obs=tree_map(pick, request.obs),
        state=tree_map(pick, request.state),
        is_first=request.is_first[index],  # type: ignore[call-overload]
        explore=request.explore[index],  # type: ignore[call-overload]
        action_mask=None if request.action_mask is None else pick(request.action_mask),
    )


class InferenceClient:
    """An actor's end: write `request(lane)` in place, `submit`, and read `reply(lane)` once `poll`
    names it."""

    def __init__(self, spec: InferenceSpec, arena: Arena, client: int) -> None:
        self.spec = spec
        self._arena = arena
        self._memory = memory = _Memory(spec, arena)
        first = client * spec.lanes_per_client
        own = slice(first, first + spec.lanes_per_client)
        self._status = memory.status[own]
        self._num_rows = memory.num_rows[own]
        self._version = memory.version[own]
        self._client = client
        self._requests = [
            _request_at(memory.request, first + lane) for lane in range(spec.lanes_per_client)
        ]
        self._replies = [
            InferenceReply(
                action=memory.reply.action[first + lane],
                state=tree_map(lambda a, at=first + lane: a[at], memory.reply.state),
                extras=tree_map(lambda a, at=first + lane: a[at], memory.reply.extras),
            )
            for lane in range(spec.lanes_per_client)
        ]
        self._status.fill(IDLE)
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
        for server in self.spec.servers:
            self._arena.ring(server)

    def poll(self) -> list[int]:
        """Lanes whose replies have come; each is named until `take`n."""
        return np.flatnonzero(self._status == ANSWERED).tolist()

    def take(self, lane: int) -> InferenceReply:
        """The lane's reply, [rows, ...] of which the first `num_rows` count; valid until the next
        submit."""
        self._status[lane] = IDLE
        reply = self._replies[lane]
        reply.policy_version = int(self._version[lane])
        return reply

    def close(self) -> None:
        """Leaves: servers stop waiting for this client."""
        self._memory.open_clients[self._client] = 0
        for server in self.spec.servers:
            self._arena.ring(server)


class InferenceServer:
    """A policy worker's end: `poll` takes what was submitted, `gather` reads it,
    `answer` replies."""

    def __init__(self, spec: InferenceSpec, arena: Arena, server: int) -> None:
        self.spec = spec
        self._arena = arena
        self._server = server
        self._memory = _Memory(spec, arena)
        self._alone = len(spec.servers) == 1
        self._seen_clients = False

    @property
    def closed(self) -> bool:
        """Clients have come, and all of them have left."""
        some = bool(self._memory.open_clients.any())
        self._seen_clients |= some
        return self._seen_clients and not some

    def num_submitted_rows(self) -> int:
        """Rows that wait to be taken."""
        memory = self._memory
        return int(memory.num_rows[memory.status == SUBMITTED].sum())

    def poll(self, max_rows: int = 0) -> np.ndarray:
        """Takes submitted lanes (int64 [n]), as many as fit into `max_rows` but at least one; 0
        takes all."""
        memory = self._memory
        lanes = np.flatnonzero(memory.status == SUBMITTED)
        if not lanes.size:
            return lanes
        if self._alone:
            return self._mark(lanes, max_rows)
        with self._arena.lock(f"inference/{self.spec.name}"):
            return self._mark(np.flatnonzero(memory.status == SUBMITTED), max_rows)

    def _mark(self, lanes: np.ndarray, max_rows: int) -> np.ndarray:
        memory = self._memory
        if max_rows:
            fits = np.cumsum(memory.num_rows[lanes]) <= max_rows
            fits[:1] = True
            lanes = lanes[fits]
        memory.server[lanes] = self._server
        memory.status[lanes] = TAKEN
        return lanes

    def gather(self, lanes: np.ndarray) -> tuple[InferenceRequest, np.ndarray]:
        """The taken lanes' rows as one request (one copy, none for a single lane), and rows per
        lane."""
        memory, rows = self._memory, self.spec.rows
        counts = memory.num_rows[lanes]
        if len(lanes) == 1:
            return _request_at(memory.request, (int(lanes[0]), slice(0, int(counts[0])))), counts
        if int(counts.sum()) == rows * len(lanes):
            packed = _request_at(memory.request, lanes)

            def merge(array: np.ndarray) -> np.ndarray:
                return array.reshape(-1, *array.shape[2:])

            return (
                InferenceRequest(
                    obs=tree_map(merge, packed.obs),
                    state=tree_map(merge, packed.state),
                    is_first=merge(packed.is_first),
                    explore=merge(packed.explore),
                    action_mask=None if packed.action_mask is None else merge(packed.action_mask),
                ),
                counts,
            )
        index = (np.repeat(lanes, counts), np.concatenate([np.arange(n) for n in counts]))
        return _request_at(memory.request, index), counts

    def answer(self, lanes: np.ndarray, counts: np.ndarray, reply: InferenceReply) -> None:
        """Writes the replies of `gather`ed lanes in place and wakes their clients."""
        memory, rows = self._memory, self.spec.rows
        if len(lanes) == 1:
            index: object = (int(lanes[0]), slice(0, int(counts[0])))
        elif int(counts.sum()) == rows * len(lanes):
            index = None
        else:
            index = (np.repeat(lanes, counts), np.concatenate([np.arange(n) for n in counts]))

        def put(to: np.ndarray, new: np.ndarray) -> None:
            if index is None:
                to[lanes] = new.reshape(len(lanes), rows, *new.shape[1:])
            else:
                to[index] = new  # type: ignore[call-overload]

        put(memory.reply.action, reply.action)
        _put_all(put, memory.reply.state, reply.state)
        _put_all(put, memory.reply.extras, reply.extras)
        memory.version[lanes] = reply.policy_version
        # A client that died meanwhile has withdrawn its request; its successor asks anew.
        mine = (memory.status[lanes] == TAKEN) & (memory.server[lanes] == self._server)
        memory.status[lanes[mine]] = ANSWERED
        per_client = self.spec.lanes_per_client
        for client in {int(lane) // per_client for lane in lanes}:
            self._arena.ring(self.spec.clients[client])

    def close(self) -> None:
        """Leaves; what it had taken goes back, for another server."""
        reclaim_server(self.spec, self._arena, self._server)


def _put_all(put: object, to: Tree, new: Tree) -> None:
    for target, source in zip(leaves(to), leaves(new), strict=True):
        put(target, source)  # type: ignore[operator]


def create_inference(spec: InferenceSpec, arena: Arena) -> None:
    """Reserves the stream's memory and marks it unwritten."""
    memory = _Memory(spec, arena)
    mark_unwritten([leaves(memory.request.obs), memory.reply.action, leaves(memory.reply.extras)])


def reclaim_server(spec: InferenceSpec, arena: Arena, server: int) -> int:
    """Gives what a server had taken back to the others; for a dead server only once its death is
    certain."""
    memory = _Memory(spec, arena)
    with arena.lock(f"inference/{spec.name}"):
        held = np.flatnonzero((memory.status == TAKEN) & (memory.server == server))
        memory.status[held] = SUBMITTED
    if held.size:
        _ring_all(arena, spec.servers)
    return int(held.size)


def reclaim_client(spec: InferenceSpec, arena: Arena, client: int) -> None:
    """Withdraws a dead client's requests."""
    memory = _Memory(spec, arena)
    first = client * spec.lanes_per_client
    memory.status[first : first + spec.lanes_per_client] = IDLE


def _ring_all(arena: Arena, processes: Sequence[str]) -> None:
    for process in processes:
        arena.ring(process)
