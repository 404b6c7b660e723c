"""From rounds of results to ratios and a table."""

from __future__ import annotations

import pytest
from compare import parse_result
from ratios import Spread, order, ratios, speeds, table


def record(contender: str, number: int, speed: float | None, **more: float) -> dict:
    return {
        "contender": contender,
        "round": number,
        "ok": speed is not None,
        "reason": "" if speed else "timed out",
        "tail": [] if speed else ["last lines"],
        "result": {"steps_per_second": speed, "layout": {"vec": "x"}, **more} if speed else None,
    }


ROUNDS = [
    record("srl", 1, 300.0, policy_age_mean=1.0, share_of_limit=0.9),
    record("slow", 1, 100.0),
    record("fast", 1, 200.0),
    record("broken", 1, None),
    record("srl", 2, 200.0, policy_age_mean=0.5, share_of_limit=0.8),
    record("slow", 2, 50.0),
    record("fast", 2, None),
    record("broken", 2, None),
    record("srl", 3, 400.0, policy_age_mean=0.9, share_of_limit=0.7, parameters=9155),
    record("slow", 3, 100.0),
    record("fast", 3, 100.0),
    record("broken", 3, None),
]


def test_a_ratio_is_between_results_of_one_round() -> None:
    assert ratios(ROUNDS, "slow") == Spread(4.0, 3.0, 4.0)


def test_a_round_that_failed_has_no_ratio() -> None:
    assert speeds(ROUNDS, "fast") == {1: 200.0, 3: 100.0}
    assert ratios(ROUNDS, "fast") == Spread(2.75, 1.5, 4.0)
    assert ratios(ROUNDS, "broken") is None


def test_ours_is_first_then_the_fastest_and_failures_last() -> None:
    assert order(ROUNDS) == ["srl", "fast", "slow", "broken"]


def test_the_table_leaves_nobody_out() -> None:
    text = "\n".join(table(ROUNDS))
    assert "| srl | 300 (200-400) | - | 3 of 3 | 9,155 |" in text
    assert "| slow | 100 (50-100) | 4.00 (3.00-4.00) | 3 of 3 | not known | `vec=x` |" in text
    assert "| broken | failed | - | 0 of 3 | not known | - |" in text
    assert "policy age of ours: 0.90 (0.50-1.00)" in text
    assert "share of the limit of ours: 0.80 (0.70-0.90)" in text
    assert "round 2, fast failed (timed out): `last lines`" in text


def test_no_numbers_have_no_spread() -> None:
    assert Spread.of([]) is None


@pytest.mark.parametrize(
    ("lines", "speed"),
    [
        (['{"steps_per_second": 5}'], 5),
        (["chatter", '{"steps_per_second": 5}', "{not json", "goodbye"], 5),
        (['{"steps_per_second": 4}', '{"steps_per_second": 5}'], 5),
        (['{"steps_per_second": null}', "Traceback"], None),
        ([], None),
    ],
)
def test_the_last_line_with_a_speed_counts(lines: list[str], speed: float | None) -> None:
    found = parse_result(lines)
    assert (found and found["steps_per_second"]) == speed
