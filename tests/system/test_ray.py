"""A run on a real Ray cluster of several nodes, one of which is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from clusters import RayCluster, processes_of
from harness import SMALL, Training, read_summary, wait_for

pytest.importorskip("ray", reason="these tests need Ray: pip install 'srl[ray]'")

pytestmark = pytest.mark.machines

ENVIRONMENT = '''
from srl.testing.envs import ScriptedEnv

class Mine(ScriptedEnv):
    """Code of the user's, which is only in this folder."""
'''
Start = Callable[..., Training]


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    started = RayCluster()
    yield started
    started.close()


@pytest.fixture
def ray(
    cluster: RayCluster, shm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RayCluster]:
    """The cluster, with nothing of a run on it before and after."""
    for name, value in cluster.environment.items():
        monkeypatch.setenv(name, value)
    yield cluster
    wait_for(lambda: not workers(shm), 15.0, "all workers to end")


def workers(shm: Path) -> list[psutil.Process]:
    """Worker processes of this test, wherever in the cluster."""
    found = []
    for process in processes_of(shm):
        # It may end between the two questions.
        with suppress(psutil.Error):
            if "srl.launch.worker" in process.cmdline():
                found.append(process)
    return found


def options(shm: Path, code: Path) -> tuple[str, ...]:
    return (
        "--launcher", "ray", "--address", "auto",
        "--set", f"ray.env_vars={{SRL_SHM_DIR: {shm}}}", "--set", f"ray.working_dir={code}",
        "--set", "resources.actor.cpus=0.5", "--set", "resources.policy.cpus=0.5",
    )  # fmt: skip


def test_a_run_goes_on_when_a_node_is_killed(
    ray: RayCluster, start: Start, shm: Path, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(ENVIRONMENT)
    training = start(
        f"{code / 'mine.py'}:Mine", *options(shm, code), *SMALL, "--steps", "1e9",
        "--set", "hosts={a: [actor], b: [actor, policy]}", "--set", "actor.count=2",
        "--set", "inference.count=1", "--set", "host_silence_seconds=3",
    )  # fmt: skip
    training.wait_for_updates(3, seconds=90.0)
    # The user's code, and SRL itself, came with Ray: their files are the cluster's.
    assert all(str(ray.folder) in p.cwd() for p in workers(shm) if p.pid not in training.seen)

    ray.kill_busy_node()
    log = training.run_dir / "logs" / "controller.log"
    wait_for(lambda: log.read_text().count(" joined") == 3, 60.0, "the lost host to come back")
    training.wait_for_updates(5, seconds=60.0)

    assert training.stop() == 130
    summary = read_summary(training.run_dir)
    assert summary["status"] == "stopped"
    assert not training.survivors()


def test_what_waits_for_resources_says_which(
    ray: RayCluster, start: Start, shm: Path, tmp_path: Path
) -> None:
    training = start(
        "CartPole-v1", *options(shm, tmp_path), *SMALL, "--steps", "1e9",
        "--set", "hosts={a: [actor]}", "--set", "resources.actor.gpus=0.5",
        "--set", "ray.wait_seconds=1",
    )  # fmt: skip

    assert training.wait() == 1

    assert "no node has 0.5 GPU" in training.printed
    assert "ray.wait_seconds" in training.printed
    assert "Traceback" not in training.printed


STRANGER = """
import os, subprocess, sys
from srl.launch.ray_cluster import RayCluster
from srl.resources import RayConfig

cluster = RayCluster(RayConfig(working_dir=""))
address = cluster.ray.get_runtime_context().gcs_address
code = f"from ray._raylet import GcsClient; GcsClient(address='{address}')"
environment = {**os.environ, "RAY_AUTH_TOKEN": "0" * 64}
command = [sys.executable, "-c", code]
done = subprocess.run(command, env=environment, capture_output=True, text=True)
cluster.close()
sys.exit(done.returncode == 0 or "InvalidAuthToken" not in done.stderr)
"""


@pytest.mark.parametrize("before", ["", "import ray"], ids=["", "ray imported before"])
def test_a_cluster_of_our_own_lets_no_stranger_in(before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", before + STRANGER],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
