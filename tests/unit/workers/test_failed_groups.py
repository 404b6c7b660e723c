"""Environments that failed are made anew."""

from __future__ import annotations

from typing import Any, cast

from srl.envs.protocol import EnvConfig, EnvGroup
from srl.workers.actor import Group


class Broken:
    """What is left of environments whose simulator has died."""

    num_envs = 1

    def close(self) -> None:
        raise BrokenPipeError


def test_what_cannot_be_closed_is_made_anew_all_the_same() -> None:
    other: Any = object()
    config = EnvConfig(id="x", failure_steps=10, max_failures=1)
    group = Group(cast(EnvGroup, Broken()), [], 0, lambda: other, config)
    group.ticks = 10
    assert group.restart()
    assert group.envs is other
