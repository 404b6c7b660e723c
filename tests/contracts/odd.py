"""Messages that have the right type and odd values, and the receivers that they are said to: a
host's bridge, and the head."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
from carriers import inference_spec, sample_spec
from hosts import TcpCarrier
from hypothesis import strategies as st
from msgspec import inspect

from srl.arena.arena import HeapArena
from srl.bridge.messages import Message as BridgeMessage
from srl.launch.cluster.membership import Membership
from srl.launch.cluster.protocol import PROTOCOL, Brief, JoinRequest, Packet, encode
from srl.launch.cluster.protocol import Message as ControlMessage
from srl.services.messages import Message as Report
from srl.services.metric_names import MetricNames
from srl.services.metrics import Collector, LoggingConfig
from srl.services.worker_stats import ROW_BYTES, StatsTable
from srl.streams.inference import InferenceClient, InferenceServer
from srl.streams.remote_requests import RemoteRequests
from srl.streams.sample import SampleSink, SampleSource
from srl.streams.sample_accounting import account, close_account, sum_accounts

EDGES = (-(2**63), -(2**31), -1, 255, 2**31, 2**40, 2**48, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
NAMES = ("", "a", "left", "right", "home", "bridge", "actor/0", "actor-0", "writer died", "samples")


def plain(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """What a message of a type may look like on the wire: mostly with values that fit."""
    match kind:
        case inspect.IntType(ge=least, le=most):
            ends = [end for end in (least, most) if end is not None]
            return st.integers(0, 3) | st.sampled_from([*EDGES, *ends])
        case inspect.FloatType():
            return st.floats() | st.integers(0, 3)
        case inspect.BoolType():
            return st.booleans()
        case inspect.NoneType():
            return st.none()
        case inspect.StrType(pattern=None):
            return st.sampled_from(NAMES) | st.text(max_size=5)
        case inspect.StrType():
            return st.sampled_from(["tcp://127.0.0.1:5", "tcp://x:99999", "k" * 40]) | st.text()
        case inspect.BytesType():
            return st.binary(max_size=9) | rows() | reports()
        case inspect.LiteralType(values=values):
            return st.sampled_from(values)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
            each = plain(item)
            return st.one_of(*(st.lists(each, min_size=n, max_size=n) for n in (1, 0, 2, 14)))
        case inspect.TupleType(item_types=items):
            return st.tuples(*map(plain, items))
        case inspect.DictType(key_type=key, value_type=value):
            return st.dictionaries(plain(key), plain(value), max_size=2)
        case inspect.UnionType(types=types):
            return st.one_of(*map(plain, types))
        case inspect.StructType():
            return _struct(kind)
    raise AssertionError(f"nothing is known of {kind}")


def _struct(kind: inspect.StructType) -> st.SearchStrategy[Any]:
    tag = {} if kind.tag is None else {kind.tag_field: st.just(kind.tag)}
    fields = {field.encode_name: plain(field.type) for field in kind.fields}
    if kind.array_like:
        return st.tuples(*tag.values(), *fields.values())
    return st.fixed_dictionaries({**tag, **fields})


def rows() -> st.SearchStrategy[bytes]:
    """A worker's row: zeros, and one number that may be anything."""
    cells = st.tuples(st.integers(0, ROW_BYTES // 8 - 1), st.sampled_from((1, 7, 8, *EDGES[:-2])))
    return cells.map(
        lambda at: b"".join(
            (at[1] if i == at[0] else 0).to_bytes(8, "little", signed=True)
            for i in range(ROW_BYTES // 8)
        )
    )


def reports() -> st.SearchStrategy[bytes]:
    """What a worker may say to the collector."""
    return plain(inspect.type_info(Report)).map(msgspec.msgpack.encode)


class Bridges:
    """Two bridges, each of which hears odd things from the other's host."""

    def __init__(self) -> None:
        self.carrier = TcpCarrier()
        self._samples, self._requests = sample_spec(), inference_spec()
        self.carrier.create(self._samples, self._requests)
        self._client = InferenceClient(self._requests, self.carrier.open("c0"), 0)
        self._server = InferenceServer(self._requests, self.carrier.open("s0"), 0)
        self._ends = [
            SampleSink(self._samples, self.carrier.open("w0"), 0),
            SampleSource(self._samples, self.carrier.open("r0"), 0),
        ]
        relay = RemoteRequests(self._requests, self.carrier.open("c0"))
        sizes = [0, 16, self._samples.trajectory.nbytes]
        for rows in (1, 2, 3):
            for parts in (relay.request_parts(0, rows), relay.reply_parts(0, rows)):
                sizes.append(sum(part.nbytes for part in parts))
        self.said = st.tuples(
            plain(inspect.type_info(BridgeMessage)),
            st.lists(st.sampled_from(sizes).map(bytes), max_size=1),
        )
        """Messages, each with its further frames."""

    def hear(self, said: tuple[Any, Sequence[bytes]]) -> None:
        """Both bridges hear a message, do what follows, and their workers look at it."""
        message, body = said
        head = msgspec.msgpack.encode([message, [0] * len(body)])
        for own, other in (("left", "right"), ("right", "left")):
            bridge = self.carrier.sides[own].bridge
            bridge._receive(other, [memoryview(head), *map(memoryview, body)])
            bridge.turn()
        self._client.poll()
        self._server.poll()
        account(self._samples, self.carrier.open("controller"))

    @property
    def rejected(self) -> int:
        """Messages that fitted no plan."""
        return sum(side.bridge.counters.get("rejected") for side in self.carrier.sides.values())

    def close(self) -> None:
        self.carrier.close()


class _Nowhere:
    """A control socket without anybody at its other end."""

    def __init__(self) -> None:
        self.socket = self

    def receive(self) -> None:
        return None

    def send_multipart(self, frames: list[bytes], flags: int) -> None:
        assert all(frames[1:])


class Head:
    """A head with a host that says odd things, and what the head makes of them."""

    def __init__(self, folder: Path) -> None:
        self.hosts = Membership(_Nowhere(), wanted=("a",), silence_seconds=1e9, logs=folder)  # type: ignore[arg-type]
        worker = SimpleNamespace(name="actor/0", process="actor-0")
        plan: Any = SimpleNamespace(workers=[worker], processes={"actor-0": [worker]})
        self._stats_table = StatsTable(HeapArena(), ("actor/0",))
        self.hosts.brief(Brief(plan=b"", run_dir="", probe=""), plan, self._stats_table)
        names = MetricNames({"p": ("a_*", "b_*")}, ["p"])
        self._collector = Collector(folder, LoggingConfig(sinks=()), names)
        self.said = plain(inspect.type_info(ControlMessage))

    def _session(self) -> str:
        """That of the host, which joins again if it has left."""
        if "a" not in self.hosts.nodes:
            join = JoinRequest(
                token="t", name="a", machine="", pid=1, cores=1, address="", version=PROTOCOL
            )
            self.hosts._take([b"i", encode(Packet("", 0, 0, join))], time.monotonic())
            self.hosts.nodes["a"].start("actor-0", 0, ())
        return self.hosts.nodes["a"].channel.session

    def hear(self, message: Any) -> None:
        """The head hears a message and writes down what there is to be known."""
        packet = msgspec.msgpack.encode([self._session(), 0, 0, message])
        self.hosts._take([b"i", packet], time.monotonic())
        self.hosts.poll()
        self._session()
        while self.hosts.reports:
            self._collector.add(self.hosts.reports.popleft())
        found: list[Any] = [self._collector.snapshot()]
        for place in (*self.hosts.nodes.values(), *self.hosts.lost):
            accounts = list(place.accounts.values())
            found += [
                sum_accounts([*accounts, *map(close_account, accounts)]),
                place.peer(()),
                place.join,
            ]
            found += [(place.pid("actor-0"), ended.how) for ended in place.exits()]
        row = self._stats_table.rows["actor/0"]
        found += [row.activity, time.monotonic_ns() - row.get("heartbeat_ns"), row.dump()]
        row.add("count_env_steps", 1)
        msgspec.json.encode(found)
        self.hosts.lost.clear()
        self.hosts.joined.clear()
