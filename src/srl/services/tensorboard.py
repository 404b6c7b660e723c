"""TensorBoard curves, without torch and without TensorFlow."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

Value = float | int | bool
"""One number of a snapshot; a bool gets no curve."""


_SECTIONS = {
    **dict.fromkeys(("env_steps", "agent_steps", "episodes", "seconds"), "progress"),
    **dict.fromkeys(("policy_version", "policy_age_mean", "policy_age_max"), "policy"),
    **dict.fromkeys(("episode_return_mean", "episode_length_mean"), "episode"),
    **dict.fromkeys(("eval_return_mean", "eval_length_mean", "eval_policy_version"), "eval"),
    **dict.fromkeys(("env_steps_per_second", "update_seconds"), "speed"),
}
"""Sections of TensorBoard for metrics whose names have no dot."""


def tag(metric: str) -> str:
    """A metric's name in TensorBoard, which groups curves by the text before a slash.

    Examples: `train/loss`, `episode/episode_return_mean`, `policies.red/train.loss`.
    """
    section, _, rest = metric.partition(".")
    if not rest:
        return f"{_SECTIONS.get(metric, 'more')}/{metric}"
    if section == "policies":
        policy, _, rest = rest.partition(".")
        section = f"policies.{policy}"
    return f"{section}/{rest}"


class EventFile:
    """A TensorBoard event file, written in this thread.

    tensorboard's own EventFileWriter writes in another thread. On a full disk the user would see
    the traceback of that thread. It also imports TensorFlow if that is installed. Only
    tensorboard's record format and messages are needed here.
    """

    def __init__(self, folder: Path, wall: float, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        name = f"events.out.tfevents.{int(wall):010d}.{socket.gethostname()}.{os.getpid()}.srl"
        self._records = RecordWriter((folder / name).open("ab"))
        self._put(Event(wall_time=wall, file_version="brain.Event:2"))
        # TensorBoard then drops the points that an interrupted run wrote after the checkpoint from
        # which it resumes.
        self._put(Event(wall_time=wall, step=step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, values: dict[str, Value], wall: float, step: int) -> None:
        """Adds one point to every curve."""
        entries = [
            self._summary.Value(tag=tag(key), simple_value=float(value))
            for key, value in values.items()
            if not isinstance(value, bool)
        ]
        self._put(self._event(wall_time=wall, step=step, summary=self._summary(value=entries)))
        self._records.flush()

    def _put(self, event: Any) -> None:
        self._records.write(event.SerializeToString())

    def close(self) -> None:
        """Closes the file."""
        self._records.close()
