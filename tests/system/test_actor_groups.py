"""Two groups of actors with environments of their own, in real processes that are killed."""

from __future__ import annotations

import signal
from collections.abc import Callable

from harness import SMALL, Training, read_summary, wait_for

Start = Callable[..., Training]
ODD = ("--set", "actors.odd.envs=4", "--set", "actors.odd.env_args.sutton_barto_reward=true")


def test_an_actor_of_any_group_is_replaced_and_a_run_goes_on_with_all(start: Start) -> None:
    training = start("CartPole-v1", *SMALL, *ODD, "--layout", "inline", "--steps", "1e9")
    training.wait_for_updates(3)
    pid = training.workers()["actor-odd-0"].pid
    training.workers()["actor-odd-0"].kill()

    def replaced() -> bool:
        training.check_running()
        worker = training.workers().get("actor-odd-0")
        return worker is not None and worker.pid != pid

    wait_for(replaced, "another actor-odd-0")
    training.wait_for_updates(10)
    assert training.stop(signal.SIGINT) == 130
    again = start("", verb="resume")
    again.wait_for_updates(3)
    assert again.stop(signal.SIGINT) == 130
    returns = read_summary(training.run_dir)["policies"]["default"]["actors"]
    # With this argument an episode pays nothing but its end.
    assert -1.0 <= returns["odd"] <= 0.0
    assert returns["main"] >= 8.0
