"""Names and labels of SRL's metrics in Prometheus.

Prometheus wants few names and many labels: `policies.red.train.loss` is
`srl_train{policy="red",name="loss"}`, and `workers.actor.wait.slots` is
`srl_worker_wait{kind="actor",what="slots"}`.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from srl.services.metric_table import METRICS

LABELS = ("run", "policy", "side", "kind", "what", "name")
"""Every sample has all labels; those that say nothing about it are empty."""
_OPEN = {
    "train": "A metric of the algorithm.",
    "episode": "What the environment reports at the end of episodes.",
    "between_hosts": "Counters of the bridges between hosts.",
}
"""Sections whose metrics have names that SRL does not know."""
_NOT_EXPORTED = ("time", "window_full", "env_failures")
"""Not numbers that change during a run, or known only at its end."""
_PREFIX = re.compile(r"(?:policies\.(?P<policy>[^.]+)\.)?(?:agents\.(?P<side>.+)\.(?=[^.]+$))?")
_WORKER = re.compile(
    r"(?P<family>workers|worker_seconds)\.(?P<kind>.+?)\.(?:wait\.(?P<what>.+)|(?P<plain>busy|workers))"
)


@dataclass(frozen=True)
class PrometheusName:
    """Where a metric of SRL is in Prometheus."""

    family: str
    labels: dict[str, str]


@functools.cache
def families() -> dict[str, str]:
    """The meaning of every name that SRL exports."""
    found = {
        f"srl_{name}": metric.meaning
        for name, metric in METRICS.items()
        if "." not in name and name not in _NOT_EXPORTED
    }
    found |= {f"srl_{name}": meaning for name, meaning in _OPEN.items()}
    return found | {
        "srl_time_seconds": "When the metrics were measured, in seconds since 1970.",
        "srl_worker_busy": "Share of the time that workers of a kind worked.",
        "srl_worker_wait": "Share of the time that workers of a kind waited for something.",
        "srl_worker_busy_seconds": "Seconds that workers of a kind worked since the start.",
        "srl_worker_wait_seconds": "Seconds that workers of a kind waited for something.",
        "srl_workers": "Number of workers of a kind.",
    }


def prometheus_name(key: str) -> PrometheusName | None:
    """The name and labels of a metric in a line of metrics.jsonl; None if it is not exported."""
    if (worker := _WORKER.fullmatch(key)) is not None:
        return _worker_name(worker)
    head = _PREFIX.match(key)
    assert head is not None
    labels = {name: value for name, value in head.groupdict().items() if value}
    rest = key[head.end() :]
    section, dot, name = rest.partition(".")
    if dot and section in _OPEN:
        return PrometheusName(f"srl_{section}", {**labels, "name": name})
    family = f"srl_{rest}"
    return PrometheusName(family, labels) if family in families() else None


def _worker_name(found: re.Match[str]) -> PrometheusName:
    labels = {"kind": found["kind"]}
    if found["plain"] == "workers":
        return PrometheusName("srl_workers", labels)
    end = "_seconds" if found["family"] == "worker_seconds" else ""
    if found["what"]:
        return PrometheusName(f"srl_worker_wait{end}", {**labels, "what": found["what"]})
    return PrometheusName(f"srl_worker_busy{end}", labels)
