"""Friends who say what has the right type and odd values: nobody who hears it breaks."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hosts import TcpCarrier
from hypothesis import HealthCheck, given, settings
from odd import Bridges, Head
from test_unknown_peers import Run

from srl.bridge.messages import PresenceReport, RankNumbers, ReplyBatch
from srl.launch.cluster.protocol import BridgeAddress, Exited, Heartbeat, Reports, StatsRow
from srl.net.peers import Peer
from srl.services.trainer_table import ROW
from srl.services.worker_stats import ROW_BYTES

OPTIONS = settings(
    max_examples=300, deadline=None, suppress_health_check=list(HealthCheck), database=None
)


@pytest.fixture
def bridges() -> Iterator[Bridges]:
    with closing(Bridges()) as made:
        yield made


@pytest.fixture
def head(tmp_path: Path) -> Head:
    return Head(tmp_path)


def test_a_bridge_goes_on_whatever_it_hears(bridges: Bridges) -> None:
    OPTIONS(given(bridges.said)(bridges.hear))()
    assert bridges.rejected > 0, "what did not fit was counted"


def test_the_head_goes_on_whatever_it_hears(head: Head) -> None:
    OPTIONS(given(head.said)(head.hear))()
    assert head.hosts.refused > 0, "what did not fit was counted"


HUGE = 2**63 - 1
TO_BRIDGES = {
    "a version": ReplyBatch(0, [0], [3], [1], [2**64 - 1]),
    "the version of a host's weights": PresenceReport(versions={0: 2**64 - 1}),
    "a version from which nothing can count on": PresenceReport(versions={0: HUGE}),
    "the accounts of a stream": PresenceReport(readers={0: {0: 1}}, accounts={0: (2**63, 0, 0)}),
    "the accounts of another host's stream": PresenceReport(
        readers={0: {}}, accounts={0: (7, 7, 7)}
    ),
    "how a stream is to restart its count": PresenceReport(restart_requests={0: (1, HUGE, HUGE)}),
    "how often trainers have formed a group": RankNumbers(0, 2**62, {0: [0] * ROW}),
    "how far a trainer is": RankNumbers(0, 1, {0: [HUGE] * ROW}),
}  # fmt: skip


@pytest.mark.parametrize("said", TO_BRIDGES.values(), ids=TO_BRIDGES.keys())
def test_numbers_that_memory_cannot_hold_are_rejected_by_bridges(
    bridges: Bridges, said: object
) -> None:
    before = bridges.rejected
    bridges.hear((msgspec.msgpack.Decoder().decode(msgspec.msgpack.encode(said)), []))
    assert bridges.rejected == before + 2, "by each of both"


def _row(**cells: int) -> tuple[StatsRow, ...]:
    numbers = np.zeros(ROW_BYTES // 8, np.int64)
    for at, value in cells.items():
        numbers[int(at[1:])] = value
    return (StatsRow("actor/0", 0, numbers.tobytes()),)


BRIDGE = BridgeAddress(address="tcp://127.0.0.1:5", public_key="k" * 40, incarnation=0)
TO_HEAD = {
    "a clock": Heartbeat(now_ns=2**64 - 1),
    "an activity": Heartbeat(now_ns=1, rows=_row(_1=99)),
    "a heartbeat": Heartbeat(now_ns=0, rows=_row(_0=HUGE)),
    "a count": Heartbeat(now_ns=1, rows=_row(_20=HUGE)),
    "half a row": Heartbeat(now_ns=1, rows=(StatsRow("actor/0", 0, b"half"),)),
    "a worker": Heartbeat(now_ns=1, rows=(StatsRow("nobody", 0, bytes(ROW_BYTES)),)),
    "a report": Reports((b"x",)),
    "an address": msgspec.structs.replace(BRIDGE, address="tcp:// :x"),
    "a key": msgspec.structs.replace(BRIDGE, public_key="k"),
}


@pytest.mark.parametrize("said", TO_HEAD.values(), ids=TO_HEAD.keys())
def test_what_cannot_be_is_refused_by_the_head_and_said(
    head: Head, said: object, caplog: pytest.LogCaptureFixture
) -> None:
    head.hosts.refused = 0
    with caplog.at_level(logging.WARNING, "srl"):
        head.hear(msgspec.msgpack.decode(msgspec.msgpack.encode(said)))
    assert head.hosts.refused == 1
    assert "refused on the control socket (1 so far)" in caplog.text


@pytest.mark.parametrize("code", [-9, -33, -999, 3])
def test_however_a_process_ended_it_can_be_said(head: Head, code: int) -> None:
    said = Exited(process="actor-0", incarnation=0, pid=1, code=code, now_ns=0)
    head.hear({"type": "left"})
    head.hear(msgspec.msgpack.decode(msgspec.msgpack.encode(said)))
    assert "actor-0" not in head.hosts.nodes["a"].processes, "it was heard"


def test_a_host_with_an_address_that_is_none_harms_nobody_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    carrier = TcpCarrier()
    run = Run(carrier)
    try:
        run.works()
        book = run.left.bridge.messenger.peers
        # Named so that it is for the left one to dial.
        for address, key in (("tcp://nowhere", "k" * 40), ("tcp://127.0.0.1:9", "k")):
            odd = Peer(host="x", address=address, public_key=key, processes=("second",))
            run.left.bridge.follow(msgspec.structs.replace(book, peers=(*book.peers, odd)))
            run.works()
    finally:
        carrier.close()
    assert caplog.text.count("host 'x' cannot be reached") == 2
