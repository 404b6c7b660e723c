"""A user's worker between actors and trainer, in its own process, killed while the run goes on.

The worker is the one of examples/05_own_dataflow.py: it reads the stream `default`, learns from
what passes, and writes the stream `default/curiosity` that the trainer reads.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from harness import LIMIT_SECONDS, SMALL, Training, checkpoints, read_summary, runs, wait_for

import srl
from srl.data.records import Trajectory
from srl.data.tree import Tree
from srl.errors import CheckpointError
from srl.services.checkpoints import open_checkpoint, read_part
from srl.workers.relabeller import Relabeller

EXAMPLE = Path(__file__).parents[2] / "examples" / "05_own_dataflow.py"
STREAMS = ("default", "default/curiosity")
Start = Callable[..., Training]


def accounts(run_dir: Path, stream: str) -> dict[str, float]:
    metrics = read_summary(run_dir)["metrics"]
    at = f"samples.{stream}."
    return {key.removeprefix(at): n for key, n in metrics.items() if key.startswith(at)}


def assert_each_adds_up(run_dir: Path) -> None:
    """Every fragment that was written was used, is on its way, or is missing with a reason."""
    for stream in STREAMS:
        found = accounts(run_dir, stream)
        assert found["consumed"] > 0
        dropped = found["dropped.reader died"] + found["dropped.too late"]
        assert found["produced"] == found["consumed"] + dropped + found["in_flight"], stream


def assert_books_add_up(run_dir: Path) -> None:
    """The same, from one stream to the other."""
    assert_each_adds_up(run_dir)
    first, second = (accounts(run_dir, stream) for stream in STREAMS)
    # What the relabeller read it wrote; if it was killed between the two, the item was dropped.
    assert first["consumed"] <= second["produced"]
    assert second["produced"] <= first["consumed"] + first["dropped.reader died"]


def kill(training: Training, name: str = "curiosity-0") -> None:
    """Kills a worker and waits for another one."""
    pid = training.workers()[name].pid
    os.kill(pid, signal.SIGKILL)

    def replaced() -> bool:
        training.check_running()
        worker = training.workers().get(name)
        return worker is not None and worker.pid != pid

    wait_for(replaced, f"a new {name}")


def learned(training: Training) -> tuple[int, int]:
    """The newest checkpoint's number, and the fragments that the relabeller had learned from."""
    training.check_running()
    found = checkpoints(training.run_dir)
    if not found:
        return 0, 0
    try:
        state = read_part(open_checkpoint(found[-1]), "curiosity/0")
    except CheckpointError:  # Removed for a newer one, just now.
        return 0, 0
    return int(found[-1].name), state["own"]["num_fragments"]


def test_a_killed_relabeller_goes_on_with_what_it_knew(start: Start) -> None:
    training = start(f"{EXAMPLE}:experiment", *SMALL, "--layout", "inline", "--steps", "1e9")
    training.wait_for_updates(2)
    wait_for(lambda: learned(training)[1] >= 30, "a checkpoint of a relabeller that knows")

    number, knew = learned(training)
    kill(training)

    training.wait_for_updates(3)
    wait_for(lambda: learned(training)[0] > number + 1, "the next checkpoints")
    assert learned(training)[1] >= knew
    kill(training)
    training.wait_for_updates(3)

    assert training.stop(signal.SIGINT) == 130
    assert read_summary(training.run_dir)["status"] == "stopped"
    assert_books_add_up(training.run_dir)
    log = (training.run_dir / "logs" / "controller.log").read_text()
    assert log.count("starting it again") == 2


def test_a_relabeller_that_is_killed_too_often_ends_the_run(start: Start) -> None:
    training = start(
        f"{EXAMPLE}:experiment", *SMALL, "--layout", "shared", "--steps", "1e9",
        "--set", "max_restarts=1",
    )  # fmt: skip
    training.wait_for_updates(2)
    kill(training)
    training.wait_for_updates(2)

    os.kill(training.workers()["curiosity-0"].pid, signal.SIGKILL)

    assert training.wait() == 1
    assert "curiosity/0 was killed (SIGKILL), after 1 restarts" in training.printed
    assert "raise max_restarts" in training.printed
    assert read_summary(training.run_dir)["status"] == "failed"
    assert_books_add_up(training.run_dir)
    assert training.survivors() == []


class Late(Relabeller):
    """Writes its part of the last checkpoint when the trainer has written its own and has left."""

    def relabel(self, fragment: Trajectory, length: int) -> None:
        pass

    def own_state(self) -> Tree:
        if self.stopping():
            others = psutil.Process(os.getppid()).children()
            trainers = [process for process in others if runs(process, "trainer-0")]
            assert psutil.wait_procs(trainers, timeout=LIMIT_SECONDS)[1] == []
        return {"late": True}


def late(graph: srl.Graph) -> srl.Graph:
    return graph.insert("late", srl.WorkerGroup(kind=f"{__file__}:Late"), into="default")


def test_who_has_written_may_leave_before_others_have(start: Start) -> None:
    training = start(
        "cartpole", *SMALL, "--layout", "inline", "--steps", "1e9",
        "--set", f"dataflow={__file__}:late",
        "--set", "checkpoint.every_seconds=1e6",
    )  # fmt: skip
    training.wait_for_updates(2)
    assert training.stop(signal.SIGINT) == 130
    (last,) = checkpoints(training.run_dir)
    assert read_part(open_checkpoint(last), "late/0")["own"] == {"late": True}


@pytest.mark.machines
def test_a_relabeller_on_another_host_than_the_trainer_goes_on_when_that_one_is_killed(
    start: Start,
) -> None:
    """Weights do not come to the relabeller's host, which hands out what actors write into; and
    what the trainer lost is to be made good there."""
    training = start(
        f"{EXAMPLE}:experiment", *SMALL, "--layout", "remote", "--steps", "1e9",
        "--set", "hosts={mid: [curiosity]}",
    )  # fmt: skip
    training.wait_for_updates(3)
    kill(training, "trainer-0")
    training.wait_for_updates(8)
    assert training.stop(signal.SIGINT) == 130
    assert_each_adds_up(training.run_dir)
