"""Every carrier, for the tests that ask for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from carriers import Carrier, InlineCarrier, ShmCarrier


@pytest.fixture(params=["inline", "shm"])
def carrier(request: pytest.FixtureRequest) -> Iterator[Carrier]:
    made = InlineCarrier() if request.param == "inline" else ShmCarrier()
    yield made
    made.close()


@pytest.fixture
def shm() -> Iterator[ShmCarrier]:
    made = ShmCarrier()
    yield made
    made.close()
