"""Backends without a cluster: agents as processes of this machine, or started by users."""

from __future__ import annotations

import math
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from srl.launch.backends.backend import RETURN_SECONDS, HostRequest, JoinAddress, agent_command
from srl.launch.process.failure_report import log_tail
from srl.launch.process.process_state import is_stopped
from srl.launch.run.liveness import Liveness
from srl.launch.run.restarts import AgentRestarts

LOOPBACK = "127.0.0.1"
LEAVE_SECONDS = 3.0
"""How long agents may take to end by themselves before they are killed."""


class LocalAgents:
    """Starts the agent of every host on this machine; they connect by loopback."""

    bind = LOOPBACK
    return_seconds = RETURN_SECONDS

    def __init__(self, run_dir: Path, stopped_seconds: float) -> None:
        """An agent that a signal has stopped for `stopped_seconds` is killed."""
        self._run_dir = run_dir
        self._liveness = Liveness(math.inf, stopped_seconds)
        self._join: JoinAddress | None = None
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._restarts = AgentRestarts()

    def start(self, join: JoinAddress, hosts: Sequence[HostRequest]) -> None:
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
        """Starts ended agents again, and kills agents that are stopped for too long."""
        news = []
        self._liveness.begin(time.monotonic_ns())
        for name, agent in self._agents.items():
            code = agent.poll()
            if code is None and self._is_stopped_too_long(name, agent.pid):
                news.append(f"the agent of host {name} is stopped (pid {agent.pid}); killed")
                agent.kill()
            if code is not None and not self._restarts.waits(name):
                tail = log_tail(self._run_dir, f"agent-{name}")
                news.append(self._restarts.ended(name, f"exit code {code}", tail))
        for name in self._restarts.due():
            self._start(name)
        return news

    def _is_stopped_too_long(self, name: str, pid: int) -> bool:
        if not is_stopped(pid):
            self._liveness.forget(name)
            return False
        return self._liveness.judge(name, 0, "stopped", excused=False) == "stopped"

    def waiting(self) -> dict[str, str]:
        """Whether each agent is starting, or waits for its restart."""
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
            # An agent that the head has told to finish may have ended already.
            if agent.poll() is None:
                agent.terminate()
        for agent in agents:
            with suppress(subprocess.TimeoutExpired):
                agent.wait(LEAVE_SECONDS)
            if agent.poll() is None:
                agent.kill()
                agent.wait()


class ManualAgents:
    """Users start the agents themselves, on machines that only they know."""

    bind = LOOPBACK
    return_seconds = 0.0

    def start(self, join: JoinAddress, hosts: Sequence[HostRequest]) -> None:
        """Does nothing: the head prints the hosts that it waits for, and the command to join."""

    def poll(self) -> list[str]:
        """Returns no news."""
        return []

    def waiting(self) -> dict[str, str]:
        """Returns nothing: what the hosts wait for is unknown."""
        return {}

    def remove(self, name: str) -> None:
        """Does nothing: agents of users leave when the run is over."""

    def close(self) -> None:
        """Does nothing: there are no agents of this backend to end."""
