"""A replay between actors and trainers, in real processes that are killed."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import Training, checkpoints, read_summary, wait_for

from srl.services.checkpoints import open_checkpoint, read_part, weights_part

EXAMPLE = Path(__file__).parents[2] / "examples" / "09_dqn_with_replay.py"
DQN = (
    "--algorithm", f"{EXAMPLE}:DQN", "--set", f"network.name={EXAMPLE}:QPolicy",
    "--set", "actor.envs=8", "--set", "logging.interval_seconds=0.1",
    "--set", "checkpoint.every_seconds=1",
)  # fmt: skip
Start = Callable[..., Training]


def accounts(run_dir: Path) -> dict[str, dict[str, float]]:
    """What became of the fragments of each stream."""
    found: dict[str, dict[str, float]] = {}
    for key, number in read_summary(run_dir)["metrics"].items():
        if key.startswith("samples."):
            _, stream, what = key.split(".", 2)
            found.setdefault(stream, {})[what] = number
    return found


def assert_books_add_up(run_dir: Path) -> None:
    for stream, kept in accounts(run_dir).items():
        reasons = ("reader died", "out of turn", "host lost", "too late")
        dropped = sum(kept[f"dropped.{reason}"] for reason in reasons)
        assert kept["produced"] == kept["consumed"] + dropped + kept["in_flight"], stream
        assert kept["consumed"] > 0


@pytest.mark.parametrize(("workers", "saved"), [(1, "never"), (2, "last")])
def test_workers_of_every_kind_may_be_killed(start: Start, workers: int, saved: str) -> None:
    training = start(
        "CartPole-v1", *DQN, "--layout", "shared", "--steps", "1e9",
        "--set", f"algorithm.replay_workers={workers}", "--set", "actor.count=2",
        "--set", f"checkpoint.replay={saved}",
    )  # fmt: skip
    training.wait_for_updates(5)
    for name in (f"replay-{workers - 1}", "actor-0", "policy-0", "trainer-0"):
        pid = training.workers()[name].pid
        training.workers()[name].kill()

        def replaced(name: str = name, pid: int = pid) -> bool:
            training.check_running()
            worker = training.workers().get(name)
            return worker is not None and worker.pid != pid

        wait_for(replaced, f"another {name}")
        training.wait_for_updates(5)
    assert training.stop(signal.SIGINT) == 130
    assert_books_add_up(training.run_dir)
    kept = read_summary(training.run_dir)["metrics"]
    if saved == "never":
        # All that it had is gone, and is counted.
        log = (training.run_dir / "logs" / "controller.log").read_text()
        (lost,) = re.findall(r"replay/0: ([\d,]+) environment steps of the replay were lost", log)
        assert kept["replay.replay.lost"] == int(lost.replace(",", "")) >= 1000
    else:
        # It goes on with what the last checkpoint had.
        held = kept["replay.replay.stored"] + kept["replay.replay.lost"]
        assert held >= kept["replay.replay.inserted"] > kept["replay.replay.lost"]
    assert training.survivors() == []


def test_a_replay_beside_its_trainer_dies_with_it_and_both_go_on(start: Start) -> None:
    training = start(
        "CartPole-v1", "--algorithm", "dqn", "--layout", "shared", "--steps", "1e9",
        "--set", "algorithm.replay_beside_trainer=true", "--set", "algorithm.replay=prioritized",
        "--set", "logging.interval_seconds=0.1", "--set", "checkpoint.every_seconds=1",
    )  # fmt: skip
    training.wait_for_updates(5)
    assert sorted(training.workers()) == ["actor-0", "policy-0", "trainer-0"]
    for _ in range(2):
        worker = training.workers()["trainer-0"]
        pid = worker.pid
        worker.kill()

        def replaced(pid: int = pid) -> bool:
            training.check_running()
            worker = training.workers().get("trainer-0")
            return worker is not None and worker.pid != pid

        wait_for(replaced, "another trainer with its replay")
        training.wait_for_updates(5)
    assert training.stop(signal.SIGINT) == 130
    assert set(accounts(training.run_dir)) == {"default", "default/replay", "default/priorities"}
    assert_books_add_up(training.run_dir)
    assert training.survivors() == []


def test_a_stopped_run_goes_on_with_what_it_has_learned(start: Start) -> None:
    first = start("CartPole-v1", *DQN, "--layout", "inline", "--steps", "1e9")
    first.wait_for_updates(20)
    assert first.stop(signal.SIGINT) == 130
    before = read_summary(first.run_dir)
    kept = before["metrics"]["replay.replay.stored"]
    assert kept >= 1000
    again = start("", verb="resume")
    again.wait_for_updates(5)
    assert again.stop(signal.SIGINT) == 130
    after = read_summary(first.run_dir)
    assert after["policy_version"] > before["policy_version"]
    now = after["metrics"]
    # Final observations are ticks of their own, in which nobody acts.
    idle = now["replay.replay.stored"] - now["replay.replay.inserted"] - kept
    assert 0 <= idle < 0.2 * now["replay.replay.inserted"]
    log = (first.run_dir / "logs" / "controller.log").read_text()
    assert "the newest checkpoint has what replay keeps" in log
    assert "replay goes on with what it kept" in log


def test_equal_seeds_give_equal_runs(start: Start) -> None:
    weights = []
    for run in ("a", "b"):
        training = start("CartPole-v1", *DQN, "--layout", "serial", "--steps", "4000", run=run)
        assert training.wait() == 0
        checkpoint = open_checkpoint(checkpoints(training.run_dir)[-1])
        weights.append(read_part(checkpoint, weights_part("default")))
    for name, array in weights[0].items():
        assert (array == weights[1][name]).all(), name
