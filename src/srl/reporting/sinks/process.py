"""The process of one sink: it follows metrics.jsonl, and sends each line to a tracker.

Training neither waits for this process nor sends anything to it: it reads the file that the
controller writes in any case. So a sink that hangs only falls behind. The controller writes two
lines to the standard input, the order and how the run has ended. This process writes an empty line
a second to show that it is alive, and a line of text for the user.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import IO

import msgspec

from srl.errors import SrlError
from srl.files import read_limited, write_atomically
from srl.reporting.sinks.sink import Ended, Sink, SinkOrder, open_sink
from srl.services.metrics import MAX_LINE_BYTES, METRICS_FILE
from srl.tracebacks import USER_ERRORS, described

LOOK_SECONDS = 1.0
LOST_SECONDS = 20.0
"""How long a sink may go on after its controller died."""
FAILED = "failed: "
"""Begins the line with which a sink says why it ends."""
FOLDER = "sinks"
"""Folder of the run directory: how far each sink has come, for a resumed run."""
_NICENESS = 10
_MAX_POSITION_BYTES = 1 << 16
_MOST_LINES = 200
_decoder = msgspec.json.Decoder(dict[str, float | bool | None])


class Position(msgspec.Struct):
    """How far a sink has read, and the run's id in its tracker."""

    offset: int = 0
    tracker_id: str = ""


class _Orders:
    """What the controller says, read in another thread."""

    def __init__(self, source: IO[bytes]) -> None:
        self._source = source
        self.order = msgspec.json.decode(source.readline(), type=SinkOrder)
        self.over = threading.Event()
        self.ended: Ended = "lost"
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        line = self._source.readline()
        if line:
            self.ended = msgspec.json.decode(line, type=Ended)
        self.over.set()
        if not line:
            # Nobody is left who would kill a sink that hangs.
            threading.Event().wait(LOST_SECONDS)
            os.killpg(0, signal.SIGKILL)


class _Follower:
    """Reads the whole lines of a file that grows."""

    def __init__(self, path: Path, offset: int) -> None:
        self._path = path
        self.offset = offset

    def lines(self) -> list[bytes]:
        """Lines that were completed since the last call, but not too many at once."""
        found: list[bytes] = []
        try:
            with self._path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.offset:
                    self.offset = 0
                file.seek(self.offset)
                while len(found) < _MOST_LINES:
                    line = file.readline(MAX_LINE_BYTES)
                    if not line.endswith(b"\n"):
                        break
                    found.append(line)
                    self.offset += len(line)
        except FileNotFoundError:
            pass
        return found


def send(line: bytes, sink: Sink) -> None:
    """Sends one line of metrics.jsonl to a sink, without what is not a number."""
    try:
        values = _decoder.decode(line)
    except msgspec.DecodeError:
        return
    known = {
        key: float(value)
        for key, value in values.items()
        if value is not None and not isinstance(value, bool)
    }
    wall = known.pop("time", 0.0)
    sink.write(known, wall, int(known.get("env_steps", 0)))


def run(orders: _Orders, out: IO[bytes]) -> None:
    """Follows the metrics until the run has ended."""
    order = orders.order
    at = order.path / FOLDER / f"{order.sink}.json"
    at.parent.mkdir(exist_ok=True)
    position = Position()
    with suppress(OSError, msgspec.DecodeError):
        position = msgspec.json.decode(read_limited(at, _MAX_POSITION_BYTES), type=Position)

    def say(text: str) -> None:
        out.write(f"{text}\n".encode())

    sink = open_sink(order, position.tracker_id, say)
    follower = _Follower(order.path / METRICS_FILE, position.offset)
    while True:
        # Asked before the last look, so that the look sees all that was written before the end.
        over = orders.over.is_set()
        while lines := follower.lines():
            for line in lines:
                send(line, sink)
            known = Position(follower.offset, sink.tracker_id)
            write_atomically(at, msgspec.json.encode(known))
            say("")
        if over:
            sink.close(orders.ended)
            return
        say("")
        orders.over.wait(LOOK_SECONDS)


def main() -> None:
    """Runs the sink that the standard input orders."""
    # Trackers print as they like: only lines of SRL go to the controller.
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    with suppress(OSError):
        os.nice(_NICENESS)
    orders = _Orders(sys.stdin.buffer)
    try:
        run(orders, out)
    except USER_ERRORS as error:
        text = str(error) if isinstance(error, SrlError) else described(error)
        print(text, file=sys.stderr, flush=True)
        first = text.splitlines()[0]
        with suppress(OSError):
            out.write(f"{FAILED}{first}\n".encode())
        os._exit(1)
    # Threads of trackers that still wait for something must not hold up the end.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
