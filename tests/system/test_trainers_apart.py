"""Trainers of one policy on several hosts: they learn together. When one of the hosts is lost, the
others keep what was learned."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from harness import (
    HOLDING,
    SMALL,
    Training,
    checkpoints,
    read_summary,
    runs,
    started_by,
    wait_for,
)
from test_hosts import agents, log_of
from test_trainer_hosts import Versions, kill_host, nobody_takes, people, where
from test_worker_deaths import assert_books_add_up

__all__ = ["people"]

pytestmark = pytest.mark.machines

Start = Callable[..., Training]
APART = (
    "--layout", "remote", "--set", "trainer.count=2", "--set", "trainer.trust_network=true",
    "--set", "hosts={a: [trainer], b: [trainer], c: [actor, policy]}",
)  # fmt: skip
PLACES = {"trainer/0": "a", "trainer/1": "b", "policy/0": "c", "actor/0": "c"}


def test_trainers_on_two_hosts_learn_together_and_leave_nothing(start: Start, shm: Path) -> None:
    versions = Versions(shm)
    training = start("cartpole", *APART, "--until", "return>=120", "--steps", "200_000")
    training.wait_for_updates(1)
    wait_for(lambda: where(training) == PLACES, "everyone where they belong")
    agents(training)
    training.workers()
    assert training.wait() == 0, training.printed
    versions.assert_monotone()
    summary = read_summary(training.run_dir)
    assert summary["reason"] == "reached return>=120"
    assert summary["metrics"]["updates.default.lost"] == 0
    assert_books_add_up(training.run_dir)
    assert not (training.run_dir / "trainers").exists()
    wait_for(lambda: not training.survivors(), "everyone's end")
    assert list(shm.iterdir()) == []


def test_a_trainer_that_dies_takes_up_what_the_other_host_has(start: Start, shm: Path) -> None:
    versions = Versions(shm)
    training = start("CartPole-v1", "--steps", "1e9", *SMALL, *APART, *HOLDING)
    training.wait_for_updates(3)
    for host in ("b", "a"):
        (trainer,) = [
            process
            for process in agents(training)[host].children(recursive=True)
            if runs(process, "srl.launch.process.worker")
        ]
        os.kill(trainer.pid, signal.SIGKILL)
        wait_for(lambda pid=trainer.pid: not psutil.pid_exists(pid), "its end")
        training.wait_for_updates(3)
    wait_for(lambda: where(training) == PLACES, "everyone where they belong")
    assert training.stop(signal.SIGINT) == 130
    versions.assert_monotone()
    accounts = assert_books_add_up(training.run_dir)
    assert accounts["dropped.reader died"] > 0
    # At most the update that was under way is lost each time.
    assert read_summary(training.run_dir)["metrics"]["updates.default.lost"] <= 2


def test_when_one_trainers_host_is_lost_the_other_keeps_what_was_learned(
    start: Start, people: Callable[..., psutil.Process], shm: Path
) -> None:
    versions = Versions(shm)
    training = start(
        "CartPole-v1", "--launcher", "manual", "--steps", "1e9", *SMALL, *APART, *HOLDING,
        "--set", "host_silence_seconds=3", "--set", "checkpoint.every_seconds=1000",
        "--set", "stopped_seconds=1000",
    )  # fmt: skip
    wait_for((training.run_dir / "head.json").exists, "a head")
    first = people(training, "a")
    for name in ("b", "c"):
        people(training, name)
    training.wait_for_updates(3)
    # So that something is lost with the host: what nobody takes.
    next(child for child in started_by(first) if runs(child, "trainer-0")).suspend()
    wait_for(lambda: nobody_takes(training), "fragments that wait")
    before = training.metrics()
    assert not checkpoints(training.run_dir)

    kill_host(first)

    wait_for(lambda: where(training).get("trainer/0") == "b", "the trainer on the other host")
    training.wait_for_updates(3)
    after = training.metrics()
    assert after["env_steps"] > before["env_steps"]
    assert after["policy_version"] > before["policy_version"]
    assert "trainer-0 continues on host b: host a is gone" in log_of(training)
    assert where(training)["trainer/1"] == "b", "where it was"
    assert training.stop(signal.SIGINT) == 130
    versions.assert_monotone()
    accounts = assert_books_add_up(training.run_dir)
    assert accounts["dropped.host lost"] > 0
    assert read_summary(training.run_dir)["metrics"]["updates.default.lost"] <= 2
