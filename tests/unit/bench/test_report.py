"""Results as records, tables and text."""

from __future__ import annotations

import dataclasses
import json

from srl.bench.bench import BenchResult, Bound, Round, as_record, settled
from srl.bench.limit import Costs, limit_of
from srl.bench.report import describe, markdown, settings_line
from srl.bench.trial import Rate
from srl.bench.workloads import find_target

COSTS = Costs(env=1e-5, inference=2e-5, training=7e-5, collect_chain=1e-6, train_chain=1e-6)


def round_of(rate: float, load: float = 0.0) -> Round:
    return Round(
        env_only=100_000.0,
        with_inference=50_000.0,
        training=Rate(
            steps_per_second=rate,
            seconds=60.0,
            policy_age_mean=0.9,
            workers={"trainer": {"busy": 0.8, "samples": 0.2}},
            bottleneck="the trainer is the limit",
            core_seconds={"trainer": 8e-5, "actor": 4e-5},
            idle_cores=0.07,
        ),
        bound=Bound(costs=COSTS, limit=limit_of(COSTS, 2), before=21_000.0, after=20_000.0),
        other_load=load,
    )


def result_of(*rounds: Round) -> BenchResult:
    experiment, _ = settled(find_target("W1a", "inline", {}))
    return BenchResult(
        workload="W1a", experiment=experiment, cores=2, parameters=9155, rounds=rounds
    )


def test_a_record_has_medians_and_what_is_needed_to_repeat_it() -> None:
    record = as_record(result_of(round_of(9_000), round_of(12_000), round_of(10_000)))
    json.dumps(record)
    wanted = {
        "workload": "W1a",
        "layout": "inline",
        "steps_per_second": 10_000,
        "env_only": 100_000,
        "with_inference": 50_000,
        "limit": 20_000,
        "share_of_limit": 0.5,
        "policy_age_mean": 0.9,
    }
    assert {key: record[key] for key in wanted} == wanted
    assert record["counts"]["actor.envs"] == 64
    assert record["versions"]["torch"]
    assert record["costs_microseconds"]["training"] == 70


def test_a_table_says_how_far_from_the_limit_and_why() -> None:
    record = as_record(result_of(round_of(10_000), round_of(11_000)))
    text = describe(record)
    for part in ("20,000", "52%", "set by cores", "the trainer is the limit", "samples 20%"):
        assert part in text
    assert "actor 40.0, trainer 80.0: 120.0 core-us together where the limit counts 100.0" in text
    idle = next(line for line in text.splitlines() if "cores idle" in line)
    assert idle.endswith(" 7%")
    assert "not to be quoted" not in text
    assert "(10,000 - 11,000)" in markdown([record])[-1]
    assert "max_grad_norm=0.5" in settings_line(record)


def test_a_busy_machine_is_mentioned() -> None:
    record = as_record(result_of(dataclasses.replace(round_of(10_000), other_load=0.4)))
    assert "40%" in describe(record)
    assert "quiet" in describe(record)
    assert record["doubtful"] == ["other programs used 40% of the machine"]


def test_limits_that_disagree_are_flagged() -> None:
    whole = round_of(10_000)
    assert as_record(result_of(whole))["doubtful"] == []
    assert whole.bound is not None
    apart = dataclasses.replace(whole.bound, before=20_000.0, after=24_000.0)
    record = as_record(result_of(dataclasses.replace(whole, bound=apart)))
    assert record["limit_disagreement"] == 0.2
    assert "the limits before and after training differ by 20%" in describe(record)


def test_what_was_not_measured_is_null_in_the_record_and_not_in_the_text() -> None:
    plain = dataclasses.replace(round_of(10_000), env_only=None, with_inference=None, bound=None)
    record = as_record(result_of(plain))
    json.dumps(record)
    missing = ("env_only", "with_inference", "limit", "share_of_limit", "costs_microseconds")
    assert {key: record[key] for key in missing} == dict.fromkeys(missing)
    assert record["steps_per_second"] == 10_000
    text = describe(record)
    assert "10,000 steps/s" in text
    assert "set by" not in text
    assert "share of the limit" not in text
    assert "| - | - | 10,000 | - | - |" in markdown([record])[-1]
