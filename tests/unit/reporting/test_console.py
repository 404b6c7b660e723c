import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from srl.reporting.console import Display, RunProgress, final_report, plain_line, policy_table
from srl.reporting.summary import Summary, WorkerSummary
from srl.services.messages import Note
from srl.services.metric_names import AgentResult, MetricNames, PolicyResult
from srl.services.until import parse_until

ONE = MetricNames({"agent": ("agent",)}, ["agent"])
SNAPSHOT = {
    "seconds": 75.0,
    "env_steps": 50_000,
    "env_steps_per_second": 1234.4,
    "episodes": 321,
    "episode_return_mean": 123.44,
    "policy_version": 17,
    "policy_age_mean": 0.75,
    "window_full": True,
    "workers.actor.busy": 0.82,
    "workers.actor.wait.inference": 0.12,
    "workers.trainer.busy": 0.3,
    "workers.trainer.wait.samples": 0.7,
}


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_the_goal_that_comes_first_counts():
    progress = RunProgress(steps=100_000, seconds=100.0)
    assert progress.fraction(SNAPSHOT) == 0.75
    assert RunProgress().fraction(SNAPSHOT) is None
    assert RunProgress(steps=10).fraction(SNAPSHOT) == 1.0


def test_until_is_measured_from_where_it_began():
    progress = RunProgress(until=parse_until("return>=420 and steps>100000", ONE))
    first = {"episode_return_mean": 20.0, "env_steps": 0, "window_full": True}
    assert progress.fraction({}) == 0.0
    assert progress.fraction(first) == 0.0
    half = {**first, "episode_return_mean": 220.0, "env_steps": 90_000}
    assert progress.fraction(half) == pytest.approx(0.5)
    assert progress.fraction({**first, "episode_return_mean": 500.0, "env_steps": 1e6}) == 1.0
    unfilled = {"episode_return_mean": 500.0, "env_steps": 1e6, "window_full": False}
    assert progress.fraction(unfilled) == 0.99


def test_the_time_left_is_at_the_pace_of_this_session():
    progress = RunProgress(steps=1000)
    assert progress.eta_seconds({"env_steps": 500, "seconds": 1000.0}) is None
    left = progress.eta_seconds({"env_steps": 750, "seconds": 1010.0})
    assert left == pytest.approx(10.0)


def test_a_log_gets_one_line_every_few_seconds():
    stream = io.StringIO()
    display = Display("x", RunProgress(steps=100_000), ONE, stream=stream)
    for now in (0.0, 1.0, 4.9, 5.0, 6.0):
        display.update(SNAPSHOT, "", now)
    display.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 2
    for part in ("1:15", "steps 50,000/100,000", "1,234 steps/s", "return 123.4", "age 0.75"):
        assert part in lines[0]
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_a_live_panel(monkeypatch):
    monkeypatch.setenv("COLUMNS", "110")
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    display = Display(
        "CartPole-v1",
        RunProgress(100_000, None, parse_until("return>=475", ONE)),
        ONE,
        stream=stream,
    )
    display.update(SNAPSHOT, "environments are the limit", 0.0)
    display.note(Note("actor/0", "warning", "slow [red]reset"))
    assert not display.due(0.1)
    display.update({**SNAPSHOT, "seconds": 80.0, "env_steps": 60_000}, "x", 1.0)
    display.close()
    text = stream.getvalue()
    for part in (
        "CartPole-v1",
        "50%",
        "return 123.4 (>= 475)",
        "82% busy",
        "waits for inference 12%",
        "environments are the limit",
        "warning: actor/0: slow [red]reset",
        "eta 0:20",
    ):
        assert part in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h"), "the cursor is given back"


def test_quiet_shows_errors_only(capsys):
    stream = Terminal()
    display = Display("x", RunProgress(), ONE, quiet=True, stream=stream)
    assert not display.due(1e9)
    display.update(SNAPSHOT, "", 1e9)
    display.note(Note("actor/0", "warning", "slow"))
    display.note(Note("actor/0", "error", "it broke"))
    display.close()
    assert stream.getvalue() == ""
    assert capsys.readouterr().err == "error: actor/0: it broke\n"


def test_a_run_that_has_measured_nothing_can_be_shown():
    assert "return -" in plain_line({}, {}, RunProgress())
    stream = Terminal()
    display = Display("x", RunProgress(), ONE, stream=stream)
    display.update({}, "", 0.0)
    display.close()
    assert "measuring" in stream.getvalue()


def test_the_final_report_says_what_how_fast_why_and_where():
    summary = Summary(
        status="finished",
        reason="return>=475 reached",
        env_steps=90_000,
        seconds=61.0,
        env_steps_per_second=1475.0,
        seconds_to_first_update=2.34,
        episodes=500,
        episode_return_mean=476.2,
        eval_return_mean=500.0,
        policy_version=44,
        policy_age_mean=0.9,
        workers={"trainer": WorkerSummary(0.3, {"samples": 0.7}, "samples")},
        bottleneck="trainer waits for samples 70 % of the time",
        best_checkpoint=4,
    )
    text = final_report(summary, Path("runs/x"), Path("runs/x/plot.png"))
    for part in (
        "Finished: return>=475 reached",
        "return 476.2",
        "evaluation 500.0",
        "90,000 steps in 1:01: 1,475 steps/s",
        "first update after 2.3 s",
        "busy 30%, samples 70%",
        "trainer waits for samples 70 % of the time",
        "checkpoint 4",
        "runs/x\n",
        "runs/x/plot.png",
    ):
        assert part in text


TAG = MetricNames({"chaser": ("tank_*", "jet_*"), "runner": ("r",)}, ["chaser", "runner"])
TAGGED = {
    "episodes": 40,
    "env_steps": 100,
    "policies.chaser.episodes": 40,
    "policies.chaser.episode_return_mean": 30.0,
    "policies.chaser.agents.tank_*.episode_return_mean": 20.0,
    "policies.chaser.agents.jet_*.episode_return_mean": 40.0,
    "policies.chaser.eval_return_mean": 31.0,
    "policies.runner.episodes": 39,
    "policies.runner.episode_return_mean": -30.0,
    "policies.runner.policy_version": 17,
}


def test_several_policies_are_shown_each_by_its_name():
    line = plain_line(TAGGED, TAG.results(TAGGED), RunProgress())
    assert "return chaser 30.0 (tank_* 20.0, jet_* 40.0), runner -30.0  eval chaser 31.0" in line
    stream = Terminal()
    display = Display("x", RunProgress(), TAG, stream=stream)
    display.update(TAGGED, "", 0.0)
    display.close()
    for part in ("policy", "chaser", "30.0", "31.0", "  jet_*", "40.0", "runner", "-30.0", "17"):
        assert part in stream.getvalue()


def test_the_report_of_several_policies_is_a_table():
    results = TAG.results(
        TAGGED, {n: SimpleNamespace(number=i) for n, i in (("chaser/jet_*", 3), ("runner", 5))}
    )
    assert results["chaser"].agents["jet_*"] == AgentResult(
        episode_return_mean=40.0, best_checkpoint=3
    )
    text = final_report(Summary(status="finished", policies=results, episodes=40), Path("runs/x"))
    rows = [line.split() for line in text.splitlines()]
    assert ["policy", "return", "eval", "episodes", "version", "age", "best", "checkpoint"] in rows
    assert ["chaser", "30.0", "31.0", "40", "0", "-", "-"] in rows
    assert ["tank_*", "20.0", "-", "-"] in rows
    assert ["jet_*", "40.0", "-", "3"] in rows
    assert ["runner", "-30.0", "-", "39", "17", "-", "5"] in rows


def test_one_policy_has_no_name_in_a_table():
    assert policy_table({"agent": PolicyResult(episode_return_mean=3.0, episodes=2)}) == [
        ("return", "episodes", "version", "age"),
        ("3.00", "2", "0", "-"),
    ]


def test_the_report_of_a_failure_starts_with_it():
    text = final_report(Summary(status="failed", error="actor/0: env 3 raised"), Path("runs/x"))
    assert text.splitlines()[:2] == ["Failed", "  error       actor/0: env 3 raised"]
    assert "plot" not in text


def test_the_report_of_a_stopped_run_says_how_to_go_on():
    text = final_report(Summary(status="stopped", reason="SIGINT"), Path("my runs/x"))
    assert text.splitlines()[-1] == "  go on       srl resume 'my runs/x'"
    assert "go on" not in final_report(Summary(status="finished"), Path("runs/x"))
