"""Agents as steps of a Slurm job: the head, on the job's first node, starts them by `srun`."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path

import msgspec

from srl.errors import ConfigError, RunError
from srl.experiment import Experiment
from srl.launch.backends.backend import RETURN_SECONDS, HostRequest, JoinAddress, agent_command
from srl.launch.backends.slurm_job import PARTS_VARIABLE, ask_slurm, inside_job
from srl.launch.process.failure_report import log_tail
from srl.launch.run.restarts import AgentRestarts

LEAVE_SECONDS = 3.0
"""How long agents may take to end by themselves, and after each signal."""
LOOPBACK = "127.0.0.1"


@dataclass
class _Step:
    """One agent, and the `srun` that started it."""

    part: int
    node: str
    cpus: int
    process: subprocess.Popen[bytes] | None = None
    """None while the agent waits for its restart."""
    is_new: bool = True
    """Whether the agent was never started."""


class SlurmBackend:
    """Starts one agent on each node of the Slurm job except the head's."""

    return_seconds = RETURN_SECONDS

    def __init__(self, experiment: Experiment, run_dir: Path) -> None:
        if not inside_job():
            raise ConfigError(
                "launcher: expected to run in a job that `srl train --launcher slurm` submitted, "
                "got no such job. Start the run with that command."
            )
        self._run_dir = run_dir.absolute()
        self._join: JoinAddress | None = None
        self._steps: dict[str, _Step] = {}
        self._restarts = AgentRestarts()
        names = msgspec.json.decode(os.environ[PARTS_VARIABLE], type=list[list[str]])
        self._one_part = len(names) == 1
        self._assigned = {
            host: (part, node)
            for part, hosts in enumerate(names)
            # A job that was queued again after the loss of a node has one node less.
            for host, node in zip(hosts, cycle(_nodes(part, self._one_part)), strict=False)
        }

    @property
    def bind(self) -> str:
        """The address of this node's network interface that leads to the job's other nodes."""
        others = [node for host, (_, node) in self._assigned.items() if host]
        if not others:
            return LOOPBACK
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((_node_address(others[0]), 1))
            return str(probe.getsockname()[0])

    def start(self, join: JoinAddress, hosts: Sequence[HostRequest]) -> None:
        """Starts an agent for each host, on the node that the job has assigned to it."""
        self._join = join
        for host in hosts:
            if host.name not in self._assigned:
                names = ", ".join(name for name in self._assigned if name)
                raise RunError(
                    f"host {host.name!r}: expected one of the hosts of the submitted job "
                    f"({names}), got another. Submit the run again: `srl resume {self._run_dir}`."
                )
            part, node = self._assigned[host.name]
            step = _Step(part, node, max(1, round(host.resources.cpus)))
            self._steps[host.name] = step
            self._run(host.name, step)

    def _run(self, name: str, step: _Step) -> None:
        assert self._join is not None
        command = [
            "srun",
            *([] if self._one_part else [f"--het-group={step.part}"]),
            # A restart names no node. If the node is lost, another one then runs two agents.
            *([f"--nodelist={step.node}"] if step.is_new else []),
            *("--nodes=1", "--ntasks=1", f"--cpus-per-task={step.cpus}", "--overlap"),
            *(f"--job-name=agent-{name}", "--input=none", "--unbuffered", "--kill-on-bad-exit=0"),
            *agent_command(self._join, name),
        ]
        with (self._run_dir / "logs" / f"agent-{name}.log").open("ab") as output:
            step.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        step.is_new = False

    def poll(self) -> list[str]:
        """Starts ended agents again, each time after a longer delay."""
        news = []
        for name, step in self._steps.items():
            code = step.process.poll() if step.process is not None else None
            if code is not None:
                step.process = None
                tail = log_tail(self._run_dir, f"agent-{name}")
                news.append(self._restarts.ended(name, f"exit code {code}", tail))
        for name in self._restarts.due():
            self._run(name, self._steps[name])
        return news

    def waiting(self) -> dict[str, str]:
        """The node where each agent is being started, or that it waits for its restart."""
        return {
            name: f"Slurm starts it on {step.node}" if step.process else "it is started again soon"
            for name, step in self._steps.items()
        }

    def remove(self, name: str) -> None:
        """Ends one host's agent. Its node stays in the job."""
        self._restarts.forget(name)
        step = self._steps.pop(name, None)
        if step is not None:
            _end([step])

    def close(self) -> None:
        """Ends every agent."""
        steps, self._steps = list(self._steps.values()), {}
        _end(steps)


def _end(steps: list[_Step]) -> None:
    left = [step.process for step in steps if step.process is not None]
    # Agents that the head has told to finish end by themselves. srun forwards the signal to others.
    for end in (subprocess.Popen.terminate, subprocess.Popen.kill):
        left = _wait_for_end(left)
        for process in left:
            end(process)
    _wait_for_end(left)


def _wait_for_end(processes: list[subprocess.Popen[bytes]]) -> list[subprocess.Popen[bytes]]:
    """Waits up to `LEAVE_SECONDS`; returns the processes that have not ended."""
    deadline = time.monotonic() + LEAVE_SECONDS
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    return [process for process in processes if process.poll() is None]


def _nodes(part: int, only: bool) -> list[str]:
    """The nodes of one part of the job, in order."""
    variable = "SLURM_JOB_NODELIST" if only else f"SLURM_JOB_NODELIST_HET_GROUP_{part}"
    return _scontrol("show", "hostnames", os.environ[variable]).split()


def _node_address(node: str) -> str:
    """The network address of a node, as Slurm knows it."""
    words = _scontrol("show", "node", node, "--oneliner").split()
    found = [word.partition("=")[2] for word in words if word.startswith("NodeAddr=")]
    return found[0] if found else node


def _scontrol(*arguments: str) -> str:
    done = ask_slurm("scontrol", *arguments)
    if done.returncode != 0:
        raise RunError(f"`scontrol {' '.join(arguments)}`: Slurm does not answer: {done.stderr}")
    return done.stdout
