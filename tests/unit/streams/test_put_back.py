"""Tickets that are to be handed out again, however far their noting came."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from srl.streams.admission import AgeBoundAdmission


class Watched:
    """An array that keeps what all was after every write."""

    def __init__(self, values: np.ndarray, note: Any) -> None:
        self.values, self._note = values, note
        self.size = values.size

    def __getitem__(self, key: Any) -> Any:
        return self.values[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        self.values[key] = value
        self._note()


@pytest.mark.parametrize("new", [[7], [3], [11], [3, 7, 11], [4, 6, 7, 8]])
@pytest.mark.parametrize("old", [[9, 5], [5], [], [10, 9, 5, 1]])
def test_no_ticket_is_lost_by_who_dies_over_it(old: list[int], new: list[int]) -> None:
    seen: list[set[int]] = []

    def note() -> None:
        seen.append(
            set(admission.returned.values[: int(admission.num_returned.values[0])].tolist())
        )

    admission: Any = SimpleNamespace(
        returned=Watched(np.array([*old, *[-7] * (12 - len(old))]), note),
        num_returned=Watched(np.array([len(old)]), note),
        queue=SimpleNamespace(next_ticket=np.array([20])),
    )
    AgeBoundAdmission.put_back(admission, np.array(new))
    assert all(found >= set(old) for found in seen), seen
    count = int(admission.num_returned.values[0])
    assert admission.returned.values[:count].tolist() == sorted({*old, *new}, reverse=True)
