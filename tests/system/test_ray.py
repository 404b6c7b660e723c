"""A run on a real Ray cluster of several nodes, one of which is killed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from clusters import RayCluster, processes_of
from harness import SMALL, Training, read_summary, runs, wait_for
from test_worker_deaths import assert_books_add_up

from srl.services.metrics import read_metrics

pytest.importorskip("ray", reason="these tests need Ray: pip install 'really-scalable-rl[ray]'")

# One cluster for all of them.
pytestmark = [pytest.mark.machines, pytest.mark.xdist_group("ray")]

ENVIRONMENT = '''
import os
import srl
from srl.testing.envs import ScriptedEnv

if "FOUND" in os.environ:
    with open(os.environ["FOUND"], "a") as found:
        print(srl.__file__, __file__, file=found)

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
    wait_for(lambda: not workers(shm), "all workers to end")


def workers(shm: Path) -> list[psutil.Process]:
    """Worker processes of this test, wherever in the cluster."""
    return [process for process in processes_of(shm) if runs(process, "srl.launch.process.worker")]


def name_of(process: psutil.Process) -> str:
    """The name of a worker process."""
    words = process.cmdline()
    return words[words.index("srl.launch.process.worker") + 1]


def options(shm: Path, code: Path, **variables: str) -> tuple[str, ...]:
    named = ", ".join(f"{n}: {v}" for n, v in {"SRL_SHM_DIR": str(shm), **variables}.items())
    return (
        "--launcher", "ray", "--address", "auto",
        "--set", f"ray.env_vars={{{named}}}", "--set", f"ray.working_dir={code}",
        "--set", "resources.actor.cpus=0.5", "--set", "resources.policy.cpus=0.5",
    )  # fmt: skip


def test_a_run_goes_on_when_a_node_is_killed(
    ray: RayCluster, start: Start, shm: Path, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "mine.py").write_text(ENVIRONMENT)
    before = ray.free()
    training = start(
        f"{code / 'mine.py'}:Mine", *options(shm, code, FOUND=str(tmp_path / "found")), *SMALL,
        "--set", "resources.policy.gpus=0.25", "--set", "resources.policy.memory_gb=0.5",
        "--set", "hosts={a: [actor], b: [actor, policy]}", "--set", "actor.count=2",
        "--set", "inference.count=1", "--set", "host_silence_seconds=3", "--steps", "1e9",
    )  # fmt: skip
    training.wait_for_updates(3)
    # The user's code, and SRL itself, came with Ray: their files are the cluster's.
    found = (tmp_path / "found").read_text().split()
    assert len(found) == 4  # Two in each actor.
    assert all(path.startswith(str(ray.folder)) for path in found), found
    # Ray has given away what was asked for, and a worker is told of its part of a GPU.
    given = {name: amount - ray.free()[name] for name, amount in before.items()}
    assert given == pytest.approx({"CPU": 1.5, "GPU": 0.25, "memory": 0.5}, abs=1e-3)
    far = [process for process in workers(shm) if process.pid not in training.seen]
    shown = {name_of(process): process.environ().get("CUDA_VISIBLE_DEVICES") for process in far}
    assert shown["policy-0"] == "0", shown

    ray.kill_busy_node()
    log = training.run_dir / "logs" / "controller.log"
    wait_for(lambda: log.read_text().count(" joined") == 3, "the lost host to come back")
    training.wait_for_updates(5)

    assert training.stop() == 130
    summary = read_summary(training.run_dir)
    assert summary["status"] == "stopped"
    assert not training.survivors()
    assert_books_add_up(training.run_dir)
    versions = [line["policy_version"] for line in read_metrics(training.run_dir)]
    assert versions == sorted(versions)


def test_what_waits_for_resources_says_which_and_starts_when_they_come(
    ray: RayCluster, start: Start, shm: Path, tmp_path: Path
) -> None:
    training = start(
        "CartPole-v1", *options(shm, tmp_path), *SMALL, "--steps", "1e9",
        "--set", "hosts={a: [actor]}", "--set", "resources.actor.memory_gb=3",
        "--set", "actor.count=1",
    )  # fmt: skip
    log = training.run_dir / "logs" / "controller.log"
    waits = "waiting for host a (a: needs 0.5 CPU and 3 GB of memory; no node has 3 GB of memory"
    wait_for(lambda: log.exists() and waits in log.read_text(), "the reason")
    assert "joined" not in log.read_text()

    ray.add_node(gigabytes=4)
    training.wait_for_updates(3)
    assert "host a joined" in log.read_text()

    assert training.stop() == 130


def test_what_has_waited_for_long_enough_gives_up(
    ray: RayCluster, start: Start, shm: Path, tmp_path: Path
) -> None:
    training = start(
        "CartPole-v1", *options(shm, tmp_path), *SMALL, "--steps", "1e9",
        "--set", "hosts={a: [actor]}", "--set", "resources.actor.gpus=1.5",
        "--set", "ray.wait_seconds=1", "--set", "actor.count=1",
    )  # fmt: skip

    assert training.wait() == 1

    assert "needs 0.5 CPU and 2 GPU; no node has 2 GPU" in training.printed
    assert "ray.wait_seconds" in training.printed
    assert "Traceback" not in training.printed


OWN = """
import os, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
import psutil
import ray  # Before SRL: it has read its environment by then.
from srl.launch.backends.backend import HostRequest, JoinAddress
from srl.launch.backends.ray import RayBackend
from srl.launch.backends.ray_cluster import RayCluster
from srl.resources import RayConfig, ResourceConfig

def client(**environment):
    address = ray.get_runtime_context().gcs_address
    code = f"from ray._raylet import GcsClient; GcsClient(address='{address}')"
    environment = {**os.environ, **environment}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True)
    return b"InvalidAuthToken" if b"InvalidAuthToken" in done.stderr else done.returncode

config = RayConfig(working_dir="")
cluster = RayCluster(config)
found = [client(), client(RAY_AUTH_TOKEN="0" * 64)]
priority = ray.get(ray.remote(lambda: psutil.Process().nice()).remote())
cluster.close()
assert found == [0, b"InvalidAuthToken"], found
assert priority == psutil.Process().nice(), priority
assert "RAY_AUTH_TOKEN" not in os.environ

# Another one in the same process, with another token; its head node falls silent.
engine = RayBackend(SimpleNamespace(ray=config), Path())
key_file = Path(sys.argv[1])
key_file.touch()
large = ResourceConfig(gpus=9)
host = HostRequest(name="a", kind="a", resources=large)
engine.start(JoinAddress(address="127.0.0.1:1", key_file=key_file), [host])
def explained():
    return "no node has 9 GPU" in engine.waiting()["a"]
deadline = time.monotonic() + 120.0
while not explained():
    assert time.monotonic() < deadline
children = psutil.Process().children(recursive=True)
head = next(process for process in children if process.name() == "gcs_server")
head.suspend()
start = time.monotonic()
for _ in range(10):
    assert engine.poll() == []
    assert explained()
took = time.monotonic() - start
head.resume()
engine.close()
assert took < 30.0, took  # A question to the head would wait for minutes.
"""


def test_a_cluster_of_our_own_lets_no_stranger_in_and_is_not_waited_for(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", OWN, str(tmp_path / "key")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
