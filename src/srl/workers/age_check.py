"""Checks that a trainer's batches are no older than `max_policy_age` allows."""

from __future__ import annotations


class AgeCheck:
    """Checks the oldest step of every batch.

    Older data is allowed in two cases. Steps from before the trainers last formed a group may be
    older, because version numbers jump when updates were lost. Where other workers are between
    actors and trainer, the bound is also wider afterwards, by the batches that were under way.
    """

    def __init__(self, bound: int | None, batches_under_way: int) -> None:
        """`batches_under_way`: the batches that fit between the actors' stream and the trainer's
        own; 0 where both are the same stream."""
        self.bound = bound
        self._under_way = batches_under_way
        self._first_version = 0
        self._slack = 0

    def start_again(self, version: int) -> None:
        """Allows older data from before `version`, because the trainers formed a new group."""
        self._first_version = version
        self._slack = self._under_way

    def exceeded(self, version: int, age: int) -> bool:
        """Whether a batch whose oldest step is `age` versions old is too old for `version`."""
        if self.bound is None or version - age < self._first_version:
            return False
        return age > self.bound + self._slack
