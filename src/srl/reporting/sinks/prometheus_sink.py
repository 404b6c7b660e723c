"""Answers Prometheus, which fetches the newest metrics of a run from a port on loopback."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

from srl.reporting.sinks.prometheus_names import LABELS, families, prometheus_name
from srl.reporting.sinks.sink import Ended, Say, SinkOrder

ADDRESS = "127.0.0.1"


class PrometheusSink:
    """An HTTP server on loopback with the last line of metrics."""

    tracker_id = ""

    def __init__(self, order: SinkOrder, say: Say) -> None:
        from prometheus_client import CollectorRegistry

        self._run = order.name
        self._values: dict[str, float] = {}
        self._wall = 0.0
        self._meanings = families()
        registry = CollectorRegistry(auto_describe=False)
        registry.register(self)
        self._server = _serve(order.prometheus_port, registry)
        self.port: int = self._server.server_port
        taken = order.prometheus_port not in (0, self.port)
        why = f" (port {order.prometheus_port} is taken)" if taken else ""
        say(f"metrics are at http://{ADDRESS}:{self.port}/metrics{why}")

    def write(self, values: dict[str, float], wall: float, step: int) -> None:
        """Keeps the newest metrics for the next request."""
        # One assignment each: requests are answered in other threads.
        self._values, self._wall = values, wall

    def collect(self) -> Iterator[Any]:
        """The samples of one answer, by name; `prometheus_client` calls this."""
        from prometheus_client.core import GaugeMetricFamily

        samples: dict[str, list[tuple[dict[str, str], float]]] = {}
        for key, value in self._values.items():
            name = prometheus_name(key)
            if name is not None:
                samples.setdefault(name.family, []).append((name.labels, value))
        samples["srl_time_seconds"] = [({}, self._wall)]
        for family, rows in samples.items():
            metric = GaugeMetricFamily(family, self._meanings[family], labels=LABELS)
            for labels, value in rows:
                labelled = {"run": self._run, **labels}
                metric.add_metric([labelled.get(label, "") for label in LABELS], value)
            yield metric

    def close(self, ended: Ended) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._server.server_close()


def _serve(port: int, registry: Any) -> Any:
    """Starts a server in threads of its own."""
    from prometheus_client import start_http_server

    try:
        return start_http_server(port, ADDRESS, registry)[0]
    except OSError as error:
        if error.errno != errno.EADDRINUSE or not port:
            raise
    return start_http_server(0, ADDRESS, registry)[0]
