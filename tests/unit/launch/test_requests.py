"""What users ask of a run that goes on, and what they are answered."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

import srl
from srl.errors import ConfigError, RunError
from srl.launch.run import requests
from srl.launch.run.requests import REQUEST_FILE, Requests, ask


class Head:
    """Takes requests as a head does; what it was asked, and what it refused."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(requests, "EVERY_SECONDS", 0.0)
        self.asked: list[object] = []
        self.refused: list[str] = []
        self.requests = Requests(
            folder,
            scale=self.scale,
            checkpoint=lambda: self.asked.append("checkpoint"),
            stop=lambda: self.asked.append("stop"),
            refuse=self.refused.append,
        )

    def scale(self, counts: dict[str, int]) -> None:
        if "nobody" in counts:
            raise ConfigError("scale: no such group.")
        self.asked.append(counts)

    def answers(self, done: threading.Event) -> None:
        while not done.is_set():
            self.requests.step()
            done.wait(0.01)


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Head:
    return Head(tmp_path, monkeypatch)


def test_each_request_is_carried_out_once_and_answered(head: Head, tmp_path: Path) -> None:
    done = threading.Event()
    thread = threading.Thread(target=head.answers, args=(done,))
    thread.start()
    try:
        ask(tmp_path, "checkpoint", 60.0)
        ask(tmp_path, "scale", 60.0, {"actor": 3})
        with pytest.raises(ConfigError, match="no such group"):
            ask(tmp_path, "scale", 60.0, {"nobody": 1})
        ask(tmp_path, "stop", 60.0)
    finally:
        done.set()
        thread.join()
    assert head.asked == ["checkpoint", {"actor": 3}, "stop"]
    assert head.refused == ["scale: no such group."]


def test_who_asks_a_run_that_does_not_answer_is_told(tmp_path: Path) -> None:
    with pytest.raises(RunError, match=r"expected an answer within 0 s.*srl status"):
        ask(tmp_path, "stop", 0.1)


def test_a_request_that_is_none_is_refused_and_the_run_goes_on(head: Head, tmp_path: Path) -> None:
    for text in (b"[", b'{"token": "x", "action": "eval"}', b"\xff", b"[" * 50_000):
        (tmp_path / REQUEST_FILE).write_bytes(text)
        head.requests.step()
    assert not head.asked
    assert len(head.refused) == 4
    assert all("expected a request" in why for why in head.refused)


def test_a_request_from_before_the_start_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / REQUEST_FILE).write_bytes(b'{"token": "x", "action": "stop"}')
    head = Head(tmp_path, monkeypatch)
    head.requests.step()
    assert not head.asked


def test_a_run_in_one_thread_writes_a_checkpoint_refuses_to_scale_and_stops(
    tmp_path: Path,
) -> None:
    run_dir = tmp_path / "run"
    found: list[object] = []

    def user() -> None:
        while not (run_dir / "status.json").exists():
            threading.Event().wait(0.02)
        ask(run_dir, "checkpoint", 60.0)
        try:
            ask(run_dir, "scale", 60.0, {"actor": 2})
        except ConfigError as error:
            found.append(str(error))
        found.append([path.name for path in (run_dir / "checkpoints").glob("0*")])
        ask(run_dir, "stop", 60.0)

    thread = threading.Thread(target=user)
    thread.start()
    run = srl.train(
        "CartPole-v1", layout="serial", steps=10**9, run_dir=run_dir, quiet=True,
        set={"actor.envs": 8, "algorithm.rollout_length": 32},
    )  # fmt: skip
    thread.join()
    assert "layout serial" in str(found[0])
    assert found[1] == ["000000001"]
    assert (run.summary.status, run.summary.reason) == ("stopped", requests.STOP_REASON)
