"""What the page is sent while it is open: a run's state, and the new points of its curves."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import msgspec
from anyio import to_thread

from srl.watch.drawing import draw, host_lines, streams, worker_lines
from srl.watch.history import encode
from srl.watch.runs import Runs, WatchedRun

EVERY_SECONDS = 1.0
_ALIVE_SECONDS = 15.0
"""After this time without news a comment is sent, so that a closed connection is noticed."""
_encode = msgspec.json.Encoder().encode


def event(name: str, content: object) -> bytes:
    """A server-sent event."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(content) + b"\n\n"


class RunFeed:
    """The news of one run for one open page."""

    def __init__(self, run: WatchedRun) -> None:
        self._run = run
        self._sent = b""
        self._generation = -1
        self._points = 0

    def news(self) -> list[bytes]:
        """The events since the last call."""
        found = []
        state = event("run", describe(self._run, time.time()))
        if state != self._sent:
            self._sent = state
            found.append(state)
        history = self._run.history
        history.update()
        if history.generation != self._generation:
            self._generation, self._points = history.generation, 0
            found.append(event("clear", {}))
        if len(history) > self._points:
            new = {key: encode(column[self._points :]) for key, column in history.columns.items()}
            self._points = len(history)
            evaluations = [{"env_steps": steps, **found} for steps, found in history.evaluations]
            found.append(event("points", {"columns": new, "evaluations": evaluations}))
        return found


def describe(run: WatchedRun, now: float) -> dict[str, Any]:
    """Everything that the page shows about a run, but its curves and logs."""
    status, summary, state = run.status, run.summary, run.state(now)
    shown: dict[str, Any] = {
        **run.line(now),
        "seed": run.seed(),
        "policies": run.results(),
        "checkpoints": run.checkpoints()[-20:],
        "logs": run.logs(),
        "films": run.films(),
        "bottleneck": "",
        "setting": None,
        "written": status.written if status is not None else 0.0,
        "can_ask": state == "running",
    }
    if status is not None:
        shown |= {
            "drawing": draw(status),
            "streams": streams(status),
            "workers": worker_lines(status),
            "num_workers": len(status.workers),
            "hosts": host_lines(status),
            "scaled": status.scaled,
            "capacity": status.capacity,
            "bottleneck": status.bottleneck,
            "setting": status.bottleneck_setting,
        }
    if summary is not None:
        shown |= {"bottleneck": summary.bottleneck, "setting": summary.bottleneck_setting}
    return shown


class ListFeed:
    """The news of the list of runs for one open page."""

    def __init__(self, runs: Runs) -> None:
        self._runs = runs
        self._sent = b""

    def news(self) -> list[bytes]:
        """The events since the last call."""
        now = time.time()
        lines = [run.line(now) for run in self._runs.all().values()]
        found = event("runs", {"folder": self._runs.root.resolve().name, "runs": lines})
        if found == self._sent:
            return []
        self._sent = found
        return [found]


async def follow(
    news: Callable[[], list[bytes]], is_over: Callable[[], bool], lock: anyio.Lock
) -> AsyncIterator[bytes]:
    """The events of a feed until the server ends. Files are read in a thread, one feed at a
    time."""
    quiet_since = time.monotonic()
    while not is_over():
        async with lock:
            found = await to_thread.run_sync(news)
        now = time.monotonic()
        if found:
            quiet_since = now
            yield b"".join(found)
        elif now - quiet_since > _ALIVE_SECONDS:
            quiet_since = now
            yield b": nothing new\n\n"
        await anyio.sleep(EVERY_SECONDS)
