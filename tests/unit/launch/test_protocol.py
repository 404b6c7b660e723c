"""Control messages arrive once and in order, whatever the network does to packets."""

from __future__ import annotations

import random
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from srl.errors import SpecError
from srl.launch.cluster.protocol import (
    RESEND_SECONDS,
    Channel,
    KeepAlive,
    Kill,
    Packet,
    Reports,
    decode,
    encode,
)


def kill(number: int) -> Kill:
    return Kill(process=f"actor-{number}", incarnation=number)


def test_packets_survive_the_wire() -> None:
    packet = Packet("abc", 3, 2, Reports((b"one", b"\x00two")))
    assert decode(encode(packet)) == packet


@given(st.binary(max_size=300))
def test_garbage_is_refused(data: bytes) -> None:
    try:
        packet = decode(data)
    except SpecError:
        return
    assert isinstance(packet, Packet)


@given(st.integers(0, 200), st.integers(1, 255))
def test_a_damaged_packet_is_refused_or_still_a_packet(at: int, flip: int) -> None:
    data = bytearray(encode(Packet("session", 1, 0, kill(7))))
    data[at % len(data)] ^= flip
    with suppress(SpecError):
        assert isinstance(decode(bytes(data)), Packet)


@pytest.mark.parametrize("seed", range(20))
def test_a_bad_network_loses_doubles_and_shuffles_nothing(seed: int) -> None:
    """Both sides send; packets are dropped, doubled and delayed past later ones."""
    rng = random.Random(seed)
    sides = [Channel("s"), Channel("s")]
    received: list[list[object]] = [[], []]
    flying: list[tuple[float, int, bytes]] = []
    now, sent = 0.0, 0
    while min(len(got) for got in received) < 50 or any(side.backlog for side in sides):
        now += 0.1
        assert now < 500.0, "messages never arrived"
        if sent < 50:
            for side in sides:
                side.post(kill(sent))
            sent += 1
        for index, side in enumerate(sides):
            for packet in [*side.packets(now), side.state(KeepAlive())]:
                for _ in range(rng.choice((0, 1, 1, 2))):
                    flying.append((now + rng.random(), 1 - index, encode(packet)))
        for item in [item for item in flying if item[0] <= now]:
            flying.remove(item)
            message = sides[item[1]].receive(decode(item[2]))
            if isinstance(message, Kill):
                received[item[1]].append(message)
    assert received == [[kill(i) for i in range(50)]] * 2


def test_what_is_new_does_not_wait_for_what_was_lost() -> None:
    channel = Channel("s")
    channel.post(kill(0))
    assert [p.number for p in channel.packets(0.0)] == [1]
    channel.post(kill(1))
    assert [p.number for p in channel.packets(0.1)] == [2]
    assert channel.packets(0.2) == []
    # The first was sent at 0.0 and never acknowledged.
    assert [p.number for p in channel.packets(RESEND_SECONDS)] == [1, 2]
    channel.receive(Packet("s", 0, 1, KeepAlive()))
    assert [p.number for p in channel.packets(2 * RESEND_SECONDS + 0.1)] == [2]
