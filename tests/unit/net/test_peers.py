"""The address book: whole or not at all, and who is where."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest

from srl.errors import NetError
from srl.net.peers import (
    BridgeEndpoint,
    Peer,
    Peers,
    read_bridge_endpoint,
    read_peers,
    write_bridge_endpoint,
    write_peers,
)

BOOK = Peers(
    own="b",
    epoch=3,
    peers=(
        Peer(host="a", processes=("trainer-0",), address="tcp://10.0.0.1:5", public_key="k"),
        Peer(host="b", incarnation=2, processes=("actor-0", "actor-1")),
        Peer(host="c", processes=("policy-0",)),
    ),
)


def test_the_book_says_who_is_where() -> None:
    assert BOOK.me.incarnation == 2
    assert [peer.host for peer in BOOK.others] == ["a", "c"]
    assert BOOK.host_by_process["actor-1"] == "b"
    assert BOOK.hosts_of(["policy-0", "trainer-0", "nobody"]) == ("a", "c")
    assert Peers(own="x").me == Peer(host="x"), "before it is listed"


def test_a_book_travels_through_a_file(tmp_path: Path) -> None:
    assert read_peers(tmp_path) is None
    write_peers(tmp_path, BOOK)
    assert read_peers(tmp_path) == BOOK
    (path,) = tmp_path.iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("{")
    with pytest.raises(NetError, match=r"expected an address book"):
        read_peers(tmp_path)


def test_a_bridge_says_where_it_listens(tmp_path: Path) -> None:
    assert read_bridge_endpoint(tmp_path) is None
    up = BridgeEndpoint(address="tcp://127.0.0.1:4", public_key="k", incarnation=1)
    write_bridge_endpoint(tmp_path, up)
    assert read_bridge_endpoint(tmp_path) == up
