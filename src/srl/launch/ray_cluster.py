"""Connecting to a Ray cluster, sending code there, and saying what it lacks."""

from __future__ import annotations

import importlib
import logging
import math
import os
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from srl.errors import ConfigError, MissingDependency, RunError
from srl.resolve import SENT_FROM
from srl.resources import RayConfig, ResourceConfig

LOOPBACK = "127.0.0.1"
GIGABYTE = 2**30
NOT_SENT = ("/.git/", "/.venv/", "/runs/", "__pycache__/", "*.pyc")
"""What of the user's folder stays at home, besides what its .gitignore names."""
UNITS = {"CPU": "CPU", "GPU": "GPU", "memory": "GB of memory"}


def import_ray() -> Any:
    """Ray, or the command that installs it."""
    try:
        return importlib.import_module("ray")
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingDependency("--launcher ray", "ray") from None


class RayCluster:
    """A connection to a cluster; one that nobody named is started here and ended with it."""

    def __init__(self, config: RayConfig) -> None:
        self._folder: Path | None = None
        self._replaced: dict[str, str | None] = {}
        self._own = "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
        self.started = self._own and not config.address
        """Whether this is a cluster of our own on this machine."""
        if self.started:
            # Before the import: Ray reads it then.
            self._set("RAY_AUTH_MODE", "token")
            self._set("RAY_AUTH_TOKEN", secrets.token_hex(32))
            self._set("RAY_USAGE_STATS_ENABLED", "0")
            # Ray's processes yield to all others, and so would ours: to the trainer beside them.
            self._set("RAY_worker_niceness", "0")
        try:
            self.ray = import_ray()
            if self.started:
                self._require_token()
        except BaseException:
            self._put_back()
            raise
        if not self._own:
            return
        try:
            with _signals_kept():
                if self.started:
                    self._start(config)
                else:
                    self._connect(config)
        except BaseException:
            self.close()
            raise

    def _require_token(self) -> None:
        """Has Ray ask for our token, also where it was imported before that was said."""
        raylet = importlib.import_module("ray._raylet")
        try:
            _read_environment_again()
            asks = raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN
        except AttributeError:
            asks = False
        if not asks:
            raise RunError(
                "--launcher ray: expected a Ray that lets only this run into a cluster that it "
                f"starts, got {self.ray.__version__}, which does not ask for tokens. Start a "
                "cluster yourself and name it (--address), or install another version of Ray."
            )

    def _start(self, config: RayConfig) -> None:
        """A cluster of this machine alone, which only this run may talk to."""
        self._folder = Path(tempfile.mkdtemp(prefix="srl-ray-"))
        self._init(
            config,
            address="local",
            include_dashboard=False,
            _node_ip_address=LOOPBACK,
            _temp_dir=str(self._folder),
        )

    def _connect(self, config: RayConfig) -> None:
        try:
            self._init(config, address=config.address)
        except (ConnectionError, TimeoutError) as error:
            raise RunError(
                f"ray.address: expected a Ray cluster at {config.address!r}, got none ({error}). "
                "Start one with `ray start --head`, or leave the address out: then one is started "
                "on this machine."
            ) from None

    def _init(self, config: RayConfig, **options: Any) -> None:
        try:
            self.ray.init(
                runtime_env=runtime_environment(config),
                namespace="srl",
                logging_level=logging.WARNING,
                log_to_driver=False,
                **options,
            )
        except ValueError as error:
            if "exceeds" not in str(error) and "size" not in str(error):
                raise
            raise ConfigError(
                f"ray.working_dir: expected a folder of code that Ray can send to every node, got "
                f"{Path(config.working_dir).resolve()}: {error} Name a smaller folder, or none."
            ) from None

    @property
    def bind(self) -> str:
        """This machine's address, as the nodes of the cluster reach it."""
        if self.started:
            return LOOPBACK
        if not self.ray.util.client.ray.is_connected():
            return str(self.ray.util.get_node_ip_address())
        # A client is outside of the cluster: what counts is the way there.
        node = next(node for node in self.ray.nodes() if node["Alive"])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((node["NodeManagerAddress"], 1))
            return str(probe.getsockname()[0])

    def close(self) -> None:
        """Leaves the cluster, and ends it where it is our own."""
        if self._own and self.ray.is_initialized():
            with _signals_kept():
                self.ray.shutdown()
        self._put_back()
        if self.started:
            _read_environment_again()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _put_back(self) -> None:
        for name, value in self._replaced.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _set(self, name: str, value: str) -> None:
        self._replaced[name] = os.environ.get(name)
        os.environ[name] = value


def _read_environment_again() -> None:
    """Has Ray forget the way of authentication and the token that it found first."""
    raylet = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def runtime_environment(config: RayConfig) -> dict[str, Any]:
    """What Ray sets up on a node before agents run there: the user's code, and this very SRL."""
    package = Path(__file__).parents[1]
    environment: dict[str, Any] = {
        "py_modules": [str(package), *(str(Path(p).resolve()) for p in config.py_modules)],
        "env_vars": dict(config.env_vars),
    }
    if config.pip:
        environment["pip"] = list(config.pip)
    if config.working_dir:
        folder = Path(config.working_dir).resolve()
        if not folder.is_dir():
            raise ConfigError(f"ray.working_dir: expected a folder, got {config.working_dir!r}.")
        environment["working_dir"] = str(folder)
        environment["excludes"] = list(NOT_SENT)
        environment["env_vars"][SENT_FROM] = str(folder)
    return environment


@contextmanager
def _signals_kept() -> Iterator[None]:
    """Ray takes SIGTERM for itself; here it stays with the run."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def bundle(resources: ResourceConfig) -> dict[str, float]:
    """What a host needs, in Ray's words; Ray gives parts of one GPU, and no parts of several."""
    gpus = resources.gpus if resources.gpus <= 1.0 else math.ceil(resources.gpus)
    wanted = {
        "CPU": resources.cpus,
        "GPU": gpus,
        "memory": resources.memory_gb * GIGABYTE,
    }
    return {name: amount for name, amount in wanted.items() if amount} or {"CPU": 0.001}


def explain_missing(
    wanted: Mapping[str, float], nodes: Sequence[Mapping[str, float]], free: Mapping[str, float]
) -> str:
    """Which resources a host waits for: what it needs, and what there is.

    `nodes` are the resources of each living node, `free` what the whole cluster has left.
    """
    needs = " and ".join(_amount(name, amount) for name, amount in wanted.items())
    missing = []
    for name, amount in wanted.items():
        largest = max((node.get(name, 0.0) for node in nodes), default=0.0)
        total = sum(node.get(name, 0.0) for node in nodes)
        left = free.get(name, 0.0)
        unit = UNITS.get(name, name)
        if largest < amount:
            largest_has = f"the largest of {len(nodes)} has {_number(name, largest)}"
            missing.append(f"no node has {_amount(name, amount)} ({largest_has})")
        elif left < amount:
            missing.append(f"{_number(name, left)} of {_number(name, total)} {unit} are free")
    if not missing:
        missing = ["there is enough in the cluster, but not on one node at the moment"]
    return f"needs {needs}; {', '.join(missing)}"


def _number(name: str, amount: float) -> str:
    return f"{amount / GIGABYTE if name == 'memory' else amount:.3g}"


def _amount(name: str, amount: float) -> str:
    return f"{_number(name, amount)} {UNITS.get(name, name)}"
