"""Messages between bridges that are dropped, doubled, delayed or cut short: nothing stands still,
and every result is exact."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, ClassVar

import msgspec
import numpy as np
import pytest
from carriers import dropped, inference_spec, sample_spec, tag_of, write
from hosts import TcpCarrier
from test_inference_stream import answer, ask, check_reply

from srl.bridge.messages import KINDS
from srl.data.records import Snapshot
from srl.net.links import Links
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.services.trainer_table import BatchNumbers, TrainerTable
from srl.streams.inference import InferenceClient, InferenceServer
from srl.streams.sample import SampleSink, SampleSource, Slot, reclaim_writer
from srl.streams.sample_accounting import account

FAULTS = ("drop", "double", "delay", "cut")
MOST_SECONDS = 15.0
"""Of the bridges' time that anything may take."""


class FaultyLinks(Links):
    """The man in the middle: half of all messages of one kind meet with an accident."""

    kind: ClassVar[str] = ""
    fault: ClassVar[str] = ""
    hits: ClassVar[int] = 0
    chance: ClassVar[Random] = Random(0)
    held: ClassVar[list[tuple[FaultyLinks, str, Any]]] = []

    def send(self, host: str, frames: Any) -> bool:
        cls = FaultyLinks
        if msgspec.msgpack.decode(frames[0])[0][0] != cls.kind:
            return super().send(host, frames)
        if cls.hits and cls.chance.random() < 0.5:
            return super().send(host, frames)
        cls.hits += 1
        match cls.fault:
            case "drop":
                return True
            case "double":
                return super().send(host, frames) and super().send(host, frames)
            case "delay":
                # Its bytes as they are now: what is sent late is what was there.
                cls.held.append((self, host, [bytes(frame) for frame in frames]))
                return True
            case _:
                *rest, last = frames
                return super().send(host, [*rest, bytes(last)[: len(last) // 2]])

    @classmethod
    def release(cls) -> None:
        """Lets everything through that was held up."""
        held, cls.held = cls.held, []
        for links, host, frames in held:
            Links.send(links, host, frames)


@pytest.fixture(params=[(kind, fault) for kind in KINDS for fault in FAULTS], ids="-".join)
def faulty(request: pytest.FixtureRequest) -> Iterator[TcpCarrier]:
    FaultyLinks.kind, FaultyLinks.fault = request.param
    FaultyLinks.hits, FaultyLinks.chance, FaultyLinks.held = 0, Random(1), []
    made = TcpCarrier(FaultyLinks)
    yield made
    made.close()


def eventually(carrier: TcpCarrier, found: Callable[[], Any]) -> Any:
    """Lets the bridges' time pass until something is the case."""
    passed = 0.0
    while not (result := found()):
        assert passed < MOST_SECONDS, f"not after {MOST_SECONDS} s"
        carrier.advance(0.25)
        passed += 0.25
        if FaultyLinks.held and passed % 1.0 == 0.0:
            FaultyLinks.release()
        carrier.pump()
    return result


def claimed(carrier: TcpCarrier, sink: SampleSink, version: int) -> Slot:
    slot: Slot = eventually(carrier, lambda: sink.claim(version))
    return slot


def test_whatever_happens_to_one_kind_of_message(faulty: TcpCarrier) -> None:
    samples = sample_spec(
        writers=("w0", "w1"), slots=4, max_policy_age=1, fragments_per_batch=2, delivery="any"
    )
    requests = inference_spec(clients=("c0",), servers=("s0",))
    weights = ParameterSpec(policy="p", shapes={"w": ((300_000,), "float32")}, readers=("reader",))
    faulty.create(samples, requests, weights)
    sinks = [SampleSink(samples, faulty.open(f"w{i}"), i) for i in range(2)]
    source = SampleSource(samples, faulty.open("r0"), 0)
    client = InferenceClient(requests, faulty.open("c0"), 0)
    server = InferenceServer(requests, faulty.open("s0"), 0)
    writer = ParameterWriter(weights, faulty.open("trainer"))
    reader = ParameterReader(weights, faulty.open("reader"))
    arenas = [faulty.open(name) for name in ("trainer", "second")]
    ranks = [TrainerTable(arena, "p", 2) for arena in arenas]
    order, tag, seen = [], 0.0, -1
    for version in range(6):
        faulty.publish(version)
        writer.publish(Snapshot(version, {"w": np.full(300_000, version, np.float32)}))
        for rank, arena in enumerate(arenas):
            ranks[rank].announce(rank, 0, version, BatchNumbers(version, 1, 1, 1, 1))
            arena.wake("trainer", "second")
        for slot in range(2):
            ask(client, slot, [version, 10 + slot])
        answered: set[int] = set()
        eventually(faulty, partial(_serve, client, server, version, answered))
        for sink in sinks:
            tag += 1
            write(claimed(faulty, sink, version), tag, version)
        for _ in sinks:
            item = eventually(faulty, source.take)
            order.append((item.ticket, tag_of(item.trajectory)))
            item.release()
            source.acknowledge(1)
        eventually(faulty, partial(_has, reader, version))
        assert (reader.snapshot().weights["w"] == version).all()
        for known in ranks:
            eventually(faulty, partial(known.all_ready, 0, version))
            assert [batch.env_steps for batch in known.batches()] == [version, version]
        assert reader.version > seen, "no version goes backwards"
        seen = reader.version
    assert [number for number, _ in order] == list(range(12)), "in order"
    assert sorted(tag for _, tag in order) == [float(i + 1) for i in range(12)], "and each once"
    _one_dies_and_all_leave(faulty, samples, sinks, source, client, server)
    # Some kinds are seldom said; of each at least one met with an accident.
    assert FaultyLinks.hits > 0


def _has(reader: ParameterReader, version: int) -> bool:
    return reader.version == version


def _serve(
    client: InferenceClient, server: InferenceServer, version: int, answered: set[int]
) -> bool:
    """Answers what has come; whether both slots have their replies."""
    if slots := server.poll():
        answer(server, slots, version)
    for slot in client.poll():
        check_reply(client, slot, [version, 10 + slot], version)
        answered.add(slot)
    return len(answered) == 2


def _one_dies_and_all_leave(
    carrier: TcpCarrier, spec: Any, sinks: Any, source: Any, client: Any, server: Any
) -> None:
    carrier.publish(6)
    claimed(carrier, sinks[0], 6)
    reclaim_writer(spec, carrier.agent("w0"), 0)
    controller = carrier.open("controller")
    eventually(carrier, lambda: account(spec, controller).dropped["writer died"] == 1)
    heir = SampleSink(spec, carrier.open("w0"), 0)
    write(claimed(carrier, heir, 6), 13.0, 6)
    heir.close()
    sinks[1].close()
    item = eventually(carrier, source.take)
    assert tag_of(item.trajectory) == 13.0
    item.release()
    source.acknowledge(1)
    eventually(carrier, lambda: source.closed)
    source.close()
    eventually(carrier, lambda: heir.closed)
    client.close()
    eventually(carrier, lambda: server.closed)
    accounts = account(spec, controller)
    assert (accounts.produced, accounts.consumed, accounts.in_flight) == (13, 13, 0)
    assert dropped(accounts) == {"writer died": 1}
