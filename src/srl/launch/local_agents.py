"""Engines that need nobody else: agents as processes of this machine, or started by people."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from srl.errors import RunError
from srl.launch.engines import HostRequest, Join, agent_command
from srl.launch.last_words import log_tail

LOOPBACK = "127.0.0.1"
MAX_STARTS = 5
LEAVE_SECONDS = 3.0


class LocalAgents:
    """Each host of the run is an agent on this machine, reached by loopback."""

    bind = LOOPBACK

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir
        self._join: Join | None = None
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._starts: dict[str, int] = {}

    def start(self, join: Join, hosts: Sequence[HostRequest]) -> None:
        """Starts an agent for each host."""
        self._join = join
        for host in hosts:
            self._start(host.name)

    def _start(self, name: str) -> None:
        assert self._join is not None
        self._starts[name] = self._starts.get(name, 0) + 1
        with (self._run_dir / "logs" / f"agent-{name}.log").open("ab") as output:
            self._agents[name] = subprocess.Popen(
                agent_command(self._join, name),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def poll(self) -> list[str]:
        """Starts agents again that have ended."""
        news = []
        for name, agent in list(self._agents.items()):
            code = agent.poll()
            if code is None:
                continue
            if self._starts[name] >= MAX_STARTS:
                raise RunError(
                    f"the agent of host {name!r} ended {MAX_STARTS} times (exit code {code})."
                    f"{log_tail(self._run_dir, f'agent-{name}')}"
                )
            news.append(f"the agent of host {name} ended (exit code {code}); starting it again")
            self._start(name)
        return news

    def waiting(self) -> dict[str, str]:
        """Every agent is started at once; one that has not joined is about to."""
        return {name: "its agent is starting" for name in self._agents}

    def remove(self, name: str) -> None:
        """Ends one host's agent."""
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
