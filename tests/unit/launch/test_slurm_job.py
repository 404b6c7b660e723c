"""What a run asks Slurm for."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from srl.errors import ConfigError
from srl.launch.backends.backend import HostRequest
from srl.launch.backends.slurm import SlurmBackend
from srl.launch.backends.slurm_job import JOB_VARIABLE, inside_job, job_parts, job_script, submit
from srl.resources import ResourceConfig, SlurmConfig

SMALL = ResourceConfig(cpus=2.0)
LARGE = ResourceConfig(cpus=7.5, gpus=0.5, memory_gb=12.0)


def host(name: str, resources: ResourceConfig) -> HostRequest:
    return HostRequest(name=name, kind="actor", resources=resources)


def options(script: str) -> list[str]:
    return [line.removeprefix("#SBATCH ") for line in script.splitlines() if "#SBATCH" in line]


def test_hosts_that_need_the_same_are_one_part() -> None:
    parts = job_parts(SMALL, [host("a", LARGE), host("b", SMALL), host("c", LARGE)])

    assert [(part.resources, part.hosts) for part in parts] == [
        (SMALL, ("", "b")),
        (LARGE, ("a", "c")),
    ]


def test_a_job_whose_parts_differ_is_heterogeneous_and_each_part_has_all_of_its_options() -> None:
    config = SlurmConfig(
        partition="gpu",
        account="lab",
        time_minutes=120,
        extra=("--constraint=ib",),
        signal_seconds=9,
    )
    parts = job_parts(SMALL, [host("a", LARGE), host("c", LARGE)])

    lines = options(job_script("my run", Path("/runs/x"), parts, config))

    first, second = lines[: lines.index("hetjob")], lines[lines.index("hetjob") + 1 :]
    for part in (first, second):
        assert {"--partition=gpu", "--account=lab", "--time=120", "--constraint=ib"} <= {*part}
    assert {"--nodes=1", "--cpus-per-task=2", "--requeue", "--signal=B:USR1@9"} <= {*first}
    assert "--job-name=srl-my-run" in first
    assert "--output=/runs/x/logs/slurm.log" in first
    assert {"--nodes=2", "--cpus-per-task=8", "--mem=12288M", "--gpus-per-node=1"} <= {*second}


def test_a_job_of_equal_parts_is_a_plain_one() -> None:
    lines = options(job_script("x", Path("r"), job_parts(SMALL, [host("a", SMALL)]), SlurmConfig()))

    assert "hetjob" not in lines
    assert "--nodes=2" in lines
    assert not [line for line in lines if line.startswith(("--partition", "--gres", "--time"))]


def test_gpus_are_asked_for_as_the_cluster_names_them() -> None:
    config = SlurmConfig(gres="gpu:a100:{gpus}")

    lines = options(job_script("x", Path("r"), job_parts(LARGE, []), config))

    assert "--gres=gpu:a100:1" in lines


def test_the_script_is_one_that_a_shell_can_read() -> None:
    config = SlurmConfig(setup=("module load python || true",))
    run = Path("/runs/it's 100% mine")

    script = job_script("x", run, job_parts(SMALL, [host("it's", LARGE)]), config)

    assert "module load python" in script
    done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(("ours", "its", "inside"), [
    ("7", "7", True), ("7", "8", False), ("", "7", False),
])  # fmt: skip
def test_a_head_knows_its_own_job(
    ours: str, its: str, inside: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that is handed in from another job is not that one."""
    monkeypatch.setenv(JOB_VARIABLE, ours)
    monkeypatch.setenv("SLURM_JOB_ID", its)

    assert inside_job() is inside


def test_outside_of_a_job_there_are_no_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(JOB_VARIABLE, raising=False)

    with pytest.raises(ConfigError, match="srl train --launcher slurm"):
        SlurmBackend(None, tmp_path)  # type: ignore[arg-type]


def test_a_machine_without_slurm_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    with pytest.raises(ConfigError, match="sbatch"):
        submit("x", tmp_path, job_parts(SMALL, []), SlurmConfig())
