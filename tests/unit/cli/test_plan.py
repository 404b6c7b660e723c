"""`srl plan`: what it says is what the plan is."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from srl.cli import main
from srl.cli.plan_facts import size_text

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("layout", ["serial", "inline", "shared"])
def test_text_and_drawing_name_every_worker_and_stream(layout, tmp_path, capsys):
    output = tmp_path / "plan.svg"
    arguments = ["plan", "cartpole", "--layout", layout, "--output", str(output)]
    assert main(arguments) == 0
    text = capsys.readouterr().out
    root = ET.fromstring(output.read_text())
    drawn = " ".join(element.text or "" for element in root.iter(f"{SVG}text"))
    for name in ("actor/0", "policy/0", "trainer/0"):
        assert name in text
        assert name in drawn
    carriers = {"serial": ("inline", "inline"), "inline": ("inline", "shm"), "shared": ("shm",) * 2}
    inference, sample = carriers[layout]
    assert f"actor/0 <-> policy/0, {inference}" in text
    assert f"actor/0 -> trainer/0, {sample}" in text
    arrows = [p for p in root.iter(f"{SVG}path") if p.get("marker-end")]
    assert len(arrows) == {"serial": 0, "inline": 2, "shared": 3}[layout]


def test_boxes_do_not_overlap_and_stay_inside(tmp_path, capsys):
    output = tmp_path / "plan.svg"
    more = ["--set", "actor.count=4", "--set", "evaluator.count=1", "--output", str(output)]
    assert main(["plan", "simple_tag", "--layout", "shared", *more]) == 0
    root = ET.fromstring(output.read_text())
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = [
        tuple(float(rect.get(key)) for key in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("stroke") == "#555"
    ]
    assert len(boxes) == 5
    for number, (x, y, w, h) in enumerate(boxes):
        assert 0 <= x <= width - w
        assert 0 <= y <= height - h
        for x2, y2, w2, h2 in boxes[:number]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_a_plan_that_cannot_work_is_refused(capsys):
    assert main(["plan", "cartpole", "--set", "sample.slots=1", "--set", "actor.count=2"]) == 2
    assert "sample.slots" in capsys.readouterr().err


def test_sizes_for_people():
    assert [size_text(n) for n in (12, 1500, 150_000, 2_500_000)] == [
        "12 B",
        "1.5 kB",
        "150 kB",
        "2.5 MB",
    ]
