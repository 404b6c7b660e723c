"""Starts the processes of a run's sinks, and tells once if one fails, hangs or is killed.

Training never waits for a sink: `look` only reads what a sink has said.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import msgspec

from srl.extras import require
from srl.reporting.sinks.process import FAILED
from srl.reporting.sinks.sink import SINK_PACKAGES, Ended, SinkOrder
from srl.services.metrics import TENSORBOARD, LoggingConfig

Tell = Callable[[Literal["info", "warning"], str, str], None]
"""Tells the user something: the level, who says it, and the text."""
START_SECONDS = 60.0
"""How long a sink may be silent at its start, when it imports a tracker and connects to it."""
SILENT_SECONDS = 20.0
"""How long a sink may be silent later."""
END_SECONDS = {"finished": 30.0, "stopped": 5.0, "failed": 5.0}
"""How long the end of a run waits for its sinks."""
_MODULE = "srl.reporting.sinks.process"
_SILENCE = {"MLFLOW_DISABLE_TELEMETRY": "true", "WANDB_ERROR_REPORTING": "false"}
"""Without these variables the trackers' packages report to their makers."""
_SAY_AFTER_SECONDS = 1.0
_TURN_SECONDS = 0.02


def check_sinks(sinks: Sequence[str]) -> None:
    """Raises if the package that a sink needs is not installed."""
    for sink in sinks:
        if sink != TENSORBOARD:
            require(SINK_PACKAGES[sink], f"logging.sinks: {sink}")


class Sinks:
    """The sinks of a run that have processes of their own."""

    def __init__(self, run_dir: Path, config: LoggingConfig, tell: Tell) -> None:
        self._run_dir = run_dir
        self._config = config
        self._tell = tell
        self._wanted = [sink for sink in config.sinks if sink != TENSORBOARD]
        self._running: list[_SinkProcess] = []

    def look(self) -> None:
        """Starts the sinks at the first call; later it notices what they say, and how they are."""
        while self._wanted:
            self._start(self._wanted.pop(0))
        for sink in list(self._running):
            if not sink.look():
                self._running.remove(sink)

    def _start(self, sink: str) -> None:
        order = SinkOrder(
            sink=sink,
            run_dir=str(self._run_dir.absolute()),
            project=self._config.project,
            prometheus_port=self._config.prometheus_port,
        )
        try:
            self._running.append(_SinkProcess(order, self._tell))
        except OSError as error:
            problem = error.strerror or str(error)
            self._tell("warning", f"sink {sink}", f"not started ({problem}); training goes on")

    def finish(self, ended: Literal["finished", "stopped", "failed"]) -> None:
        """Lets the sinks send the last metrics, and ends those that take too long."""
        self.look()
        begun = time.monotonic()
        for sink in list(self._running):
            if not sink.release(ended):
                self._running.remove(sink)
        said = False
        while self._running:
            waited = time.monotonic() - begun
            self._running = [sink for sink in self._running if not sink.has_ended()]
            if waited > END_SECONDS[ended]:
                break
            if self._running and waited > _SAY_AFTER_SECONDS and not said:
                said = True
                names = ", ".join(sink.name for sink in self._running)
                limit = f"at most {END_SECONDS[ended]:g} s"
                self._tell("info", "controller", f"waiting for the last metrics: {names} ({limit})")
            time.sleep(_TURN_SECONDS)
        for sink in self._running:
            sink.give_up(END_SECONDS[ended])
        self.close()

    def close(self) -> None:
        """Kills the sinks that are left."""
        self._wanted.clear()
        while self._running:
            self._running.pop().kill()


class _SinkProcess:
    """One sink: its process, and the last time at which it said something."""

    def __init__(self, order: SinkOrder, tell: Tell) -> None:
        self.name = f"sink {order.sink}"
        self._tell = tell
        self._log = order.path / "logs" / f"sink-{order.sink}.log"
        self._log.parent.mkdir(exist_ok=True)
        with self._log.open("ab") as log:
            # A session of its own: Ctrl-C in the terminal is for the run, which ends its sinks.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**_SILENCE, **os.environ},
                start_new_session=True,
            )
        assert self._process.stdout is not None
        self._out = self._process.stdout.fileno()
        os.set_blocking(self._out, False)
        self._heard = time.monotonic()
        self._patience = START_SECONDS
        self._hangs = self._told = False
        self._failure = ""
        self._rest = b""
        self._write(msgspec.json.encode(order))

    def _write(self, line: bytes) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()

    def look(self) -> bool:
        """Hears what it says. Returns whether it still runs; tells the user once if not."""
        self._hear()
        code = self._process.poll()
        if code is not None:
            self._hear()
            how = self._failure or _how_ended(code)
            self._warn(f"{how} Training goes on, and so does metrics.jsonl; see {self._log}")
            self.kill()
            return False
        silent = time.monotonic() - self._heard
        if silent > self._patience and not self._hangs:
            self._hangs = True
            self._warn(f"silent for {silent:.0f} s. Training goes on, and so does metrics.jsonl")
        return True

    def _hear(self) -> None:
        with suppress(BlockingIOError):
            while data := os.read(self._out, 1 << 16):
                *lines, self._rest = (self._rest + data).split(b"\n")
                self._heard, self._patience = time.monotonic(), SILENT_SECONDS
                self._hangs = False
                for line in lines:
                    self._take(line.decode(errors="replace"))

    def _take(self, text: str) -> None:
        if text.startswith(FAILED):
            self._failure = text
        elif text:
            self._tell("info", self.name, text)

    def _warn(self, text: str) -> None:
        if not self._told:
            self._told = True
            self._tell("warning", self.name, text)

    def release(self, ended: Ended) -> bool:
        """Tells it how the run has ended. Kills it and returns False if it hangs."""
        if self._hangs:
            self.kill()
            return False
        self._write(msgspec.json.encode(ended))
        return True

    def has_ended(self) -> bool:
        """Whether it is over; tells the user if it failed."""
        if self._process.poll() is None:
            return False
        self._hear()
        if self._process.returncode:
            self._warn(f"{self._failure or _how_ended(self._process.returncode)} See {self._log}")
        self.kill()
        return True

    def give_up(self, seconds: float) -> None:
        """Says that its last metrics are missing."""
        self._warn(f"did not end within {seconds:g} s: its last points may be missing")

    def kill(self) -> None:
        """Kills it with all processes of its session, and closes the pipes."""
        if self._process.returncode is None:
            with suppress(OSError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):
                if pipe is not None:
                    pipe.close()


def _how_ended(code: int) -> str:
    return f"killed by {signal.Signals(-code).name}." if code < 0 else f"ended with code {code}."
