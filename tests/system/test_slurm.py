"""A run as a job of a real Slurm: handed in, run to a result, queued again, cancelled."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from clusters import SlurmCluster, install, processes_of
from harness import SMALL, checkpoints, read_summary, wait_for

from srl.cli import main
from srl.errors import RunError
from srl.launch.backends import slurm_job
from srl.services.metrics import read_metrics

# One cluster for all of them.
pytestmark = [pytest.mark.machines, pytest.mark.xdist_group("slurm")]

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
    wait_for(lambda: not processes_of(shm), "all processes to end")
    assert list(shm.iterdir()) == []


@pytest.fixture
def submit(slurm: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Submit:
    """Hands in `srl train CartPole-v1 ...` and returns the job's number."""

    def submit_job(*arguments: str) -> str:
        where = ("--launcher", "slurm", "--run-dir", str(tmp_path / "run"))
        assert main(["train", "CartPole-v1", *where, *SMALL, *HOSTS, *arguments]) == 0
        printed = capsys.readouterr().out
        assert f"srl status {tmp_path / 'run'}" in printed
        return re.findall(r"job (\d+)", printed)[0]

    return submit_job


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

    wait_for(learned, Words(run))


def test_a_job_runs_to_its_result_with_what_it_asked_for(
    slurm: SlurmCluster, submit: Submit, tmp_path: Path
) -> None:
    run = tmp_path / "run"

    job = submit(
        "--steps", "4000", "--set", "resources.actor.cpus=2", "--set", "slurm.time_minutes=5",
        "--set", "slurm.partition=urgent", "--set", "slurm.account=lab",
    )  # fmt: skip

    wait_for(lambda: slurm.state(job) in OVER, "the job to end")
    assert slurm.state(job) == "COMPLETED", Words(run)
    summary = read_summary(run)
    assert summary["status"] == "finished"
    assert summary["env_steps"] >= 4000
    assert "host far joined" in (run / "logs" / "controller.log").read_text()
    # The head and the actors need the same: a plain job of two nodes.
    assert slurm.field(job, "TimeLimit") == "00:05:00"
    assert slurm.field(job, "Partition") == "urgent"
    assert slurm.field(job, "Account") == "lab"
    assert slurm.field(job, "NumNodes") == "2"
    assert slurm.field(job, "HetJobId") == ""


def agent(shm: Path) -> psutil.Process:
    """The agent of this test's run, on whatever node."""
    for process in processes_of(shm):
        # It may end between the two questions.
        with suppress(psutil.Error):
            words = process.cmdline()
            if {"worker", "--join"} <= {*words} and "srun" not in words[0]:
                return process
    pytest.fail("no agent runs")


def test_a_job_is_preempted_outlives_its_time_and_ends_when_it_is_cancelled(
    slurm: SlurmCluster, submit: Submit, tmp_path: Path, shm: Path
) -> None:
    run = tmp_path / "run"
    job = submit("--steps", "1e9", "--set", "resources.actor.gpus=0.5")
    wait_for_updates(slurm, job, run)
    # The actors need something else than the head: two parts, on two nodes. Half of a GPU is one.
    far = str(int(job) + 1)
    assert slurm.field(job, "HetJobId") == slurm.field(far, "HetJobId") == job
    assert slurm.field(far, "NumCPUs") == "1"
    assert slurm.field(job, "JOB_GRES") == "(null)"
    assert slurm.field(far, "JOB_GRES") == "gpu:1"
    assert agent(shm).environ()["SLURMD_NODENAME"] == slurm.nodes_of(far)[0]
    assert agent(shm).environ()["CUDA_VISIBLE_DEVICES"] in ("0", "1")

    urgent = slurm.run(
        "sbatch", "--parsable", "--partition=urgent", "--nodes=3", "--exclusive",
        f"--output={tmp_path}/urgent.log", "--wrap=sleep 600",
    )  # fmt: skip
    wait_for(lambda: slurm.state(urgent) == "RUNNING", "the urgent job to have its way")
    assert slurm.state(job) == "PENDING"
    first = read_summary(run)
    assert (first["status"], first["reason"]) == ("stopped", "SIGTERM")
    slurm.run("scancel", urgent)
    wait_for_updates(slurm, job, run)
    assert slurm.field(job, "Restarts") == "1"
    assert version(run) > first["policy_version"]

    # What Slurm sends when the job's time is nearly over.
    slurm.run("scancel", "--batch", "--signal=USR1", job)
    wait_for(lambda: slurm.field(job, "Restarts") == "2", "the job to be queued again")
    second = read_summary(run)
    assert (second["status"], second["reason"]) == ("stopped", "SIGTERM")
    assert second["policy_version"] > first["policy_version"]
    wait_for_updates(slurm, job, run)
    assert version(run) > second["policy_version"]

    slurm.run("scancel", job)
    wait_for(lambda: slurm.state(job) == "CANCELLED", "the job to end")
    wait_for(lambda: not processes_of(shm), Words(run))
    after = read_summary(run)
    assert (after["status"], after["reason"]) == ("stopped", "SIGTERM")
    assert after["policy_version"] > second["policy_version"]
    assert after["env_steps"] > second["env_steps"] > first["env_steps"]
    assert checkpoints(run)
    # Slurm tells every process of the job, and still the trainer writes what it has.
    assert "not written in time" not in (run / "logs" / "controller.log").read_text()


def test_a_job_outlives_its_nodes(
    slurm: SlurmCluster, submit: Submit, tmp_path: Path, shm: Path
) -> None:
    run = tmp_path / "run"
    log = run / "logs" / "controller.log"
    job = submit("--steps", "1e9", "--set", "resources.actor.cpus=2")
    wait_for_updates(slurm, job, run)
    home, away = slurm.nodes_of(job)
    assert agent(shm).environ()["SLURMD_NODENAME"] == away

    # The job has another node, which takes the agent in.
    slurm.kill_node(away)
    wait_for(lambda: log.read_text().count("far joined") == 2, Words(run))
    wait_for_updates(slurm, job, run)
    assert agent(shm).environ()["SLURMD_NODENAME"] == home
    assert slurm.field(job, "Restarts") == "0"

    # With the head's node everything is lost but what is on disk.
    slurm.mend_node(away)
    written = int(wait_for(lambda: checkpoints(run), "a checkpoint")[-1].name)
    slurm.kill_node(home)
    wait_for(lambda: slurm.field(job, "Restarts") == "1", "the job to be queued again")
    wait_for_updates(slurm, job, run)
    assert home not in slurm.nodes_of(job)
    resumed = re.findall(r"resuming from checkpoint (\d+)", log.read_text())
    assert len(resumed) == 1
    assert int(resumed[0]) >= written

    slurm.run("scancel", job)
    slurm.mend_node(home)


def test_a_job_that_slurm_refuses_says_why(
    slurm: SlurmCluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ("--launcher", "slurm", "--run-dir", str(tmp_path / "run"))

    assert main(["train", "CartPole-v1", *where, "--set", "slurm.partition=nowhere"]) == 1

    printed = capsys.readouterr().err
    assert "invalid partition specified: nowhere" in printed
    assert str(tmp_path / "run" / "job.sh") in printed


def test_a_slurm_that_does_not_answer_is_not_waited_for(
    slurm: SlurmCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(slurm_job, "ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(slurm_job, "SILENCE_SECONDS", 0.5)
    where = ("--launcher", "slurm", "--run-dir", str(tmp_path / "run"))
    controller = psutil.Process(int((slurm.folder / "slurmctld.pid").read_text()))
    controller.suspend()
    try:
        assert main(["train", "CartPole-v1", *where, "--set", "slurm.extra=[--hold]"]) == 1
        with pytest.raises(RunError, match=r"job 7: Slurm has not reported its state for \d+ s"):
            slurm_job.wait_for_job("7")
    finally:
        controller.resume()

    printed = capsys.readouterr().err
    assert "expected an answer of Slurm within 1 s" in printed
    assert "`squeue --me` lists it" in printed
    # It was: what was under way when Slurm fell silent is not lost.
    wait_for(lambda: slurm.run("squeue", "--noheader", "--me"), "the job")
