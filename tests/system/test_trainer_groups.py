"""Several trainers of one policy: what they learn, how they part, and how they meet again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from chaos import Versions, accounts
from harness import HOLDING, LIMIT_SECONDS, SMALL, Training, checkpoints, read_summary, wait_for

from srl.cli import main
from srl.data.codec import load_state, save_state
from srl.data.trajectory import to_tree

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "algorithms"))

import ranks
from ppo_data import random_batch

pytestmark = pytest.mark.runs

Start = Callable[..., Training]
TWO = (
    "CartPole-v1", "--layout", "shared", "--steps", "1e9", *SMALL, *HOLDING,
    "--set", "trainer.count=2",
)  # fmt: skip
CARRIERS = pytest.mark.parametrize("carrier", ["shared", "wired"])


def run_ranks(folder: Path, count: int, carrier: str, *tasks: str) -> None:
    script = str(Path(__file__).with_name("ranks.py"))
    command = [sys.executable, script, ",".join(tasks), carrier, str(folder)]
    started = [subprocess.Popen([*command, str(rank), str(count)]) for rank in range(count)]
    try:
        assert [process.wait(LIMIT_SECONDS) for process in started] == [0] * count
    finally:
        for process in started:
            process.kill()


def record(folder: Path, updates: int, inert: bool) -> None:
    algorithm = ranks.make()
    for number in range(updates):
        batch = random_batch(algorithm, seed=number, rows=8, num_items=4, inert=inert)
        state = {"data": to_tree(batch.data), "num_fragments": batch.num_fragments}
        save_state(folder / f"batch-{number:02d}", state)


def record_for_ddp(folder: Path) -> None:
    """One batch without ends of episodes, in which every row acts."""
    record(folder, updates=1, inert=False)
    batch = load_state(folder / "batch-00")
    for name in ("terminated", "truncated", "is_first"):
        batch["data"][name][...] = False
    batch["data"]["acted"][...] = True
    save_state(folder / "batch-00", batch)


@CARRIERS
def test_two_trainers_learn_as_one_does_with_the_gradients_of_distributed_data_parallel(
    tmp_path: Path, carrier: str
) -> None:
    """From the same batches; two tasks of one pair of processes."""
    learn, ddp = tmp_path / "learn", tmp_path / "ddp"
    for folder in (learn, ddp):
        folder.mkdir()
    record(learn, updates=20, inert=True)
    record_for_ddp(ddp)
    run_ranks(tmp_path, 2, carrier, "learn", "ddp")
    algorithm = ranks.make()
    untrained = {name: p.numpy().copy() for name, p in algorithm.policy.state_dict().items()}
    ranks.learn_recorded(carrier, learn, 0, 1)
    alone = load_state(learn / "weights-0-of-1")
    first, second = (load_state(learn / f"weights-{rank}-of-2") for rank in range(2))
    for name, weights in alone.items():
        np.testing.assert_allclose(first[name], weights, rtol=0, atol=1e-5, err_msg=name)
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
    moved = [np.abs(weights - untrained[name]).max() for name, weights in alone.items()]
    assert max(moved) > 1e-2
    assert (ddp / "equal-0").exists()
    assert (ddp / "equal-1").exists()


def replaced(training: Training, name: str, pid: int) -> bool:
    training.check_running()
    worker = training.workers().get(name)
    return worker is not None and worker.pid != pid


def test_a_group_forms_again_when_a_member_dies_or_stands_still(start: Start, shm: Path) -> None:
    versions = Versions(shm)
    training = start(*TWO, "--set", "max_restarts=9")
    training.wait_for_updates(3)
    before = training.metrics()
    for name, number in (
        ("trainer-1", signal.SIGKILL),
        ("trainer-0", signal.SIGKILL),
        ("trainer-1", signal.SIGSTOP),
        ("trainer-0", signal.SIGSTOP),
    ):
        pid = training.workers()[name].pid
        os.kill(pid, number)
        wait_for(lambda name=name, pid=pid: replaced(training, name, pid), f"a new {name}")
        training.wait_for_updates(3)
    after = training.metrics()
    assert training.stop(signal.SIGINT) == 130
    assert after["env_steps"] > before["env_steps"]
    assert after["policy_version"] > before["policy_version"] + 8
    seen = versions.stop()
    assert seen == sorted(seen), "no version goes backwards"
    summary = read_summary(training.run_dir)
    kept = accounts(summary)
    assert kept["lost"] == 0
    assert kept["dropped.reader died"] > 0
    # With a survivor at most the update that was under way is lost each time.
    assert summary["metrics"]["updates.default.lost"] <= 4
    assert training.survivors() == []
    assert list(shm.iterdir()) == []


def test_when_all_trainers_die_they_go_on_from_the_checkpoint(start: Start, shm: Path) -> None:
    versions = Versions(shm)
    training = start(*TWO)
    training.wait_for_updates(3)
    wait_for(lambda: checkpoints(training.run_dir), "a checkpoint")
    training.wait_for_updates(3)
    pids = {name: training.workers()[name].pid for name in ("trainer-0", "trainer-1")}
    for pid in pids.values():
        os.kill(pid, signal.SIGSTOP)
    steps = training.metrics()["env_steps"]
    for pid in pids.values():
        os.kill(pid, signal.SIGKILL)
    for name, pid in pids.items():
        wait_for(lambda name=name, pid=pid: replaced(training, name, pid), f"a new {name}")
    training.wait_for_updates(3)
    assert training.metrics()["env_steps"] >= steps
    assert training.stop(signal.SIGTERM) == 143
    seen = versions.stop()
    assert seen == sorted(seen)
    summary = read_summary(training.run_dir)
    assert accounts(summary)["lost"] == 0
    assert "trainer/0: was killed" in (training.run_dir / "logs" / "controller.log").read_text()


def listening(training: Training) -> set[str]:
    """Addresses at which trainers take connections."""
    trainers = [p for name, p in training.workers().items() if name.startswith("trainer")]
    found = [c for p in trainers for c in p.net_connections("inet") if c.status == "LISTEN"]
    return {connection.laddr.ip for connection in found}


def test_a_member_that_stands_still_goes_on_or_holds_nobody_up_who_wants_to_leave(
    start: Start,
) -> None:
    training = start(*TWO, "--set", "stopped_seconds=1000")
    training.wait_for_updates(2)
    assert listening(training) == set(), "nobody can reach them"
    pid = training.workers()["trainer-1"].pid
    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: training.workers()["trainer-1"].status() == "stopped", "a stopped one")
    os.kill(pid, signal.SIGCONT)
    training.wait_for_updates(3)
    assert training.workers()["trainer-1"].pid == pid

    os.kill(pid, signal.SIGSTOP)
    wait_for(lambda: training.workers()["trainer-1"].status() == "stopped", "a stopped one")
    # The other one waits for it, in a sum or before one, and still writes its part.
    assert training.stop(signal.SIGINT) == 130
    assert "not written in time" not in (training.run_dir / "logs" / "controller.log").read_text()


def test_streams_on_the_way_make_up_for_what_died_with_a_trainer(start: Start) -> None:
    example = Path(__file__).parents[2] / "examples" / "05_own_dataflow.py"
    training = start(
        f"{example}:experiment", *SMALL, "--layout", "shared", "--steps", "1e9",
        "--set", "trainer.count=2", "--set", "max_restarts=9",
    )  # fmt: skip
    training.wait_for_updates(2)
    for name in ("trainer-0", "trainer-1") * 2:
        pid = training.workers()[name].pid
        os.kill(pid, signal.SIGKILL)
        wait_for(lambda name=name, pid=pid: replaced(training, name, pid), f"a new {name}")
        training.wait_for_updates(3)
    assert training.stop(signal.SIGINT) == 130
    summary = read_summary(training.run_dir)
    for stream in ("default", "default/curiosity"):
        assert accounts(summary, stream)["lost"] == 0


def test_a_run_goes_on_with_another_number_of_trainers(start: Start) -> None:
    """With two, with one, and with two again."""
    small = ("--layout", "inline", *SMALL, "--set", "actor.count=2")
    training = start("CartPole-v1", *small, "--steps", "3000", "--set", "trainer.count=2")
    assert training.wait() == 0
    for count, steps in ((1, 6000), (2, 9000)):
        before = read_summary(training.run_dir)
        arguments = ["resume", str(training.run_dir), "--quiet", "--steps", str(steps)]
        assert main([*arguments, "--set", f"trainer.count={count}"]) == 0
        after = read_summary(training.run_dir)
        assert after["policy_version"] > before["policy_version"]
        assert after["env_steps"] >= steps
        parts = {path.name for path in checkpoints(training.run_dir)[-1].iterdir()}
        assert not any("trainer" in name and "1" in name for name in parts), "one writes for all"
