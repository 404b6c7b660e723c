"""Trainers on another host than the head's: they train, stop and go on there. When that host is
lost they go on elsewhere, from the last checkpoint."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest
from harness import (
    HOLDING,
    LIMIT_SECONDS,
    SMALL,
    Training,
    checkpoints,
    read_summary,
    runs,
    started_by,
    wait_for,
)
from test_hosts import agents, join, log_of, status_of
from test_worker_deaths import assert_books_add_up

pytestmark = pytest.mark.machines

Start = Callable[..., Training]
HOSTS = ("--set", "hosts={gpu: [trainer], far: [actor, policy]}")


class Versions:
    """The versions that readers see, on every host that has a folder in shared memory."""

    def __init__(self, shm: Path) -> None:
        self.seen: dict[str, list[int]] = {}
        """Each change of it, by folder."""
        self._shm = shm
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        numbers: dict[str, np.ndarray] = {}
        while not self._over.wait(0.005):
            for path in self._shm.glob("srl-*/parameters+default.region"):
                with suppress(OSError, ValueError):
                    if path.parent.name not in numbers:
                        numbers[path.parent.name] = np.memmap(path, np.int64, "r", shape=(8,))
            for name, cells in numbers.items():
                done = int(cells[1])
                version = int(cells[2 + done % 2]) - 1
                seen = self.seen.setdefault(name, [])
                if cells[0] <= done + 1 and (not seen or version != seen[-1]):
                    seen.append(version)

    def stop(self) -> list[list[int]]:
        """What was seen on each host, in order."""
        self._over.set()
        self._thread.join()
        return list(self.seen.values())

    def assert_monotone(self) -> None:
        self.stop()
        assert sum(len(seen) > 2 for seen in self.seen.values()) >= 2, "on several hosts"
        for seen in self.seen.values():
            assert seen == sorted(seen)


@pytest.fixture
def people() -> Iterator[Callable[..., psutil.Process]]:
    """Starts agents as people do; ends them after the test."""
    started = []

    def begin(training: Training, name: str) -> psutil.Process:
        agent = join(training.run_dir, "--name", name)
        started.append(agent)
        return psutil.Process(agent.pid)

    yield begin
    for agent in started:
        agent.terminate()
        agent.wait(LIMIT_SECONDS)
        assert agent.stdout is not None
        agent.stdout.close()


def kill_host(agent: psutil.Process) -> None:
    """Ends an agent and everything on its host, at once."""
    everyone = [agent, *agent.children(recursive=True)]
    for process in everyone:
        process.suspend()
    for process in everyone:
        process.kill()


def where(training: Training) -> dict[str, str]:
    workers = status_of(training).workers
    return {w.name: w.host for w in workers if w.state not in ("to be started", "starting")}


def nobody_takes(training: Training) -> bool:
    """Whether actors wait until somebody takes what they have written."""
    (actor,) = (w for w in status_of(training).workers if w.name == "actor/0")
    return actor.waits.get("slots", 0.0) + actor.waits.get("policy_age", 0.0) > 0.9


def test_trainers_on_another_host_train_stop_and_are_resumed(start: Start, shm: Path) -> None:
    arguments = ("--layout", "remote", *SMALL, *HOSTS, "--set", "trainer.count=2")
    training = start("CartPole-v1", "--steps", "1e9", *arguments)
    training.wait_for_updates(3)
    wait_for(lambda: len(where(training)) == 4, "everyone in the status")
    assert where(training) == {
        "trainer/0": "gpu", "trainer/1": "gpu", "policy/0": "far", "actor/0": "far",
    }  # fmt: skip
    agents(training)

    assert training.stop(signal.SIGINT) == 130
    accounts = assert_books_add_up(training.run_dir)
    summary = read_summary(training.run_dir)
    last = json.loads((checkpoints(training.run_dir)[-1] / "manifest.json").read_text())
    assert last["policy_versions"]["default"] == summary["policy_version"], "the last one is whole"
    assert accounts["consumed"] >= 2 * summary["policy_version"], "a fragment for each trainer"
    wait_for(lambda: not training.survivors(), "everyone's end")
    assert list(shm.iterdir()) == []

    goal = summary["env_steps"] + 2000
    again = start("", "--steps", str(goal), verb="resume")
    assert again.wait() == 0, again.printed
    summary = read_summary(training.run_dir)
    assert summary["status"] == "finished"
    assert summary["env_steps"] >= goal
    assert summary["policy_version"] > last["policy_versions"]["default"]
    assert_books_add_up(training.run_dir)
    assert list(shm.iterdir()) == []


def test_trainers_go_on_at_home_when_their_host_is_killed_for_good(
    start: Start, people: Callable[..., psutil.Process], shm: Path
) -> None:
    versions = Versions(shm)
    training = start(
        "CartPole-v1", "--layout", "remote", "--launcher", "manual", "--steps", "1e9", *SMALL,
        *HOSTS, *HOLDING, "--set", "host_silence_seconds=3", "--set", "stopped_seconds=1000",
    )  # fmt: skip
    wait_for((training.run_dir / "head.json").exists, "a head")
    gpu = people(training, "gpu")
    people(training, "far")
    training.wait_for_updates(2)
    wait_for(lambda: checkpoints(training.run_dir), "a checkpoint")
    training.wait_for_updates(2)
    # So that something is lost with the host: what nobody takes.
    next(child for child in started_by(gpu) if runs(child, "trainer-0")).suspend()
    wait_for(lambda: nobody_takes(training), "fragments that wait")
    steps = training.metrics()["env_steps"]

    kill_host(gpu)

    wait_for(lambda: where(training).get("trainer/0") == "home", "a trainer at home")
    training.wait_for_updates(3)
    assert training.metrics()["env_steps"] > steps, "what was consumed stays counted"
    assert "host gpu is gone: " in log_of(training)
    assert "trainer-0 continues on host home: host gpu is gone" in log_of(training)
    assert training.stop(signal.SIGINT) == 130
    versions.assert_monotone()
    accounts = assert_books_add_up(training.run_dir)
    assert accounts["dropped.host lost"] > 0
    summary = read_summary(training.run_dir)
    last = json.loads((checkpoints(training.run_dir)[-1] / "manifest.json").read_text())
    assert last["policy_versions"]["default"] == summary["policy_version"]
    assert last["env_steps"] == summary["env_steps"]


def test_a_host_that_was_given_up_counts_no_more_when_it_is_heard_again(
    start: Start, shm: Path
) -> None:
    """Its agent is stopped, and its trainer goes on meanwhile, unheard."""
    versions = Versions(shm)
    training = start(
        "CartPole-v1", "--layout", "remote", "--steps", "1e9", *SMALL, *HOSTS,
        "--set", "host_silence_seconds=3", "--set", "stopped_seconds=1000",
    )  # fmt: skip
    training.wait_for_updates(2)
    agent = agents(training)["gpu"]

    agent.suspend()
    wait_for(lambda: where(training).get("trainer/0") == "home", "a trainer at home")
    training.wait_for_updates(2)
    agent.resume()
    wait_for(lambda: "host gpu joined again" in log_of(training), "the host's return")
    training.wait_for_updates(2)
    assert where(training)["trainer/0"] == "home", "the samples are there now"

    training.workers()
    assert training.stop(signal.SIGINT) == 130
    versions.assert_monotone()
    assert_books_add_up(training.run_dir)
    wait_for(lambda: not training.survivors(), "everyone's end")
    assert list(shm.iterdir()) == []


def test_a_new_agent_takes_the_trainers_up_again_where_they_were(start: Start, shm: Path) -> None:
    versions = Versions(shm)
    training = start("CartPole-v1", "--layout", "remote", "--steps", "1e9", *SMALL, *HOSTS)
    training.wait_for_updates(2)

    kill_host(agents(training)["gpu"])

    wait_for(lambda: "host gpu joined again" in log_of(training), "another agent")
    training.wait_for_updates(3)
    wait_for(lambda: where(training).get("trainer/0") == "gpu", "the trainer where it was")
    assert training.stop(signal.SIGINT) == 130
    versions.assert_monotone()
    assert_books_add_up(training.run_dir)
