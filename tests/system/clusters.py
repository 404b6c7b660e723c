"""A real Slurm and a real Ray of two nodes each on this machine, for tests alone.

Nothing of them is a child of the tests' process: what a cluster starts belongs to the cluster, and
goes with it. Both keep everything they write in one folder, listen on free ports, and leave a
Slurm or a Ray of the machine alone.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from harness import LIMIT_SECONDS, wait_for

INSTALL = Path(__file__).with_name("install_debian.sh")


def install(*packages: str) -> None:
    """Debian packages that a test needs; skips it where they cannot be had."""
    done = subprocess.run([str(INSTALL), *packages], capture_output=True, text=True)
    if done.returncode == 3:
        pytest.skip(done.stderr.strip())
    assert done.returncode == 0, done.stderr


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for opened in sockets:
            opened.bind(("127.0.0.1", 0))
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()


def processes_of(folder: Path) -> list[psutil.Process]:
    """Processes that a folder is named to, in their command or in their environment."""
    mark = str(folder)
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        with suppress(psutil.Error):
            words = [*process.cmdline(), *process.environ().values()]
            if any(mark in word for word in words) and process.status() != "zombie":
                found.append(process)
    return found


def end_all(folder: Path) -> None:
    """Presence every process of a folder, and the folder."""
    left = processes_of(folder)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    _, alive = psutil.wait_procs(left, timeout=LIMIT_SECONDS)
    shutil.rmtree(folder, ignore_errors=True)
    assert not alive, f"still there: {alive}"


# -- Slurm -------------------------------------------------------------------------------------

SLURM_CONF = """
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
SlurmctldDebug=info
SlurmdDebug=info
SlurmdParameters=config_overrides
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,bf_interval=1,batch_sched_delay=0,sched_min_interval=0,\
requeue_delay=0
MpiDefault=none
ReturnToService=1
JobRequeue=1
KillWait=8
MessageTimeout=10
SlurmdTimeout=10
InactiveLimit=0
MinJobAge=300
GresTypes=gpu
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=DEFAULT CPUs=4 RealMemory=2000 Gres=gpu:2
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]}
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]}
NodeName=n3 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[3]}
PartitionName=DEFAULT Nodes=n1,n2,n3 MaxTime=30 State=UP
PartitionName=small Default=YES PriorityTier=1
PartitionName=urgent PriorityTier=10
"""


NODES = ("n1", "n2", "n3")
"""A job of two parts runs on different nodes, and a third takes the place of one that fails."""


class SlurmCluster:
    """One slurmctld and a slurmd for each node, with a munged of their own."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="srl-slurm-"))
        self.folder.chmod(0o755)
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM", "SBATCH"))},
            "SLURM_CONF": str(self.folder / "slurm.conf"),
        }
        try:
            self._start()
        except BaseException:
            end_all(self.folder)
            raise

    def _start(self) -> None:
        here = self.folder
        ports = free_ports(1 + len(NODES))
        host = socket.gethostname().partition(".")[0]
        (here / "slurm.conf").write_text(SLURM_CONF.format(folder=here, ports=ports, host=host))
        (here / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        # Slurm hands out GPUs by their device files, and never opens them.
        (here / "gres.conf").write_text(f"Name=gpu File={here}/gpu[0-1]\n")
        for name in ("gpu0", "gpu1"):
            os.mknod(here / name, stat.S_IFCHR | 0o600, os.makedev(1, 3))
        for name in ("state", *(f"spool-{node}" for node in NODES)):
            (here / name).mkdir()
        key = here / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self.run(
            "/usr/sbin/munged", "--force", f"--key-file={key}", f"--socket={here}/munge.socket",
            f"--pid-file={here}/munged.pid", f"--log-file={here}/munged.log",
            f"--seed-file={here}/munged.seed",
        )  # fmt: skip
        self.run("/usr/sbin/slurmctld", "-c")
        for node in NODES:
            self.start_node(node)
        ready = ["idle"] * len(NODES)
        wait_for(lambda: self.node_states() == ready, f"Slurm: {self._logs()}")

    def _logs(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))

    def run(self, *command: str) -> str:
        """What a command of Slurm prints; it must not fail."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, stdin=subprocess.DEVNULL,
            text=True, timeout=LIMIT_SECONDS,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def node_states(self) -> list[str]:
        done = subprocess.run(
            ["sinfo", "--noheader", "-N", "-p", "small", "-o", "%T"],
            env=self.environment, capture_output=True, text=True,
        )  # fmt: skip
        return done.stdout.split()

    def state(self, job: str) -> str:
        """PENDING, RUNNING, COMPLETED, ...; empty once Slurm has forgotten the job."""
        return self.field(job, "JobState")

    def field(self, job: str, name: str) -> str:
        """One of what `scontrol show job` says, of the first part of a job."""
        shown = self.run("scontrol", "--details", "show", "job", job).split()
        return next((word.partition("=")[2] for word in shown if word.startswith(f"{name}=")), "")

    def nodes_of(self, job: str) -> list[str]:
        """The nodes that a job, or a part of one, has at the moment."""
        return self.run("scontrol", "show", "hostnames", self.field(job, "NodeList")).split()

    def kill_node(self, node: str) -> None:
        """Kills everything on a node, as if its power went out, and has Slurm know it at once."""
        own = processes_of(self.folder)
        lost = [p for p in own if p.cmdline()[-2:] == ["-N", node]]
        tasks = []
        for process in own:
            with suppress(psutil.Error):
                if process.environ().get("SLURMD_NODENAME") == node:
                    tasks.append(process)
        # Who would report the end of a task goes before it.
        for task in tasks:
            with suppress(psutil.Error):
                lost += [p for p in task.parents() if p.name() == "slurmstepd"]
        for process in [*lost, *tasks]:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.run("scontrol", "update", f"nodename={node}", "state=down", "reason=test")

    def start_node(self, node: str) -> None:
        self.run("/usr/sbin/slurmd", "-c", "-N", node)

    def mend_node(self, node: str) -> None:
        """Starts a node again that was killed."""
        self.start_node(node)
        self.run("scontrol", "update", f"nodename={node}", "state=resume")

    def cancel_all(self) -> None:
        self.run("scancel", "--user=root")
        wait_for(lambda: not self.run("squeue", "--noheader"), "all jobs to end")

    def close(self) -> None:
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.cancel_all()
        with suppress(AssertionError, subprocess.TimeoutExpired):
            self.run("scontrol", "shutdown")
        for pid in self.folder.glob("*.pid"):
            with suppress(ValueError, ProcessLookupError, FileNotFoundError):
                os.kill(int(pid.read_text()), signal.SIGTERM)
        deadline = time.monotonic() + 10.0
        while processes_of(self.folder) and time.monotonic() < deadline:
            time.sleep(0.05)
        end_all(self.folder)


# -- Ray ---------------------------------------------------------------------------------------

RAY_NODES = Path(__file__).with_name("ray_nodes.py")


class RayCluster:
    """A head node without CPUs, and others, of 2 CPUs, 1 GPU and 2 GB each, that can be killed.

    Ray counts GPUs as it is told to, and never looks at them.
    """

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="srl-ray-"))
        self.environment = {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
            "RAY_TMPDIR": str(self.folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            # Else a machine that is busy with other tests leaves nothing to agents.
            "RAY_worker_niceness": "0",
            # A dead node is known in seconds.
            "RAY_health_check_period_ms": "500",
            "RAY_health_check_failure_threshold": "3",
        }
        self._process = subprocess.Popen(
            [sys.executable, str(RAY_NODES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(self.folder / "nodes.log").open("ab"),
            env={**os.environ, **self.environment},
            text=True,
        )
        try:
            self._process.wait(LIMIT_SECONDS)
            self.address: str = self._ask("head")
            self.add_node()
            self.add_node()
        except BaseException:
            end_all(self.folder)
            raise

    def _ask(self, *words: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(*words, file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline().strip()
        assert answer, (self.folder / "nodes.log").read_text()
        return answer

    def add_node(self, gigabytes: int = 2) -> None:
        self._ask("add", "2", "1", str(gigabytes))

    def free(self) -> dict[str, float]:
        """What Ray has not given away, in all of the cluster; memory in GB."""
        free = json.loads(self._ask("free"))
        return {name: free.get(name, 0.0) for name in ("CPU", "GPU")} | {
            "memory": free.get("memory", 0.0) / 2**30
        }

    def kill_busy_node(self) -> None:
        """Kills everything of a node with workers of ours, as if its power went out."""
        self._ask("kill")

    def close(self) -> None:
        with suppress(BrokenPipeError):
            self._ask("end")
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        end_all(self.folder)
