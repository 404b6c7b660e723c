"""What the processes of a run are told about threads."""

from __future__ import annotations

import pytest

from srl.launch.process.children import single_threaded


def test_threads_that_wait_sleep_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", "8")
    told = single_threaded()
    assert (told["OMP_WAIT_POLICY"], told["OMP_NUM_THREADS"]) == ("passive", "1")
    monkeypatch.setenv("OMP_WAIT_POLICY", "active")
    assert single_threaded()["OMP_WAIT_POLICY"] == "active"
