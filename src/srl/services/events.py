"""TensorBoard curves, without torch and without TensorFlow."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

Value = float | int | bool
"""One number of a snapshot; bools are facts, not curves."""


class EventFile:
    """A TensorBoard event file, written in this thread.

    tensorboard's own EventFileWriter hands records to a thread whose traceback on a full disk
    reaches the user, and imports TensorFlow where that is installed. Its record format and its
    messages are all that is needed.
    """

    def __init__(self, folder: Path, wall: float, step: int) -> None:
        from tensorboard.compat.proto.event_pb2 import Event, SessionLog
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._event, self._summary = Event, Summary
        name = f"events.out.tfevents.{int(wall):010d}.{socket.gethostname()}.{os.getpid()}.srl"
        self._records = RecordWriter((folder / name).open("ab"))
        self._put(Event(wall_time=wall, file_version="brain.Event:2"))
        # Tells TensorBoard to forget what an interrupted run wrote beyond the checkpoint it resumed
        # from.
        self._put(Event(wall_time=wall, step=step, session_log=SessionLog(status=SessionLog.START)))

    def write(self, values: dict[str, Value], wall: float, step: int) -> None:
        """Adds one point to every curve."""
        entries = [
            self._summary.Value(tag=key, simple_value=float(value))
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
