"""The head of a run with other hosts: the socket where agents join, and the backend."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec

from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.launch.backends.backend import Backend, HostRequest, JoinAddress
from srl.launch.cluster.membership import Membership
from srl.launch.cluster.protocol import PACKET_LIMITS
from srl.launch.run.throttle import Throttle
from srl.net.keys import join_key_path, make_run_keys
from srl.net.sockets import Wire

HEAD_FILE = "head.json"
BACKEND_SECONDS = 0.1
"""The shortest time between two polls of the backend; longer if a poll takes long."""
REMINDER_SECONDS = 10.0
"""How often the user is told which hosts are missing."""


class HeadFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file in the run directory with the address to join: for users and `srl status`."""

    address: str
    key_file: str


class Head:
    """Lets hosts join, and has the backend start agents for the wanted hosts."""

    def __init__(
        self, experiment: Experiment, run_dir: Path, backend: Backend, requests: list[HostRequest]
    ) -> None:
        self.backend = backend
        self.bridge_port = experiment.bridge_port
        address = experiment.listen or backend.bind
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
        self.hosts = Membership(
            listener,
            wanted=tuple(request.name for request in requests),
            silence_seconds=experiment.host_silence_seconds,
            logs=run_dir / "logs",
            return_seconds=backend.return_seconds,
        )
        self._run_dir = run_dir
        self._closed = False
        self._throttle = Throttle(BACKEND_SECONDS)
        self._news: list[str] = []
        self._next_reminder = time.monotonic() + 2.0
        file = HeadFile(address=self.address, key_file=str(self.key_file))
        try:
            (run_dir / HEAD_FILE).write_bytes(msgspec.json.encode(file))
            backend.start(JoinAddress(address=self.address, key_file=self.key_file), requests)
        except BaseException:
            self.close()
            raise

    def poll(self) -> list[str]:
        """Handles messages of agents, polls the backend, and returns news for the user."""
        self.hosts.poll()
        now = time.monotonic()
        self._throttle.step(self._ask_backend)
        news, self._news = self._news, []
        if now >= self._next_reminder:
            self._next_reminder = now + REMINDER_SECONDS
            news += self._missing()
        return news

    def _ask_backend(self) -> None:
        self._news += self.backend.poll()

    def _missing(self) -> list[str]:
        missing = self.hosts.missing()
        if not missing:
            return []
        waits = self.backend.waiting()
        reasons = [f"{name}: {waits[name]}" for name in missing if name in waits]
        how = "; ".join(reasons) or (
            f"run `srl worker --join {self.address} --key-file {self.key_file} "
            f"--name {missing[0]}` there"
        )
        return [
            f"waiting for {'hosts' if len(missing) > 1 else 'host'} {', '.join(missing)} ({how})"
        ]

    def close(self) -> None:
        """Ends the agents that the backend started, and stops listening. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        try:
            self.backend.close()
        finally:
            self._wire.close()
            (self._run_dir / HEAD_FILE).unlink(missing_ok=True)
