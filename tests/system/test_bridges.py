"""Bridges that are killed while a run on several hosts goes on: at home, and elsewhere."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from harness import SMALL, Training, runs, started_by, wait_for
from test_hosts import agents, log_of
from test_trainer_hosts import Versions
from test_trainers_apart import APART
from test_worker_deaths import assert_books_add_up

from srl.launch.run.status import read_status

pytestmark = pytest.mark.machines

Start = Callable[..., Training]
SPREAD = ("--layout", "remote", "--set", "hosts={a: [actor], b: [actor], c: [policy]}")


def bridge_of(parent: psutil.Process) -> psutil.Process:
    """The bridge that the head, or an agent, has started."""

    def find() -> psutil.Process | None:
        for child in started_by(parent):
            if runs(child, "srl.launch.process.bridge"):
                return child
        return None

    return wait_for(find, "a bridge")


@pytest.mark.parametrize("layout", [SPREAD, APART], ids=["spread", "trainers apart"])
def test_a_bridge_that_is_killed_is_replaced_and_nobody_else_is(
    layout: tuple[str, ...], start: Start, shm: Path
) -> None:
    versions = Versions(shm)
    training = start(
        "CartPole-v1", "--steps", "1e9", *SMALL, "--set", "actor.count=2", *layout,
        "--set", "checkpoint.every_seconds=1000",
    )  # fmt: skip
    training.wait_for_updates(3)
    pids = {name: worker.pid for name, worker in training.workers().items()}
    before = {name: agent.pid for name, agent in agents(training).items()}

    for host in ("home", *before):
        head = psutil.Process(training.process.pid)
        parent = head if host == "home" else agents(training)[host]
        bridge = bridge_of(parent)
        bridge.kill()
        wait_for(lambda bridge=bridge: not bridge.is_running(), "the bridge's end")
        training.wait_for_updates(5)
        assert bridge_of(parent).pid != bridge.pid

    assert {name: worker.pid for name, worker in training.workers().items()} == pids
    assert {name: agent.pid for name, agent in agents(training).items()} == before
    assert "joined again" not in log_of(training)
    assert "the bridge of host home was killed (SIGKILL); starting another one" in log_of(training)
    for host in before:
        assert f"the bridge of host {host} ended; another one has started" in log_of(training)
    assert all(worker.restarts == 0 for worker in read_status(training.run_dir).workers)

    assert training.stop(signal.SIGINT) == 130
    versions.assert_monotone()
    assert_books_add_up(training.run_dir)
    wait_for(lambda: not training.survivors(), "everyone's end")
    assert list(shm.iterdir()) == []
