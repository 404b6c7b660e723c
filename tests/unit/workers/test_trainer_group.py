"""What a rank makes of sums that are late, fail, or end at an awkward moment."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
import torch

from srl.algorithms.ranks import GroupBroken
from srl.workers.trainer_group import LinkedRanks


class Sum:
    """A sum under way, as torch.distributed gives it: it ends when the test says so."""

    def __init__(self, ends_after_looks: int, failure: str = "") -> None:
        self.left = ends_after_looks
        self.failure = failure

    def wait(self, limit: timedelta | None = None) -> bool:
        """With a limit it raises in time, and then, before anyone can look, the sum may end."""
        ended = self.left <= 0
        if limit is not None:
            self.left -= 1
        if not ended:
            assert limit is not None, "a wait without a limit on what has not ended"
            raise RuntimeError("Operation timed out!")
        if self.failure:
            raise RuntimeError(self.failure)
        return True

    def is_completed(self) -> bool:
        return self.left <= 0


class Group:
    """A group whose sums leave the numbers as they are."""

    def __init__(self, work: Sum) -> None:
        self.work = work

    def allreduce(self, _: Any) -> Sum:
        return self.work


def rank(work: Sum, look: Callable[[float], None] = lambda waited: None) -> LinkedRanks:
    return LinkedRanks(Group(work), 0, 2, "cpu", look, lambda: False)


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_a_sum_that_ends_just_after_a_wait_has_timed_out_counts(looks: int) -> None:
    assert rank(Sum(looks)).sum(torch.tensor([2.0, 3.0])).tolist() == [2.0, 3.0]


@pytest.mark.parametrize("looks", [0, 1, 3])
def test_a_sum_that_fails_breaks_the_group_with_its_reason(looks: int) -> None:
    with pytest.raises(GroupBroken, match="closed by peer"):
        rank(Sum(looks, "Connection closed by peer")).sum(torch.ones(2))


def test_a_rank_leaves_a_sum_that_does_not_end_when_the_group_has() -> None:
    def look(waited: float) -> None:
        raise GroupBroken("another group is being formed")

    with pytest.raises(GroupBroken, match="another group"):
        rank(Sum(1000), look).sum(torch.ones(2))
