"""How often, and how soon, what ended is started again: workers, and the agents of engines."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from srl.errors import RunError
from srl.launch.backends import local
from srl.launch.backends.backend import HostRequest, JoinAddress
from srl.launch.backends.local import LocalAgents
from srl.launch.run.restarts import (
    AGENT_RESTARTS,
    AGENT_WINDOW_SECONDS,
    SETTLED_SECONDS,
    AgentRestarts,
    Restarts,
)
from srl.resources import ResourceConfig


class Clock:
    """A time that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_each_restart_within_the_window_comes_later_than_the_one_before() -> None:
    restarts = Restarts(100.0)
    assert [restarts.add("a", now) for now in (0.0, 1.0, 2.0, 3.0)] == [0.0, 0.5, 1.0, 2.0]
    assert restarts.recent("a", 50.0) == 4
    assert restarts.recent("a", 101.5) == 2
    assert restarts.add("a", 500.0) == 0.0
    assert restarts.total["a"] == 5


def test_what_has_run_well_for_a_while_is_started_again_at_once() -> None:
    restarts, now = Restarts(1e6), 0.0
    for _ in range(20):
        assert restarts.add("a", now) == 0.0
        now += SETTLED_SECONDS
    assert restarts.add("a", now - SETTLED_SECONDS + 1.0) == 0.5, "and later if it has not"
    assert restarts.add("a", now - SETTLED_SECONDS + 2.0) == 1.0
    assert restarts.add("a", now + SETTLED_SECONDS) == 0.0


def test_an_agent_may_end_for_ever_if_it_does_so_seldom() -> None:
    clock = Clock()
    agents = AgentRestarts(clock)
    for _ in range(5 * AGENT_RESTARTS):
        clock.now += AGENT_WINDOW_SECONDS + 1.0
        assert agents.ended("a", "exit code 1").endswith("; starting it again")
        assert agents.due() == ["a"]


def test_an_agent_that_ends_again_and_again_waits_longer_and_then_ends_the_run() -> None:
    clock = Clock()
    agents = AgentRestarts(clock)
    assert agents.ended("a", "exit code 1") == (
        "the agent of host a ended (exit code 1); starting it again"
    )
    assert agents.due() == ["a"]
    for number in range(1, AGENT_RESTARTS):
        delay = 0.5 * 2 ** (number - 1)
        assert agents.ended("a", "exit code 1").endswith(f"starting it again in {delay:g} s")
        assert agents.waits("a")
        assert agents.due() == []
        clock.now += delay
        assert agents.due() == ["a"]
        assert not agents.waits("a")
    # Others are not to blame.
    agents.ended("b", "exit code 2")
    with pytest.raises(RunError, match=r"'a' ended 7 times within 300 s \(it fell\)\.\nwords"):
        agents.ended("a", "it fell", "\nwords")


def test_agents_of_this_machine_are_started_again_and_given_up_with_their_last_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It ends when it is told to, not while the test still looks at what the one before it left.
    told = tmp_path / "told"
    os.mkfifo(told)
    code = "import sys; print('no such face'); open(sys.argv[1]).read(); raise SystemExit(3)"
    command = [sys.executable, "-c", code, str(told)]
    monkeypatch.setattr(local, "agent_command", lambda join, name: command)
    clock = Clock()
    monkeypatch.setattr(local, "AgentRestarts", lambda: AgentRestarts(clock))
    (tmp_path / "logs").mkdir()
    backend = LocalAgents(tmp_path, 2.0)
    host = HostRequest(name="a", kind="actor", resources=ResourceConfig())
    backend.start(JoinAddress(address="127.0.0.1:1", key_file=tmp_path / "join.key"), [host])
    try:
        for number in range(AGENT_RESTARTS):
            told.write_text("end")
            backend._agents["a"].wait(30)
            news = backend.poll()
            assert len(news) == 1
            assert "ended (exit code 3)" in news[0]
            waits = "it is started again soon" if number else "it is starting"
            assert backend.waiting() == {"a": waits}
            assert backend.poll() == [], "said once"
            clock.now += 60.0 / AGENT_RESTARTS
            backend.poll()
        told.write_text("end")
        backend._agents["a"].wait(30)
        with pytest.raises(RunError, match=r"ended 7 times .*exit code 3(?s:.*)no such face"):
            backend.poll()
    finally:
        backend.close()


def test_an_agent_of_this_machine_that_is_stopped_is_killed_and_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    monkeypatch.setattr(local, "agent_command", lambda join, name: command)
    (tmp_path / "logs").mkdir()
    backend = LocalAgents(tmp_path, 0.5)
    host = HostRequest(name="a", kind="actor", resources=ResourceConfig())
    backend.start(JoinAddress(address="127.0.0.1:1", key_file=tmp_path / "join.key"), [host])
    try:
        first = backend._agents["a"].pid
        assert backend.poll() == []
        os.kill(first, signal.SIGSTOP)
        news: list[str] = []
        deadline = time.monotonic() + 60.0
        while backend._agents["a"].pid == first and time.monotonic() < deadline:
            time.sleep(0.02)
            news += backend.poll()
        assert backend._agents["a"].pid != first
        assert "is stopped" in news[0]
        assert "ended (exit code -9); starting it again" in news[1]
    finally:
        backend.close()
