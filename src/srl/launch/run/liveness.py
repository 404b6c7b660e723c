"""Decides which silent processes stand still for certain, so that they may be killed and replaced.

The age of a heartbeat alone proves nothing: a process may compute for long, import, or wait for a
core on a busy machine. So the state that the system reports counts too
(`launch/process/process_state.py`):

- A process that a signal has stopped gets a few seconds.
- A process that sleeps, and uses no processor, gets far longer, and at least ten times as long as
  its longest loop took. Loops of a process can only raise its limit. After the limit the process is
  killed, whatever it waits for.
- A process that works, or waits for a core or a disk, is never killed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from srl.launch.process.process_state import Condition

SILENT_SECONDS = 0.5
"""A process with a younger heartbeat is not silent."""
LOOPS = 10.0
"""A process may sleep this many times as long as its longest loop."""
MOST_BETWEEN_LOOKS = 0.5
"""The time between two looks counts up to this. A longer pause proves nothing: the watching process
may have been stopped, and all others with it."""
JITTER_NS = 250_000_000
"""Times from other hosts are translated again with every message, and differ by up to this."""
Verdict = Literal["", "stopped", "silent", "slow"]
"""A `stopped` or `silent` process is to be killed; a `slow` one is only reported, once."""


@dataclass(slots=True)
class _Silence:
    """What was seen of a process since its last heartbeat."""

    heard_ns: int
    stopped: float = 0.0
    """Seconds for which it has now been stopped."""
    asleep: float = 0.0
    """Seconds for which it has now been asleep."""
    worked: float = 0.0
    """Seconds for which it worked."""
    seen: float = 0.0
    """Seconds of its loop; pauses between looks count up to `MOST_BETWEEN_LOOKS`."""
    excused: bool = False
    """Whether its silence had a reason; such a loop does not raise the process's limit."""
    reported: bool = False
    """Whether the verdict `slow` was already given."""


class Liveness:
    """Watches the heartbeats of processes and judges those that are silent."""

    def __init__(self, limit_seconds: float, stopped_seconds: float) -> None:
        self._limit = limit_seconds
        self._stopped = min(stopped_seconds, limit_seconds)
        self._silent_ns = int(min(limit_seconds / 4, SILENT_SECONDS) * 1e9)
        self._silences: dict[str, _Silence] = {}
        self._longest: dict[str, float] = {}
        """Seconds of each process's longest loop; loops too short to be silent are not known."""
        self._now_ns = 0
        self._passed = 0.0

    def begin(self, now_ns: int) -> None:
        """Starts a look at all processes."""
        passed = (now_ns - self._now_ns) / 1e9 if self._now_ns else 0.0
        self._now_ns, self._passed = now_ns, min(passed, MOST_BETWEEN_LOOKS)

    def is_silent(self, process: str, heard_ns: int) -> bool:
        """Whether a process is silent, so that it must be judged."""
        silence = self._silences.get(process)
        if silence is not None and heard_ns > silence.heard_ns + JITTER_NS:
            del self._silences[process]
            if not silence.excused:
                # Not the time between two heartbeats: the whole machine may have been suspended.
                self._longest[process] = max(silence.seen, self._longest.get(process, 0.0))
        return self._now_ns - heard_ns > self._silent_ns

    def judge(self, process: str, heard_ns: int, condition: Condition, *, excused: bool) -> Verdict:
        """The verdict on a silent process; empty if nothing is to be done. `excused`: its silence
        has a reason, such as a call with its own limit; then only `stopped` counts."""
        silence = self._silences.setdefault(process, _Silence(heard_ns))
        if condition == "stopped":
            silence.stopped += self._passed
            silence.excused = True
            return "stopped" if silence.stopped > self._stopped else ""
        silence.stopped = 0.0
        if excused or condition == "traced":
            silence.asleep, silence.excused = 0.0, True
            return ""
        silence.seen += self._passed
        if condition == "asleep":
            silence.asleep += self._passed
            return "silent" if silence.asleep > self.limit(process) else ""
        silence.asleep = 0.0
        silence.worked += self._passed
        if silence.reported or silence.worked < self.limit(process):
            return ""
        silence.reported = True
        return "slow"

    def limit(self, process: str) -> float:
        """Seconds for which a process may sleep."""
        return max(self._limit, LOOPS * self._longest.get(process, 0.0))

    def forget(self, process: str) -> None:
        """Forgets the silence of a process that is replaced; its longest loop stays known."""
        self._silences.pop(process, None)
