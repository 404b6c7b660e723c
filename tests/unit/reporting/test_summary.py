import json
import os
from types import SimpleNamespace

import pytest

from srl.errors import RunError
from srl.reporting.bottleneck import Machine, diagnose
from srl.reporting.summary import Summary, read_summary, summarise, write_summary
from srl.services.messages import Episodes, Update
from srl.services.metric_names import MetricNames
from srl.services.metrics import Collector, LoggingConfig
from srl.services.worker_times import WorkerTimes

ONE = MetricNames({"agent": ("agent",)}, ["agent"])


def measured(tmp_path):
    collector = Collector(tmp_path, LoggingConfig(sinks=()), ONE)
    collector.tick(0.0)
    collector.add(Update("trainer/0", "agent", 9, 5000, 5000, 0.5, 1.0, 0.1, {"loss": 0.2}))
    collector.add(Episodes("actor/0", "agent", [10.0, 30.0], [10, 30]))
    collector.tick(10.0)
    times = [
        WorkerTimes(kind="actor", name="a", busy_seconds=9.0, waits={"inference": 1.0}),
        WorkerTimes(kind="trainer", name="t", busy_seconds=2.0, waits={"samples": 8.0}),
    ]
    snapshot = collector.snapshot()
    results = ONE.results(snapshot, {"agent": SimpleNamespace(number=4)})
    return snapshot, results, times, diagnose(times, Machine(2, 10.0), {"actor.count": 1})


def test_the_summary_has_what_was_measured(tmp_path):
    summary = summarise(
        "finished",
        *measured(tmp_path),
        observed_seconds=10.0,
        reason="steps reached",
    )
    write_summary(tmp_path, summary)
    plain = json.loads((tmp_path / "summary.json").read_text())
    assert plain["status"] == "finished"
    assert plain["env_steps"] == 5000
    assert plain["seconds"] == 10.0
    assert plain["env_steps_per_second"] == 500.0
    assert plain["episodes"] == 2
    assert plain["episode_return_mean"] == 20.0
    assert plain["policy_version"] == 9
    assert plain["policy_age_mean"] == 0.5
    assert plain["workers"]["trainer"] == {
        "busy": 0.2,
        "waits": {"samples": 0.8},
        "waited_for": "samples",
    }
    assert plain["bottleneck_setting"] == "actor.count=2"
    assert "environments are the limit" in plain["bottleneck"]
    assert plain["best_checkpoint"] == 4
    assert plain["error"] is None
    assert plain["metrics"]["train.loss"] == 0.2
    assert plain["policies"]["agent"]["episode_return_mean"] == 20.0
    assert read_summary(tmp_path) == summary


def test_shares_are_of_the_time_since_a_resume(tmp_path):
    snapshot, results, _, diagnosis = measured(tmp_path)
    times = [
        WorkerTimes(kind="actor", name="a", process="actor-0", busy_seconds=50.0),
        WorkerTimes(kind="policy", name="p", process="actor-0", busy_seconds=8.0),
    ]
    resumed = {**snapshot, "seconds": 3660.0}
    summary = summarise("finished", resumed, results, times, diagnosis, observed_seconds=60.0)
    assert summary.seconds == 3660.0
    assert summary.workers["actor"].busy == pytest.approx(50 / 60)
    assert summary.workers["policy"].busy == pytest.approx(8 / 60)


def test_a_summary_is_replaced_whole_or_not_at_all(tmp_path, monkeypatch):
    write_summary(tmp_path, Summary(status="stopped", env_steps=1))
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left")))
    with pytest.raises(RunError, match=r"summary.json: cannot write .*No space left"):
        write_summary(tmp_path, Summary(status="failed", error="x"))
    monkeypatch.undo()
    assert read_summary(tmp_path).status == "stopped"
    assert os.listdir(tmp_path) == ["summary.json"]


def test_what_is_not_a_summary_is_named(tmp_path):
    with pytest.raises(RunError, match="Is this a run that has ended"):
        read_summary(tmp_path)
    (tmp_path / "summary.json").write_text('{"status": "great"}')
    with pytest.raises(RunError, match="expected a summary, got something else"):
        read_summary(tmp_path)


def test_several_policies_that_learn_have_no_return_together(tmp_path):
    _, _, times, diagnosis = measured(tmp_path)
    snapshot = {
        "seconds": 1.0,
        "env_steps": 10,
        "policies.red.episode_return_mean": 5.0,
        "policies.blue.episode_return_mean": -5.0,
    }

    def summary(learning):
        results = MetricNames({"red": ("a",), "blue": ("b",)}, learning).results(
            snapshot, dict.fromkeys(learning, SimpleNamespace(number=7))
        )
        return summarise("finished", snapshot, results, times, diagnosis, observed_seconds=1.0)

    both = summary(["red", "blue"])
    assert both.episode_return_mean is None
    assert both.best_checkpoint is None
    assert {n: p.episode_return_mean for n, p in both.policies.items()} == {"red": 5, "blue": -5}
    assert {n: p.best_checkpoint for n, p in both.policies.items()} == {"red": 7, "blue": 7}
    one = summary(["blue"])
    assert (one.episode_return_mean, one.best_checkpoint) == (-5.0, 7)
