"""Engines that need nobody else: agents as processes of this machine, or started by people."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from srl.launch.engines import HostRequest, Join, agent_command
from srl.launch.last_words import log_tail
from srl.launch.restarts import AgentRestarts

LOOPBACK = "127.0.0.1"
LEAVE_SECONDS = 3.0


class LocalAgents:
    """Each host of the run is an agent on this machine, reached by loopback."""

    bind = LOOPBACK

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._join: Join | None = None
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts = AgentRestarts()

    def start(self, join: Join, hosts: Sequence[HostRequest]) -> None:
        """Starts an agent for each host."""
        self._join = join
        for host in hosts:
            self._start(host.name)

    def _start(self, name: str) -> None:
        assert self._join is not None
        with (self._run_dir / "logs" / f"agent-{name}.log").open("ab") as output:
            self._agents[name] = subprocess.Popen(
                agent_command(self._join, name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def poll(self) -> list[str]:
        """Starts agents again that have ended, each time later."""
        news = []
        for name, agent in self._agents.items():
            code = agent.poll()
            if code is not None and not self._restarts.waits(name):
                tail = log_tail(self._run_dir, f"agent-{name}")
                news.append(self._restarts.ended(name, f"exit code {code}", tail))
        for name in self._restarts.due():
            self._start(name)
        return news

    def waiting(self) -> dict[str, str]:
        """An agent that has not joined is about to, unless it has ended."""
        return {
            name: "it is started again soon" if self._restarts.waits(name) else "it is starting"
            for name in self._agents
        }

    def remove(self, name: str) -> None:
        """Ends one host's agent."""
        self._restarts.forget(name)
        agent = self._agents.pop(name, None)
        if agent is not None:
            self._end([agent])

    def close(self) -> None:
        """Ends every agent."""
        agents, self._agents = list(self._agents.values()), {}
        self._end(agents)

    def _end(self, agents: list[subprocess.Popen[bytes]]) -> None:
        for agent in agents:
            # One that has heard of the end is gone already.
            if agent.poll() is None:
                agent.terminate()
        for agent in agents:
            with suppress(subprocess.TimeoutExpired):
                agent.wait(LEAVE_SECONDS)
            if agent.poll() is None:
                agent.kill()
                agent.wait()


class People:
    """Agents are started by people, on machines that only they know."""

    bind = LOOPBACK

    def start(self, join: Join, hosts: Sequence[HostRequest]) -> None:
        """Nothing to do: the head says which hosts it waits for, and how they join."""

    def poll(self) -> list[str]:
        """No news."""
        return []

    def waiting(self) -> dict[str, str]:
        """Nobody knows."""
        return {}

    def remove(self, name: str) -> None:
        """Agents of others are not ended; they leave when the run is over."""

    def close(self) -> None:
        """Nothing to end."""
