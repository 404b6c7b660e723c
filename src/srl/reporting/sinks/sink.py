"""What a sink is: a program that gets the metrics of a run, in a process of its own."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Protocol

import msgspec
import yaml

from srl.data.tree import flatten
from srl.extras import import_extra
from srl.files import read_limited
from srl.settings import MAX_CONFIG_BYTES

Ended = Literal["finished", "stopped", "failed", "lost"]
"""How a run ended; `lost` if its controller died."""
SINK_PACKAGES = {"wandb": "wandb", "mlflow": "mlflow", "prometheus": "prometheus_client"}
"""The package that each sink needs, by the sink's name."""

_SEED = re.compile(r"seed\d+")


class SinkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """What a sink's process has to know about its run."""

    sink: str
    run_dir: str
    project: str
    prometheus_port: int

    @property
    def path(self) -> Path:
        """The run directory."""
        return Path(self.run_dir)

    @property
    def name(self) -> str:
        """The run's name in the tracker: that of its folder, and of the one above for a seed."""
        path = self.path
        return f"{path.parent.name}/{path.name}" if _SEED.fullmatch(path.name) else path.name

    def settings(self) -> dict[str, Any]:
        """All settings of the run, by dotted key."""
        text = read_limited(self.path / "config.yaml", MAX_CONFIG_BYTES)
        return flatten(yaml.safe_load(text))


class Sink(Protocol):
    """Gets the lines of metrics.jsonl in their order."""

    tracker_id: str
    """The run's id in the tracker, with which a resumed run goes on there; may be empty."""

    def write(self, values: dict[str, float], wall: float, step: int) -> None:
        """Takes the metrics of one line: by name, with Unix time and environment steps."""
        ...

    def close(self, ended: Ended) -> None:
        """Sends what is left, and says how the run ended."""
        ...


Say = Callable[[str], None]
"""Tells the user something, once."""


def open_sink(order: SinkOrder, tracker_id: str, say: Say) -> Sink:
    """Imports a sink's package and opens the sink; `tracker_id` is that of the run before a
    resume."""
    package = import_extra(SINK_PACKAGES[order.sink], f"logging.sinks: {order.sink}")
    match order.sink:
        case "wandb":
            from srl.reporting.sinks.wandb_sink import WandbSink

            return WandbSink(package, order, tracker_id)
        case "mlflow":
            from srl.reporting.sinks.mlflow_sink import MlflowSink

            return MlflowSink(order, tracker_id)
        case _:
            from srl.reporting.sinks.prometheus_sink import PrometheusSink

            return PrometheusSink(order, say)
