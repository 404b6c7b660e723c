"""Refusals are logged, but not one by one."""

from __future__ import annotations

import pytest
import zmq

from srl.net.authenticator import AllowList


def test_each_reason_is_logged_though_another_was_just_now(
    caplog: pytest.LogCaptureFixture,
) -> None:
    allow_list = AllowList("bridge", {})
    for _ in range(3):
        allow_list.tell("its key is unknown", "10.0.0.7")
        allow_list.note(zmq.EVENT_ACCEPTED)
        allow_list.note(zmq.EVENT_DISCONNECTED)
    assert allow_list.refused == 3
    assert [record.getMessage().partition("(no CURVE")[0] for record in caplog.records] == [
        "bridge () refused a connection from 10.0.0.7: its key is unknown. 1 refused so far; the "
        "run goes on. A host that is just joining dials again; otherwise somebody else on the "
        "network tries this port.",
        "bridge () refused a connection: it did not show a key of this run ",
    ]
