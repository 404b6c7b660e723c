"""How often, and how soon, what ended is started again: workers, and the agents of engines."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from srl.errors import RunError
from srl.launch import local_agents
from srl.launch.engines import HostRequest, Join
from srl.launch.local_agents import LocalAgents
from srl.launch.restarts import AGENT_RESTARTS, AGENT_WINDOW_SECONDS, AgentRestarts, Restarts
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
    monkeypatch.setattr(local_agents, "agent_command", lambda join, name: command)
    clock = Clock()
    monkeypatch.setattr(local_agents, "AgentRestarts", lambda: AgentRestarts(clock))
    (tmp_path / "logs").mkdir()
    engine = LocalAgents(tmp_path)
    host = HostRequest(name="a", kind="actor", resources=ResourceConfig())
    engine.start(Join(address="127.0.0.1:1", key_file=tmp_path / "join.key"), [host])
    try:
        for number in range(AGENT_RESTARTS):
            told.write_text("end")
            engine._agents["a"].wait(30)
            news = engine.poll()
            assert len(news) == 1
            assert "ended (exit code 3)" in news[0]
            waits = "it is started again soon" if number else "it is starting"
            assert engine.waiting() == {"a": waits}
            assert engine.poll() == [], "said once"
            clock.now += 60.0 / AGENT_RESTARTS
            engine.poll()
        told.write_text("end")
        engine._agents["a"].wait(30)
        with pytest.raises(RunError, match=r"ended 7 times .*exit code 3(?s:.*)no such face"):
            engine.poll()
    finally:
        engine.close()
