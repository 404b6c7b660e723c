"""Contenders, workloads and layouts fit together."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import compare
import contenders
import pytest
import venvs
from compare import estimate, parts_of
from contenders import HERE, PEERS, chosen_layout, peers_of, search_note, unsearched, untried
from workloads import WORKLOADS


@pytest.mark.parametrize("name", list(PEERS))
def test_every_peer_has_a_runner_requirements_and_workloads(name: str) -> None:
    peer = PEERS[name]
    assert (HERE / "runners" / peer.script).is_file()
    assert peer.venv in venvs.NAMES
    assert set(peer.workloads) <= set(WORKLOADS)
    for workload in peer.workloads:
        searched = not unsearched([name], workload)
        layout = chosen_layout(name, workload) if searched else peer.candidates[0]
        assert layout in peer.candidates
        command = peer.command(workload, layout, "--seconds", "1")
        assert command[2:5] == [workload, "--seconds", "1"]
        assert command[-len(layout) :] == [f"{k}={v}" for k, v in layout.items()]


@pytest.mark.parametrize("workload", list(WORKLOADS))
def test_every_workload_has_peers_and_whole_minibatches(workload: str) -> None:
    assert peers_of(workload)
    settings = WORKLOADS[workload]
    assert settings.minibatch * settings.minibatches == settings.num_envs * settings.horizon


def test_an_environment_is_made_anew_when_its_requirements_change(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SRL_COMPARE_VENVS", str(tmp_path))
    assert not venvs.is_ready("single")
    stamp = venvs.folder() / "single" / ".installed"
    stamp.parent.mkdir()
    stamp.write_text(venvs.fingerprint("single"))
    assert venvs.is_ready("single")
    stamp.write_text(venvs.fingerprint("rllib"))
    assert not venvs.is_ready("single")


def test_a_layout_that_was_never_searched_is_not_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    layouts = tmp_path / "layouts.json"
    candidates = PEERS["sb3"].candidates
    tried = [{"layout": one, "steps_per_second": 1.0, "failed": ""} for one in candidates[:2]]
    entry = {"layout": candidates[1], "tried": tried, "about": "5 s windows; shared machine"}
    layouts.write_text(json.dumps({"sb3": {"W1a": entry}}))
    monkeypatch.setattr(contenders, "LAYOUTS", layouts)
    monkeypatch.setattr(venvs, "is_ready", lambda name: True)
    assert unsearched(["sb3", "cleanrl"], "W1a") == ["cleanrl"]
    assert chosen_layout("sb3", "W1a") == candidates[1]
    assert untried("sb3", "W1a") == list(candidates[2:])
    assert search_note("sb3", "W1a") == (
        f"sb3: 2 of {len(candidates)} layouts tried, 5 s windows; shared machine"
    )
    monkeypatch.setattr(sys, "argv", ["compare.py", "W1a", "--peers", "sb3", "cleanrl"])
    assert compare.main() == 1
    assert "search.py --workloads W1a --peers cleanrl" in capsys.readouterr().out


@pytest.mark.parametrize("workload", list(WORKLOADS))
def test_a_comparison_of_one_workload_takes_at_most_forty_minutes(workload: str) -> None:
    options = argparse.Namespace(rounds=3, seconds=60.0, warmup=4.0)
    assert [parts_of(number, 3) for number in (1, 2, 3)] == ["limit", "none", "limit"]
    assert estimate(["srl", *peers_of(workload)], options) <= 40 * 60
