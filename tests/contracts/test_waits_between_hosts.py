"""Whoever is slow makes those on other hosts wait, and how long is counted there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest
from carriers import claim, inference_spec, sample_spec, write
from hosts import TcpCarrier
from test_inference_stream import answer, ask, check_reply

from srl.streams.inference import InferenceClient, InferenceServer
from srl.streams.sample import SampleSink, SampleSource


@pytest.fixture
def carrier() -> Iterator[TcpCarrier]:
    with closing(TcpCarrier()) as made:
        yield made


def test_a_slow_reader_makes_writers_elsewhere_wait_for_slots(carrier: TcpCarrier) -> None:
    spec = sample_spec(slots=2)
    carrier.create(spec)
    sink = SampleSink(spec, carrier.open("w0"), 0)
    source = SampleSource(spec, carrier.open("r0"), 0)
    counters = carrier.sides["left"].bridge.counters
    for tag in (1.0, 2.0):
        slot = claim(sink)
        assert slot is not None
        write(slot, tag)
    before = counters.reported()["wait_slots_ns"]
    assert before < 1e9
    assert claim(sink) is None
    carrier.advance(3.0)
    item = source.take()
    assert item is not None
    item.release()
    source.acknowledge(1)
    assert claim(sink) is not None
    assert 3e9 <= counters.reported()["wait_slots_ns"] - before < 10e9


def test_a_slow_server_makes_clients_elsewhere_wait_for_replies(carrier: TcpCarrier) -> None:
    spec = inference_spec()
    carrier.create(spec)
    client = InferenceClient(spec, carrier.open("c0"), 0)
    server = InferenceServer(spec, carrier.open("s0"), 0)
    counters = carrier.sides["left"].bridge.counters
    ask(client, 0, [1, 2])
    slots = server.poll()
    carrier.advance(2.0)
    answer(server, slots)
    check_reply(client, 0, [1, 2])
    assert 2e9 <= counters.reported()["wait_requests_ns"] < 10e9
