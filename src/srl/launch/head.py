"""The head of a run with other hosts: the socket where agents join, and the engine behind them."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.control import PACKET_LIMITS
from srl.launch.engines import Engine, HostRequest, Join
from srl.launch.hosts import Hosts
from srl.net.keys import join_key_path, make_run_keys
from srl.net.sockets import Wire

HEAD_FILE = "head.json"
ENGINE_SECONDS = 1.0
REMINDER_SECONDS = 10.0


class HeadFile(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run can be joined, for people and for `srl status`; in the run directory."""

    address: str
    key_file: str


class Head:
    """Takes in hosts, and sees to it that those come that are wanted."""

    def __init__(
        self, experiment: Experiment, run_dir: Path, engine: Engine, requests: list[HostRequest]
    ) -> None:
        self.engine = engine
        self.gate_port = experiment.gate_port
        address = experiment.listen or engine.bind
        self.bind, _, port = address.partition(":")
        if not self.bind or self.bind in ("*", "0.0.0.0") or (port and not port.isdecimal()):
            raise ConfigError(
                "listen: expected one address of this machine, as other hosts reach it, with or "
                f"without a port (10.0.0.1 or 10.0.0.1:5555), got {address!r}."
            )
        keys = make_run_keys(run_dir)
        self._wire = Wire()
        try:
            listener = self._wire.listen(
                f"tcp://{self.bind}:{port or '*'}",
                keys.head,
                {keys.join.public: "agent"},
                name="control",
                limits=PACKET_LIMITS,
            )
        except BaseException:
            self._wire.close()
            raise
        self.address = listener.address.removeprefix("tcp://")
        self.key_file = join_key_path(run_dir).absolute()
        self.hosts = Hosts(
            listener,
            wanted=tuple(request.name for request in requests),
            silence_seconds=experiment.host_silence_seconds,
            logs=run_dir / "logs",
        )
        self._run_dir = run_dir
        self._closed = False
        self._next_engine = 0.0
        self._next_reminder = time.monotonic() + 2.0
        file = HeadFile(address=self.address, key_file=str(self.key_file))
        try:
            (run_dir / HEAD_FILE).write_bytes(msgspec.json.encode(file))
            engine.start(Join(address=self.address, key_file=self.key_file), requests)
        except BaseException:
            self.close()
            raise

    def poll(self) -> list[str]:
        """Takes what has come, looks after the engine, and returns news for the user."""
        self.hosts.poll()
        now = time.monotonic()
        news = []
        if now >= self._next_engine:
            self._next_engine = now + ENGINE_SECONDS
            news = self.engine.poll()
        if now >= self._next_reminder:
            self._next_reminder = now + REMINDER_SECONDS
            news += self._missing()
        return news

    def _missing(self) -> list[str]:
        missing = self.hosts.missing()
        if not missing:
            return []
        waits = self.engine.waiting()
        reasons = [f"{name}: {waits[name]}" for name in missing if name in waits]
        how = "; ".join(reasons) or (
            f"run `srl worker --join {self.address} --key-file {self.key_file} "
            f"--name {missing[0]}` there"
        )
        return [
            f"waiting for {'hosts' if len(missing) > 1 else 'host'} {', '.join(missing)} ({how})"
        ]

    def close(self) -> None:
        """Ends the agents that the engine started, and stops listening. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self.engine.close()
        finally:
            self._wire.close()
            (self._run_dir / HEAD_FILE).unlink(missing_ok=True)
