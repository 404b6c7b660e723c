import json
import re

from srl.bridge.counters import REPORTED
from srl.services.messages import Episodes, Evaluation, Update
from srl.services.metric_names import MetricNames
from srl.services.metric_table import METRICS
from srl.services.metrics import Collector, LoggingConfig
from srl.services.tensorboard import tag
from srl.services.worker_times import WorkerTimes
from srl.streams.sample_queue import DROP_REASONS

NAMES = MetricNames(
    {"red": ("tank_*", "jet_*"), "blue": ("b",)}, ["red", "blue"], actors=("main", "hard")
)
DECLARED = [re.sub(r"<\w+>", ".+", re.escape(name)) for name in METRICS]


def undeclared(names):
    plain = [re.sub(r"^policies\.\w+\.", "", name) for name in names]
    return [name for name in plain if not any(re.fullmatch(one, name) for one in DECLARED)]


def test_every_metric_of_a_line_is_declared(tmp_path):
    collector = Collector(tmp_path, LoggingConfig(sinks=()), NAMES)
    collector.between_hosts = lambda: {"between_hosts.resent": 1.0}
    collector.tick(100.0)
    for policy in ("red", "blue"):
        agents = [0, 1] if policy == "red" else [0, 0]
        returns = [1.0, 2.0]
        collector.add(Update("trainer/0", policy, 1, 100, 100, 0.5, 1.0, 0.1, {"loss": 1.0}))
        collector.add(Episodes("actor/0", policy, returns, [1, 2], {"goals": [1.0]}, agents))
        collector.add(Evaluation("evaluator/0", policy, 1, 1, returns, [1, 2], agents))
    kept = {"inserted": 8.0, "stored": 8.0, "sampled": 4.0, "lost": 0.0}
    collector.observe(
        [
            WorkerTimes(kind="actor", name="actor/0", busy_seconds=1.0, waits={"slots": 0.5}),
            WorkerTimes(kind="replay", name="replay/0", counters=kept),
        ]
    )
    assert collector.tick(110.0)
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert undeclared(line) == []
    seen = {re.sub(r"^policies\.\w+\.", "", name) for name in line}
    last = {"samples", "updates", "between_hosts", "actions", "env_failures"}
    rest = [
        one for name, one in zip(METRICS, DECLARED, strict=True) if name.split(".")[0] not in last
    ]
    assert not [one for one in rest if not any(re.fullmatch(one, name) for name in seen)]


def test_counters_of_bridges_and_reasons_of_drops_are_declared():
    waits = [name.replace("_ns", "_seconds") for name in REPORTED]
    assert undeclared(f"between_hosts.{name}" for name in waits) == []
    meaning = METRICS["samples.<stream>.dropped.<reason>"].meaning
    assert [reason for reason in DROP_REASONS if f"`{reason}`" not in meaning] == []


def test_every_metric_without_a_dot_has_a_section_of_tensorboard():
    plain = [
        n for n in METRICS if "." not in n and n not in ("window_full", "time", "env_failures")
    ]
    assert [name for name in plain if tag(name).startswith("more/")] == []
