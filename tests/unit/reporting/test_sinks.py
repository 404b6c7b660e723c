"""Sinks in processes of their own: what trackers get, and sinks that fail, hang or are killed."""

from __future__ import annotations

import json
import os
import re
import signal
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from srl.errors import ConfigError, MissingDependency
from srl.extras import EXTRA_OF
from srl.reporting.sinks import supervisor
from srl.reporting.sinks.prometheus_names import families, prometheus_name
from srl.reporting.sinks.sink import SINK_PACKAGES
from srl.reporting.sinks.supervisor import Sinks, check_sinks
from srl.services.messages import Episodes, Evaluation, Update
from srl.services.metric_names import MetricNames
from srl.services.metrics import SINKS, Collector, LoggingConfig
from srl.services.worker_times import WorkerTimes

LIMIT_SECONDS = 120.0
DASHBOARD = Path(supervisor.__file__).with_name("grafana.json")


class Run:
    """A run directory whose metrics are written line by line, and the sinks that follow it."""

    def __init__(self, path: Path, sink: str, **settings: Any) -> None:
        path.mkdir(exist_ok=True)
        (path / "config.yaml").write_text("seed: 7\nalgorithm: {name: ppo, learning_rate: 0.5}\n")
        self.path = path
        self.told: list[tuple[str, str, str]] = []
        config = LoggingConfig(sinks=(sink,), **settings)
        names = MetricNames({"red": ("a_*", "b_*"), "blue": ("c",)}, ["red", "blue"])
        self.collector = Collector(path, LoggingConfig(sinks=()), names)
        self.sinks = Sinks(path, config, lambda *said: self.told.append(said))

    def write(self, steps: int) -> None:
        self.collector.add(Update("t", "red", steps // 10, steps, steps, 1.0, 2.0, 0.1, {"x": 0.5}))
        self.collector.add(Episodes("a", "red", [2.0, 4.0], [5, 5], {"goals": [1, 2]}, [0, 1]))
        self.collector.add(Evaluation("e", "blue", 3, 3, [7.0], [7]))
        self.collector.observe(
            [WorkerTimes(kind="actor", name="a", busy_seconds=steps, waits={"slots": 1.0})]
        )
        self.collector.between_hosts = lambda: {"between_hosts.resent": 1.0}
        self.collector.tick(float(steps), force=True)

    def until(self, condition: Callable[[], Any]) -> Any:
        deadline = time.monotonic() + LIMIT_SECONDS
        while True:
            self.sinks.look()
            if found := condition():
                return found
            assert time.monotonic() < deadline, self.told
            time.sleep(0.02)

    def position(self, sink: str) -> dict[str, Any]:
        at = self.path / "sinks" / f"{sink}.json"
        return json.loads(at.read_text()) if at.exists() else {"offset": 0, "tracker_id": ""}

    def until_sent(self, sink: str) -> None:
        size = (self.path / "metrics.jsonl").stat().st_size
        self.until(lambda: self.position(sink)["offset"] == size)

    def process(self) -> psutil.Process:
        def found() -> psutil.Process | None:
            children = psutil.Process().children()
            return next((c for c in children if supervisor._MODULE in c.cmdline()), None)

        return self.until(found)

    @property
    def warnings(self) -> list[str]:
        return [f"{who}: {text}" for level, who, text in self.told if level == "warning"]


@pytest.fixture(autouse=True)
def no_process_is_left() -> Any:
    yield
    assert not [c for c in psutil.Process().children() if supervisor._MODULE in c.cmdline()]


def scrape(run: Run) -> str:
    text = run.until(lambda: next((t for _, _, t in run.told if "http://" in t), ""))
    address = re.search(r"http://\S+", text)
    assert address is not None
    assert address[0].startswith("http://127.0.0.1:")
    with urllib.request.urlopen(address[0], timeout=LIMIT_SECONDS) as answer:
        return answer.read().decode()


def test_prometheus_gets_every_metric_and_the_dashboard_shows_only_those(tmp_path: Path) -> None:
    run = Run(tmp_path / "seed3", "prometheus", prometheus_port=0)
    run.write(100)
    run.write(200)
    run.until_sent("prometheus")
    text = scrape(run)
    name = f"{tmp_path.name}/seed3"
    assert f'srl_env_steps{{kind="",name="",policy="",run="{name}",side="",what=""}} 200.0' in text
    labels = f'kind="",name="x",policy="red",run="{name}",side="",what=""'
    assert f"srl_train{{{labels}}} 0.5" in text
    labels = f'kind="",name="",policy="red",run="{name}",side="b_*",what=""'
    assert f"srl_episode_return_mean{{{labels}}} 4.0" in text
    labels = f'kind="actor",name="",policy="",run="{name}",side="",what="slots"'
    assert f"srl_worker_wait_seconds{{{labels}}} 1.0" in text
    run.sinks.finish("finished")

    exported = set(re.findall(r"^# TYPE (\w+) gauge$", text, re.M))
    assert exported <= set(families())
    board = json.loads(DASHBOARD.read_text())
    shown = set(re.findall(r"\bsrl_\w+", json.dumps(board["panels"] + board["templating"]["list"])))
    assert len(shown) > 10
    assert shown <= exported
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    unknown = {key for key in lines[-1] if prometheus_name(key) is None}
    assert {key.rpartition(".")[2] for key in unknown} == {"time", "window_full"}


def test_a_port_that_is_taken_is_replaced_and_said(tmp_path: Path) -> None:
    one = Run(tmp_path / "a", "prometheus", prometheus_port=0)
    one.write(1)
    one.until_sent("prometheus")
    port = int(re.search(r":(\d+)/", one.told[0][2])[1])  # type: ignore[index]
    other = Run(tmp_path / "b", "prometheus", prometheus_port=port)
    other.write(2)
    assert 'run="b"' in scrape(other)
    assert f"port {port} is taken" in other.told[0][2]
    other.sinks.close()
    one.sinks.close()


@pytest.mark.slow
def test_mlflow_has_the_curves_and_settings_in_its_file_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    run = Run(tmp_path / "run", "mlflow", project="games")
    run.write(100)
    run.until_sent("mlflow")
    tracker_id = run.position("mlflow")["tracker_id"]
    run.sinks.finish("stopped")

    resumed = Run(tmp_path / "run", "mlflow", project="games")
    resumed.write(200)
    resumed.sinks.look()
    resumed.sinks.finish("finished")
    assert not run.warnings + resumed.warnings

    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    from mlflow.tracking import MlflowClient

    client = MlflowClient((tmp_path / "mlruns").as_uri())
    found = client.get_run(tracker_id)
    assert found.info.status == "FINISHED"
    assert found.info.run_name == "run"
    assert found.data.params["algorithm.learning_rate"] == "0.5"
    assert client.get_experiment(found.info.experiment_id).name == "games"
    curve = client.get_metric_history(tracker_id, "policies.red.train.x")
    assert [(point.step, point.value) for point in curve] == [(100, 0.5), (200, 0.5)]
    side = client.get_metric_history(tracker_id, "policies.red.agents.b__.episode_return_mean")
    assert [point.value for point in side] == [4.0, 4.0]


@pytest.mark.slow
def test_wandb_keeps_the_curves_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    run = Run(tmp_path / "run", "wandb", project="games")
    run.write(100)
    run.write(200)
    run.until_sent("wandb")
    children = run.process().children(recursive=True)
    run.sinks.finish("finished")
    assert not run.warnings
    assert not psutil.wait_procs(children, LIMIT_SECONDS)[1]

    from wandb.proto import wandb_internal_pb2
    from wandb.sdk.internal.datastore import DataStore

    (file,) = (run.path / "wandb").glob("offline-run-*/run-*.wandb")
    store, records = DataStore(), []
    store.open_for_scan(str(file))
    while (data := store.scan_data()) is not None:
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        records.append(record)
    (start,) = [r.run for r in records if r.HasField("run")][:1]
    assert (start.project, start.display_name) == ("games", "run")
    assert start.run_id == run.position("wandb")["tracker_id"]
    points = [
        {item.key or item.nested_key[0]: json.loads(item.value_json) for item in r.history.item}
        for r in records
        if r.HasField("history")
    ]
    assert [(p["env_steps"], p["policies.red.train.x"]) for p in points] == [(100, 0.5), (200, 0.5)]


def test_a_sink_that_is_killed_is_told_once(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "prometheus", prometheus_port=0)
    run.write(1)
    run.until_sent("prometheus")
    run.process().kill()
    run.until(lambda: run.warnings)
    for _ in range(5):
        run.sinks.look()
    run.sinks.finish("finished")
    (warning,) = run.warnings
    assert warning.startswith("sink prometheus: killed by SIGKILL. Training goes on")


def test_a_sink_that_hangs_is_told_once_and_killed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "SILENT_SECONDS", 0.1)
    run = Run(tmp_path / "run", "prometheus", prometheus_port=0)
    run.write(1)
    run.until_sent("prometheus")
    process = run.process()
    process.send_signal(signal.SIGSTOP)
    run.until(lambda: run.warnings)
    run.sinks.look()
    run.sinks.finish("finished")
    (warning,) = run.warnings
    assert "silent for" in warning
    assert "Training goes on" in warning
    assert not process.is_running()


def test_a_sink_that_does_not_end_is_killed_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(supervisor.END_SECONDS, "finished", 0.1)
    run = Run(tmp_path / "run", "prometheus", prometheus_port=0)
    run.write(1)
    run.until_sent("prometheus")
    run.process().send_signal(signal.SIGSTOP)
    run.sinks.finish("finished")
    assert run.warnings == [
        "sink prometheus: did not end within 0.1 s: its last points may be missing"
    ]


def test_a_sink_that_fails_says_why_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nosuchstore://x")
    run = Run(tmp_path / "run", "mlflow")
    run.write(1)
    run.until(lambda: run.warnings)
    run.sinks.finish("finished")
    (warning,) = run.warnings
    assert warning.startswith("sink mlflow: failed: ")
    assert "nosuchstore" in warning
    assert "nosuchstore" in (run.path / "logs" / "sink-mlflow.log").read_text()


def test_a_sink_ends_when_its_controller_has_died(tmp_path: Path) -> None:
    run = Run(tmp_path / "run", "prometheus", prometheus_port=0)
    run.write(1)
    run.until_sent("prometheus")
    process = run.process()
    (sink,) = run.sinks._running
    assert sink._process.stdin is not None
    sink._process.stdin.close()
    process.wait(LIMIT_SECONDS)
    run.sinks.close()


def test_unknown_sinks_and_missing_packages_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"no sink is named 'wandbb': did you mean 'wandb'\?"):
        LoggingConfig(sinks=("wandbb",))
    with pytest.raises(ConfigError, match="each sink once"):
        LoggingConfig(sinks=("wandb", "wandb"))
    monkeypatch.setattr("srl.extras.installed", lambda package: False)
    check_sinks(("tensorboard",))
    for sink, package in SINK_PACKAGES.items():
        with pytest.raises(MissingDependency, match=rf"really-scalable-rl\[{EXTRA_OF[package]}\]"):
            check_sinks((sink,))
    assert set(SINKS) == {"tensorboard", *SINK_PACKAGES}


def test_tensorboard_on_a_full_disk_does_not_end_the_run(tmp_path: Path) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    collector = Collector(tmp_path, LoggingConfig(), MetricNames({"one": None}, ["one"]))
    collector.tick(0.0)
    events = collector._events
    assert events is not None
    events._records._writer = open("/dev/full", "wb", buffering=0)  # noqa: SIM115
    for now in (10.0, 20.0):
        collector.tick(now)
    (note,) = collector.notes
    assert "TensorBoard curves end here (No space left on device)" in note.text
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 3
