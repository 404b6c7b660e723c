"""The dataflow as the page draws it: from what a run says to boxes, arrows and moods."""

from __future__ import annotations

import pytest
from made_runs import status, worker

from srl.launch.run.status import BoxStatus, HostStatus
from srl.watch.drawing import draw, group_line, host_lines, mood, worker_lines

NOW = 1000.0


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, "good"),
        ({"state": "waiting"}, "good"),
        ({"state": "starting", "busy": 0.0}, "new"),
        ({"state": "starting", "busy": 0.3}, "good"),
        ({"state": "starting", "busy": 0.0, "restarts": 1}, "bad"),
        ({"state": "to be started"}, "new"),
        ({"state": "to be started", "restarts": 1}, "bad"),
        ({"state": "stopped"}, "bad"),
        ({"state": "cut off"}, "bad"),
        ({"restarts": 1, "restarted": NOW - 1.0}, "bad"),
        ({"restarts": 1, "restarted": NOW - 60.0}, "good"),
        ({"state": "finished"}, "over"),
    ],
)
def test_a_worker_in_trouble_is_told_from_one_that_starts(
    changes: dict[str, object], expected: str
) -> None:
    assert mood(worker("actor/0", **changes), NOW) == expected


def test_one_worker_in_trouble_shows_on_its_group() -> None:
    members = [worker("actor/0"), worker("actor/1", state="stopped", restarts=2)]
    line = group_line("actor", members, NOW)
    assert (line["mood"], line["state"], line["restarts"]) == ("bad", "1 stopped", 2)
    assert line["rate"] == 20.0
    assert line["waits"] == [("samples", 0.4)]


def test_workers_in_trouble_come_first_and_thousands_are_cut() -> None:
    many = tuple(worker(f"actor/{number}") for number in range(1000))
    lines = worker_lines(status(workers=(*many, worker("actor/1000", state="stopped"))))
    assert lines[0]["name"] == "actor/1000"
    assert len(lines) == 200


def test_what_does_not_run_is_not_drawn() -> None:
    drawing = draw(status(workers=(worker("actor/0"),)))
    assert len(drawing["boxes"]) == 1
    assert not drawing["arrows"]


def test_hosts_have_frames_and_lines_of_their_own() -> None:
    boxes = (
        BoxStatus(
            key="actor+host a", column=0, frame="host a", groups=("actor",), processes=("actor-0",)
        ),
    )
    host = HostStatus(
        name="a", machine="m", address="", state="silent for 3 s", joined=1, processes=1
    )
    seen = status(boxes=boxes, flows=(), workers=(worker("actor/0", host="a"),), hosts=(host,))
    (frame,) = draw(seen)["frames"]
    assert frame["text"] == "host a"
    (line,) = host_lines(seen)
    assert (line["mood"], line["state"], line["machine"]) == ("bad", "silent for 3 s", "m")
    assert line["rates"] == [["env steps", 10.0]]
    assert line["waits"] == [("samples", 0.4)]


def test_boxes_that_are_none_are_left_out() -> None:
    odd = BoxStatus(key="x", column=7, frame="", groups=(), processes=("actor-0",))
    assert draw(status(boxes=(odd,)))["boxes"] == []
    assert draw(status(boxes=()))["boxes"] == []
