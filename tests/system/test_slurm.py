"""A run as a job of a real Slurm: handed in, run to a result, queued again, cancelled."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from clusters import SlurmCluster, install, processes_of
from harness import SMALL, checkpoints, read_summary, wait_for

from srl.cli import main
from srl.services.metrics import read_metrics

pytestmark = pytest.mark.machines

HOSTS = ("--set", "hosts={far: [actor]}", "--set", "actor.count=1")
OVER = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
Submit = Callable[..., str]


@pytest.fixture(scope="module")
def cluster() -> Iterator[SlurmCluster]:
    install("slurm-wlm", "munge")
    started = SlurmCluster()
    yield started
    started.close()


@pytest.fixture
def slurm(
    cluster: SlurmCluster, shm: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[SlurmCluster]:
    """The cluster, without jobs before and after."""
    for name in list(os.environ):
        if name.startswith(("SLURM", "SBATCH")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("SLURM_CONF", cluster.environment["SLURM_CONF"])
    yield cluster
    cluster.cancel_all()
    wait_for(lambda: not processes_of(shm), 10.0, "all processes to end")
    assert list(shm.iterdir()) == []


@pytest.fixture
def submit(slurm: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Submit:
    """Hands in `srl train CartPole-v1 ...` and returns the job's number."""

    def hand_in(*arguments: str) -> str:
        where = ("--launcher", "slurm", "--run-dir", str(tmp_path / "run"))
        assert main(["train", "CartPole-v1", *where, *SMALL, *HOSTS, *arguments]) == 0
        printed = capsys.readouterr().out
        assert f"srl status {tmp_path / 'run'}" in printed
        return re.findall(r"job (\d+)", printed)[0]

    return hand_in


def version(run: Path) -> int:
    """The policy's version, as the run's metrics have it."""
    if not (run / "metrics.jsonl").exists():
        return 0
    lines = read_metrics(run)
    return lines[-1].get("policy_version", 0) if lines else 0


class Words:
    """All that a run has logged by the time it is asked for."""

    def __init__(self, run: Path) -> None:
        self.run = run

    def __str__(self) -> str:
        found = sorted((self.run / "logs").glob("*.log"))
        return "\n".join(f"== {path.name}\n{path.read_text()[-3000:]}" for path in found)


def wait_for_updates(slurm: SlurmCluster, job: str, run: Path, more: int = 3) -> None:
    goal = version(run) + more

    def learned() -> bool:
        assert slurm.state(job) not in OVER, Words(run)
        return version(run) >= goal

    wait_for(learned, 90.0, Words(run))


def test_a_job_runs_to_its_result(slurm: SlurmCluster, submit: Submit, tmp_path: Path) -> None:
    run = tmp_path / "run"

    job = submit(
        "--steps", "4000", "--set", "resources.actor.cpus=2", "--set", "slurm.time_minutes=5"
    )

    wait_for(lambda: slurm.state(job) in OVER, 120.0, "the job to end")
    assert slurm.state(job) == "COMPLETED", Words(run)
    summary = read_summary(run)
    assert summary["status"] == "finished"
    assert summary["env_steps"] >= 4000
    assert "host far joined" in (run / "logs" / "controller.log").read_text()
    # The head and the actors need the same: a plain job of two nodes.
    assert slurm.field(job, "TimeLimit") == "00:05:00"
    assert slurm.field(job, "NumNodes") == "2"
    assert slurm.field(job, "HetJobId") == ""


def agent_pid(shm: Path) -> Any:
    found = [p for p in processes_of(shm) if "worker" in p.cmdline() and "--join" in p.cmdline()]
    found = [p for p in found if p.name() != "srun" and "srun" not in p.cmdline()[0]]
    return found[0].pid if found else None


def test_a_job_outlives_its_agent_its_time_and_ends_when_it_is_cancelled(
    slurm: SlurmCluster, submit: Submit, tmp_path: Path, shm: Path
) -> None:
    run = tmp_path / "run"
    job = submit("--steps", "1e9")
    wait_for_updates(slurm, job, run)
    # The actors need less than the head: two parts, on two nodes.
    assert slurm.field(job, "HetJobId") == job
    assert slurm.field(str(int(job) + 1), "NumCPUs") == "1"

    os.kill(agent_pid(shm), signal.SIGKILL)
    log = run / "logs" / "controller.log"
    wait_for(lambda: log.read_text().count("far joined") == 2, 30.0, "the agent to come back")
    wait_for_updates(slurm, job, run)

    # What Slurm sends when the job's time is nearly over.
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: slurm.field(job, "Restarts") == "1", 30.0, "the job to be queued again")
    before = read_summary(run)
    assert (before["status"], before["reason"]) == ("stopped", "SIGTERM")
    wait_for_updates(slurm, job, run)
    assert version(run) > before["policy_version"]

    slurm.run("scancel", job)
    wait_for(lambda: slurm.state(job) == "CANCELLED", 30.0, "the job to end")
    wait_for(lambda: not processes_of(shm), 15.0, Words(run))
    after = read_summary(run)
    assert (after["status"], after["reason"]) == ("stopped", "SIGTERM")
    assert after["policy_version"] > before["policy_version"]
    assert after["env_steps"] > before["env_steps"]
    assert checkpoints(run)
    # Slurm tells every process of the job, and still the trainer writes what it has.
    assert "not written in time" not in log.read_text()


def test_a_job_that_slurm_refuses_says_why(
    slurm: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--launcher", "slurm", "--run-dir", str(tmp_path / "run"))

    assert main(["train", "CartPole-v1", *where, "--set", "slurm.partition=nowhere"]) == 1

    printed = capsys.readouterr().err
    assert "invalid partition specified: nowhere" in printed
    assert str(tmp_path / "run" / "job.sh") in printed
