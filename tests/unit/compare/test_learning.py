"""Returns out of what contenders print, and what is made of them."""

from __future__ import annotations

from pathlib import Path

import pytest
from contenders import PEERS
from curves import means, missing, places, plot, write_csv
from equal_steps import difference, final_returns, score, shortfalls
from equal_steps import table as equal_table
from records import append, read
from solve import SOLVING, median, table
from workloads import CURVES

from learning import Point, our_equal_command, our_points, parse_point, peer_command, thinned
from srl.cli import make_parser


def test_a_line_of_returns_is_read_and_others_are_not() -> None:
    line = 'RETURN {"env_steps": 10, "mean": 2.5, "episodes": 3}'
    assert parse_point(line) == Point(10, 2.5, 3)
    assert parse_point("RETURN {broken") is None
    assert parse_point("something else") is None


def test_a_task_is_solved_by_a_hundred_episodes_over_the_threshold() -> None:
    assert Point(1, 475.0, 100).solves(475.0)
    assert not Point(1, 474.9, 100).solves(475.0)
    assert not Point(1, 500.0, 99).solves(475.0)


def test_our_returns_come_from_the_metrics(tmp_path: Path) -> None:
    lines = [
        '{"env_steps": 5, "episodes": 0}',
        '{"env_steps": 10, "episodes": 2, "episode_return_mean": 7.5}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert our_points(tmp_path) == [Point(10, 7.5, 2)]
    assert our_points(tmp_path / "none") == []


def test_our_command_is_one_that_srl_knows(tmp_path: Path) -> None:
    for settings, env_steps, _ in CURVES.values():
        command = our_equal_command(settings, env_steps, 3, tmp_path)
        words = command[command.index("train") :]
        parsed = make_parser().parse_args(words)
        assert f"actor.envs={settings.num_envs}" in parsed.set
        assert parsed.seed == 3


def test_a_peer_is_told_what_to_change() -> None:
    command = peer_command("sb3", "cartpole", {"vec": "dummy"}, 2, 500, {"epochs": 9})
    assert command[command.index("--settings") + 1] == '{"epochs": 9}'
    assert command[command.index("--learn") + 1] == "500"


def solved(contender: str, seed: int, seconds: float | None, stopped: float | None = None) -> dict:
    return {"contender": contender, "seed": seed, "seconds": seconds, "stopped_at": stopped}


def test_a_peer_that_was_stopped_counts_as_slower() -> None:
    records = [solved("srl", i, 10.0 * i) for i in (1, 2, 3)]
    records += [solved("fast", 1, 30.0), solved("fast", 2, 60.0), solved("fast", 3, None, 40.0)]
    records += [solved("slow", i, None, 40.0) for i in (1, 2)] + [solved("slow", 3, None)]
    assert median(records[:3]) == 20.0
    text = table(records)
    assert text[2] == "| srl | 10.0 | 20.0 | 30.0 | 20.0 | 1.00 |"
    assert text[3] == "| fast | 30.0 | 60.0 | > 40 | 60.0 | 3.00 |"
    assert text[4] == "| slow | > 40 | > 40 | failed | not solved | - |"


def test_seeds_that_are_done_are_skipped_and_failed_ones_are_not() -> None:
    records = [
        {"contender": "srl", "seed": 1, "ok": True},
        {"contender": "srl", "seed": 2, "ok": False},
    ]
    assert missing(records, [("srl", 1), ("srl", 2), ("sb3", 1)]) == [("srl", 2), ("sb3", 1)]


def test_thinning_keeps_the_last_point() -> None:
    points = [Point(i, 0.0, i) for i in range(1001)]
    found = thinned(points, 100)
    assert len(found) <= 101
    assert found[-1] == [1000, 0.0]
    assert thinned(points[:50], 100) == [[i, 0.0] for i in range(50)]
    assert thinned([]) == []


def test_curves_become_a_table_and_a_picture(tmp_path: Path) -> None:
    records = [
        {"contender": name, "seed": seed, "points": [[1000, 10.0 * seed], [300_000, 400.0]]}
        for name in ("srl", "sb3")
        for seed in (1, 2)
    ]
    write_csv(records, tmp_path / "c.csv")
    lines = (tmp_path / "c.csv").read_text().splitlines()
    assert lines[:2] == ["contender,seed,env_steps,return", "srl,1,1000,10.0"]
    assert len(lines) == 9
    plot(records, "cartpole", tmp_path / "c.png")
    assert (tmp_path / "c.png").read_bytes().startswith(b"\x89PNG")


def test_a_curve_counts_equally_everywhere_along_its_steps() -> None:
    """However many points lie where: here nearly all at the start."""
    early = [[step, 0.0] for step in range(1000, 2000, 10)]
    records = [
        {"contender": "srl", "points": [*early, [2000, 100.0], [300_000, 100.0]]},
        {"contender": "srl", "points": [[2000, 50.0], [300_000, 50.0]]},
        {"contender": "sb3", "points": [[2000, 7.0], [300_000, 7.0]]},
    ]
    assert means(records, "srl", places(records)).tolist() == [100.0, 50.0]


def test_curves_are_compared_as_far_as_all_have_come() -> None:
    """A run that solved its task ended early."""
    records = [
        {"contender": "srl", "points": [[0, 0.0], [1000, 10.0]]},
        {"contender": "sb3", "points": [[0, 0.0], [500, 5.0]]},
    ]
    assert places(records)[-1] == 500
    assert means(records, "srl", places(records)) == means(records, "sb3", places(records))


def test_what_is_not_a_number_is_null_in_the_records(tmp_path: Path) -> None:
    append(tmp_path / "x.jsonl", {"mean": float("nan"), "deep": [{"most": float("inf")}, 1.5]})
    (record,) = read(tmp_path / "x.jsonl")
    assert (record["mean"], record["deep"]) == (None, [{"most": None}, 1.5])
    assert record["machine"]


def test_every_peer_that_solves_a_task_exists_with_settings_that_exist() -> None:
    for task, peers in SOLVING.items():
        for name, (layout, changes) in peers.items():
            changed = CURVES[task][0].replaced(**changes)
            assert changed.minibatch * changed.minibatches == changed.batch
            keys = {key for candidate in PEERS[name].candidates for key in candidate}
            assert set(layout) <= keys


def test_learning_at_equal_steps_is_one_table() -> None:
    """Ours is one above on one task and level on the other; random play is where scores begin."""
    ends = {"srl": [3.0, 5.0], "sb3": [1.0, 3.0], "cleanrl_envpool": [3.0, 5.0], "random": [0.0]}
    records = [
        {"contender": name, "seed": seed, "points": [[1000, -7.0], [2000, value]]}
        for name, values in ends.items()
        for seed, value in enumerate(values, 1)
    ]
    returns = final_returns(records, seeds=2)
    assert final_returns(records, seeds=1)["srl"].tolist() == [3.0]
    assert returns["srl"].tolist() == [3.0, 5.0]
    assert difference(returns["srl"], returns["sb3"]) == pytest.approx(2.0 / 2**0.5)
    assert score(returns, "sb3") == 2.0
    text = equal_table({"acrobot": returns, "hopper": {**returns, "sb3": returns["srl"]}})
    assert text[2] == "| acrobot | 100k | 0 | 4 ± 1 | 2 ± 1 | 4 ± 1 | +1.4 | +0.0 |"
    assert "Mean score over tasks beside Stable-Baselines3 (1: equal): 1.50." in text
    assert not shortfalls({"acrobot": returns})
    worse = {**returns, "srl": returns["srl"] - 5.0}
    assert shortfalls({"acrobot": worse}) == [
        "acrobot: 2.1 standard errors below Stable-Baselines3",
        "acrobot: 3.5 standard errors below CleanRL-style",
        "all tasks: -0.50 of Stable-Baselines3",
        "all tasks: -0.25 of CleanRL-style",
    ]
