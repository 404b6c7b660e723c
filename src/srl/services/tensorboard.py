"""TensorBoard curves, without torch and without TensorFlow."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from srl.services.metric_table import METRICS

Value = float | int | bool
"""One number of a snapshot; a bool gets no curve."""


def tag(metric: str) -> str:
    """A metric's name in TensorBoard, which groups curves by the text before a slash.

    Examples: `train/loss`, `episode/episode_return_mean`, `policies.red/train.loss`.
    """
    section, _, rest = metric.partition(".")
    if not rest:
        known = METRICS.get(metric)
        return f"{known.section if known and known.section else 'more'}/{metric}"
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
