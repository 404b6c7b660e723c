"""Refusals are logged, but not one by one."""

from __future__ import annotations

import pytest
import zmq

from srl.net.door import Desk


def test_each_reason_is_logged_though_another_was_just_now(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = Desk("gate", {})
    for _ in range(3):
        desk.tell("its key is unknown", "10.0.0.7")
        desk.note(zmq.EVENT_ACCEPTED)
        desk.note(zmq.EVENT_DISCONNECTED)
    assert desk.refused == 3
    assert [record.getMessage().partition("(no CURVE")[0] for record in caplog.records] == [
        "gate () refused a connection from 10.0.0.7: its key is unknown. 1 refused so far; the run "
        "goes on. A host that is just joining dials again; otherwise somebody else on the network "
        "tries this port.",
        "gate () refused a connection: it did not show a key of this run ",
    ]
