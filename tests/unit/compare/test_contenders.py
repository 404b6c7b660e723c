"""Contenders, workloads and layouts fit together."""

from __future__ import annotations

import pytest
import venvs
from contenders import HERE, PEERS, chosen_layout, peers_of
from workloads import WORKLOADS


@pytest.mark.parametrize("name", list(PEERS))
def test_every_peer_has_a_runner_requirements_and_workloads(name: str) -> None:
    peer = PEERS[name]
    assert (HERE / "runners" / peer.script).is_file()
    assert peer.venv in venvs.NAMES
    assert set(peer.workloads) <= set(WORKLOADS)
    for workload in peer.workloads:
        layout = chosen_layout(name, workload)
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
