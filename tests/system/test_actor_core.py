"""An actor that takes turns with EnvPool's one thread keeps to a core, unless it is told not to."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
from harness import SMALL, Training

pytestmark = [
    # Other runs on the machine keep to cores, too.
    pytest.mark.alone,
    pytest.mark.skipif(
        not hasattr(os, "sched_setaffinity") or len(os.sched_getaffinity(0)) < 2,
        reason="needs affinity and two cores",
    ),
]


@pytest.mark.parametrize("keeps", [True, False])
def test_the_actor_is_on_one_core_and_the_trainer_on_any(
    keeps: bool, start: Callable[..., Training]
) -> None:
    training = start(
        "envpool:CartPole-v1", "--layout", "inline", "--steps", "1e9", *SMALL,
        "--set", f"actor.keep_core={str(keeps).lower()}",
    )  # fmt: skip
    training.wait_for_updates(1)
    workers = training.workers()
    everywhere = len(os.sched_getaffinity(0))
    assert len(workers["actor-0"].cpu_affinity()) == (1 if keeps else everywhere)
    assert len(workers["trainer-0"].cpu_affinity()) == everywhere
    assert training.stop() == 130
