"""Exact states of environments, for runs that continue bit by bit where they stopped."""

from __future__ import annotations

from typing import Any


def get_state(env: Any) -> Any:
    """TEMP."""
    return None


def set_state(env: Any, state: Any) -> None:
    """TEMP."""
