"""Every carrier, for the tests that ask for one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from carriers import Carrier, ShmCarrier, make_carrier


@pytest.fixture(params=["inline", "shm", "tcp"])
def carrier(request: pytest.FixtureRequest) -> Iterator[Carrier]:
    """Any carrier."""
    made = make_carrier(request.param)
    yield made
    made.close()


@pytest.fixture(params=["inline", "shm"])
def local(request: pytest.FixtureRequest) -> Iterator[Carrier]:
    """Carriers whose ends share memory."""
    made = make_carrier(request.param)
    yield made
    made.close()


@pytest.fixture
def shm() -> Iterator[ShmCarrier]:
    made = ShmCarrier()
    yield made
    made.close()
