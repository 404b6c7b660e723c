"""`srl plan`: what it says is what the plan is."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest

from srl.cli import main
from srl.launch.plan.memory import size_text

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


def boxes_of(root, stroke):
    return [
        tuple(float(rect.get(key)) for key in ("x", "y", "width", "height"))
        for rect in root.iter(f"{SVG}rect")
        if rect.get("stroke") == stroke
    ]


def holds(frame, box):
    (x, y, w, h), (x2, y2, w2, h2) = frame, box
    return x <= x2 and y <= y2 and x + w >= x2 + w2 and y + h >= y2 + h2


HOSTS = "hosts={a: [actor], b: [actor], c: [policy]}"


def test_streams_between_hosts_are_carried_by_tcp_and_hosts_are_drawn(tmp_path, capsys):
    output = tmp_path / "plan.svg"
    more = ["--set", HOSTS, "--set", "actor.count=4", "--output", str(output)]
    assert main(["plan", "cartpole", "--layout", "remote", *more]) == 0
    text = capsys.readouterr().out
    assert "actor/0 actor/1 actor/2 actor/3 <-> policy/0, tcp" in text
    assert "actor/0 actor/1 actor/2 actor/3 -> trainer/0, tcp" in text
    lines = [line.split() for line in text.splitlines()]
    where = {words[2]: words[0] for words in lines if len(words) > 2 and words[0] in "a b c home"}
    assert where == {
        "actor/0": "a", "actor/1": "b", "actor/2": "a", "actor/3": "b", "policy/0": "c",
        "trainer/0": "home",
    }  # fmt: skip

    root = ET.fromstring(output.read_text())
    drawn = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert [t for t in drawn if t.startswith("host")] == ["hosts a, b", "host c", "host home"]
    assert sum(t.startswith("tcp · ") for t in drawn) == 2
    frames, boxes = boxes_of(root, "#888"), boxes_of(root, "#555")
    assert len(frames) == len(boxes) == 3
    for box in boxes:
        assert sum(holds(frame, box) for frame in frames) == 1
    width, height = float(root.get("width")), float(root.get("height"))
    assert all(holds((0, 0, width, height), frame) for frame in frames)


def test_the_fastest_carrier_is_chosen_stream_by_stream(capsys):
    """What is on one host goes through shared memory, although the run has several."""
    more = ["--set", "hosts={a: [actor, policy]}", "--set", "actor.count=2"]
    assert main(["plan", "cartpole", "--layout", "remote", *more]) == 0
    text = capsys.readouterr().out
    assert "actor/0 actor/1 <-> policy/0, shm" in text
    assert "actor/0 actor/1 -> trainer/0, tcp" in text


def test_threads_are_said_where_there_are_several(capsys):
    chosen = ["--set", "trainer.threads=3", "--set", "env.threads=2", "--set", "actor.count=1"]
    assert main(["plan", "envpool:Pong-v5", "--layout", "inline", *chosen]) == 0
    said = capsys.readouterr().out
    assert "trains default, 3 threads" in said
    assert "environments on 2 threads" in said
    assert main(["plan", "CartPole-v1", "--layout", "inline"]) == 0
    assert "threads" not in capsys.readouterr().out


def test_hosts_that_hold_the_same_are_one_frame_and_frames_do_not_overlap(tmp_path, capsys):
    output = tmp_path / "plan.svg"
    hosts = "hosts={a: [actor], b: [actor], c: [actor], d: [policy, evaluator], e: [trainer]}"
    more = ["--set", "actor.count=4", "--set", "evaluator.count=2", "--set", "trainer.count=2"]
    more += ["--set", "inference.count=2", "--set", "trainer.trust_network=true", "--set", hosts]
    assert main(["plan", "cartpole", "--layout", "remote", *more, "--output", str(output)]) == 0
    root = ET.fromstring(output.read_text())
    drawn = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert [t for t in drawn if t.startswith("host")] == ["hosts a … c (3)", "host d", "host e"]
    frames = boxes_of(root, "#888")
    for number, (x, y, w, h) in enumerate(frames):
        for x2, y2, w2, h2 in frames[:number]:
            assert x + w <= x2 or x2 + w2 <= x or y + h <= y2 or y2 + h2 <= y


def test_boxes_do_not_overlap_and_stay_inside(tmp_path, capsys):
    output = tmp_path / "plan.svg"
    more = ["--set", "actor.count=4", "--set", "evaluator.count=1", "--output", str(output)]
    assert main(["plan", "simple_tag", "--layout", "shared", *more]) == 0
    root = ET.fromstring(output.read_text())
    width, height = float(root.get("width")), float(root.get("height"))
    boxes = boxes_of(root, "#555")
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


@pytest.mark.parametrize("verb", ["plan", "settings"])
def test_arguments_of_the_environment_are_passed_on(verb, tmp_path, capsys):
    """Also those without which it cannot be made."""
    file = tmp_path / "own.py"
    file.write_text(
        "from srl.testing.envs import ScriptedEnv\n"
        "class Own(ScriptedEnv):\n"
        "    def __init__(self, *, size):\n"
        "        super().__init__()\n"
    )
    assert main([verb, f"{file}:Own", "--env-arg", "size=8"]) == 0
    assert ("trainer/0" if verb == "plan" else '{"size":8}') in capsys.readouterr().out
