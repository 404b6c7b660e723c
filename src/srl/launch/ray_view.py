"""What a Ray cluster has and what it makes room for, asked beside the head's own work.

Ray's head node answers these questions, and may be slow or gone. Whoever waited for it would let
the agents believe that their head is dead.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CLOSE_SECONDS = 3.0
"""How long a question may be under way when the cluster is left."""


@dataclass(frozen=True)
class ClusterState:
    """An answer of Ray's."""

    asked: float
    """When it was asked for, by the monotonic clock."""
    nodes: list[dict[str, float]]
    """The resources of each living node."""
    free: dict[str, float]
    """What the whole cluster has left."""
    groups: dict[str, str] = field(default_factory=dict)
    """The state of each placement group, by its id."""


class ClusterView:
    """The last that Ray has said of the cluster; asks again, in a thread, whenever it is read."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._last: ClusterState | None = None
        self._asking: threading.Thread | None = None
        self._closed = False

    def read(self, groups: Sequence[Any]) -> ClusterState | None:
        """The last answer, none at first; the next one is about these placement groups."""
        if not self._closed and (self._asking is None or not self._asking.is_alive()):
            self._asking = threading.Thread(
                target=self._ask, args=(list(groups),), name="ray-view", daemon=True
            )
            self._asking.start()
        return self._last

    def _ask(self, groups: list[Any]) -> None:
        asked = time.monotonic()
        states: dict[str, str] = {}
        try:
            for group in groups:
                table = self._ray.util.placement_group_table(group)
                states[group.id.hex()] = str(table.get("state", ""))
                # Ray starts a new cluster for whoever asks one that it has left.
                if self._closed:
                    return
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            if self._closed:
                return
            free = self._ray.available_resources()
        except (self._ray.exceptions.RayError, RuntimeError, OSError):
            # A head node that does not answer at the moment: what it said last stands.
            return
        self._last = ClusterState(asked, nodes, free, states)

    def close(self) -> None:
        """Asks no more."""
        self._closed = True
        if self._asking is not None:
            self._asking.join(CLOSE_SECONDS)
