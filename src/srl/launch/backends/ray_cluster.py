"""Connects to a Ray cluster, sends code there, and explains which resources are missing."""

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

from srl.errors import ConfigError, RunError
from srl.extras import import_extra
from srl.resolve import SENT_FROM
from srl.resources import RayConfig, ResourceConfig

LOOPBACK = "127.0.0.1"
GIGABYTE = 2**30
NOT_SENT = ("/.git/", "/.venv/", "/runs/", "__pycache__/", "*.pyc")
"""Files of the user's folder that are not sent, in addition to those in its .gitignore."""
UNITS = {"CPU": "CPU", "GPU": "GPU", "memory": "GB of memory"}


def import_ray() -> Any:
    """Imports Ray; if it is missing, the error names the command that installs it."""
    return import_extra("ray", "--launcher ray")


class RayCluster:
    """A connection to a Ray cluster. If no address is set, it starts a cluster here and ends it."""

    def __init__(self, config: RayConfig) -> None:
        self._folder: Path | None = None
        self._previous_variables: dict[str, str | None] = {}
        self._own = "ray" not in sys.modules or not sys.modules["ray"].is_initialized()
        self.started = self._own and not config.address
        """Whether this object started the cluster, on this machine."""
        if self.started:
            # Before the import, because Ray reads the environment then.
            self._set_variable("RAY_AUTH_MODE", "token")
            self._set_variable("RAY_AUTH_TOKEN", secrets.token_hex(32))
            self._set_variable("RAY_USAGE_STATS_ENABLED", "0")
            # Ray lowers the priority of its processes, and ours would inherit it. Then the trainer
            # on this machine would get the cores before them.
            self._set_variable("RAY_worker_niceness", "0")
        try:
            self.ray = import_ray()
            if self.started:
                self._require_token()
        except BaseException:
            self._restore_environment()
            raise
        if not self._own:
            return
        try:
            with _kept_signal_handlers():
                if self.started:
                    self._start(config)
                else:
                    self._connect(config)
        except BaseException:
            self.close()
            raise

    def _require_token(self) -> None:
        """Makes Ray require our token, also if Ray was imported before the variables were set."""
        raylet = importlib.import_module("ray._raylet")
        try:
            _read_environment_again()
            asks = raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN
        except AttributeError:
            asks = False
        if not asks:
            raise RunError(
                "--launcher ray: expected a Ray version that can restrict a cluster to this run, "
                f"got {self.ray.__version__}, which does not check tokens. Start a cluster "
                "yourself and name it (--address), or install another version of Ray."
            )

    def _start(self, config: RayConfig) -> None:
        """Starts a cluster on this machine only, to which only this run can connect."""
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
                "Start one with `ray start --head`, or leave the address empty: then SRL starts "
                "one on this machine."
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
        """This machine's address, as the Ray nodes reach it."""
        if self.started:
            return LOOPBACK
        if not self.ray.util.client.ray.is_connected():
            return str(self.ray.util.get_node_ip_address())
        # A Ray client is outside of the cluster, so take the address that leads to a Ray node.
        node = next(node for node in self.ray.nodes() if node["Alive"])
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((node["NodeManagerAddress"], 1))
            return str(probe.getsockname()[0])

    def close(self) -> None:
        """Disconnects from the cluster, and ends it if this object started it."""
        if self._own and self.ray.is_initialized():
            with _kept_signal_handlers():
                self.ray.shutdown()
        self._restore_environment()
        if self.started:
            _read_environment_again()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _restore_environment(self) -> None:
        for name, value in self._previous_variables.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value

    def _set_variable(self, name: str, value: str) -> None:
        self._previous_variables[name] = os.environ.get(name)
        os.environ[name] = value


def _read_environment_again() -> None:
    """Makes Ray read the authentication mode and the token from the environment again."""
    raylet = importlib.import_module("ray._raylet")
    raylet.Config.initialize("")
    raylet.AuthenticationTokenLoader.instance().reset_cache()


def runtime_environment(config: RayConfig) -> dict[str, Any]:
    """What Ray installs on a Ray node before an agent runs there: the user's code and this SRL."""
    package = Path(__file__).parents[2]
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
def _kept_signal_handlers() -> Iterator[None]:
    """Keeps the run's signal handlers, because Ray replaces the one of SIGTERM."""
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
    """The resources of a host in Ray's names. Ray can share one GPU, but not parts of several."""
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
    """The resources that a host waits for, in words: what it needs, and what there is.

    `nodes` has the resources of each living Ray node, `free` what is free in the whole cluster.
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
