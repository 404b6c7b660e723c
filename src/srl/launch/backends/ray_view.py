"""Queries the state of a Ray cluster in a thread, so that the head does not wait for Ray.

Ray's head node answers the queries, and may be slow or gone. If our head waited for it, the agents
would believe that our head is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

CLOSE_SECONDS = 3.0
"""How long `close` waits for a running query."""


@dataclass(frozen=True)
class ClusterState:
    """The state of a Ray cluster at one time."""

    asked: float
    """When the query began, by the monotonic clock."""
    nodes: list[dict[str, float]]
    """The resources of each living Ray node."""
    free: dict[str, float]
    """The free resources of the whole cluster."""
    groups: dict[str, str] = field(default_factory=dict)
    """The state of each placement group, by its id."""


class ClusterView:
    """The newest known state of the cluster. Each `read` starts another query in a thread."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray
        self._last: ClusterState | None = None
        self._thread: threading.Thread | None = None
        self._closed = False

    def read(self, groups: Sequence[Any]) -> ClusterState | None:
        """The last answer, None at first. The next query asks for these placement groups."""
        if not self._closed and (self._thread is None or not self._thread.is_alive()):
            self._thread = threading.Thread(
                target=self._query, args=(list(groups),), name="ray-view", daemon=True
            )
            self._thread.start()
        return self._last

    def _query(self, groups: list[Any]) -> None:
        asked = time.monotonic()
        states: dict[str, str] = {}
        try:
            for group in groups:
                table = self._ray.util.placement_group_table(group)
                states[group.id.hex()] = str(table.get("state", ""))
                # After a disconnect, a further call would make Ray start a new cluster.
                if self._closed:
                    return
            nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
            if self._closed:
                return
            free = self._ray.available_resources()
        except (self._ray.exceptions.RayError, RuntimeError, OSError):
            # The Ray head node does not answer at the moment: keep its last answer.
            return
        self._last = ClusterState(asked, nodes, free, states)

    def close(self) -> None:
        """Starts no more queries, and waits for the running one."""
        self._closed = True
        if self._thread is not None:
            self._thread.join(CLOSE_SECONDS)
