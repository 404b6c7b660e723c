import itertools
import json
import math
import os
import subprocess
import sys

import pytest

from srl.data.codec import load_state, save_state
from srl.errors import ConfigError, RunError
from srl.services.messages import Episodes, Evaluation, Note, Update
from srl.services.metric_names import MetricNames
from srl.services.metrics import Collector, LoggingConfig, read_metrics
from srl.services.tensorboard import tag
from srl.services.worker_times import WorkerTimes

QUIET = LoggingConfig(sinks=())
ONE = MetricNames({"agent": ("agent",)}, ["agent"])
SEVERAL = MetricNames({"red": ("a",), "blue": ("b",), "frozen": ("c",)}, ["red", "blue"])


def update(env_steps, version=1, policy="agent", age=0.5, **metrics):
    return Update("trainer/0", policy, version, env_steps, env_steps, age, 2 * age, 0.1, metrics)


def episodes(*returns, policy="agent", **metrics):
    lengths = [int(abs(r)) for r in returns]
    return Episodes("actor/0", policy, list(returns), lengths, metrics)


def test_the_window_holds_the_last_hundred_episodes(tmp_path):
    collector = Collector(tmp_path, QUIET, ONE)
    collector.add(episodes(*range(99)))
    assert not collector.snapshot()["window_full"]
    collector.add(episodes(*range(99, 250), goals=[1.0, 0.0]))
    values = collector.snapshot()
    assert values["window_full"]
    assert values["episodes"] == 250
    assert values["episode_return_mean"] == sum(range(150, 250)) / 100
    assert values["episode_length_mean"] == values["episode_return_mean"]
    assert values["episode.goals"] == 0.5


def test_a_line_is_written_each_interval_and_not_between(tmp_path):
    collector = Collector(tmp_path, QUIET, ONE)
    assert collector.tick(100.0)
    assert not collector.tick(100.9)
    collector.add(update(1000, version=3, loss=0.25))
    collector.add(episodes(10.0, 20.0))
    collector.add(Evaluation("evaluator/0", "agent", 3, 3, [7.0, 9.0], [7, 9]))
    assert collector.tick(102.0)
    collector.add(update(4000, version=4, entropy=0.5))
    assert collector.tick(103.0)
    assert collector.tick(103.1, force=True)
    first, second, third, _ = map(json.loads, (tmp_path / "metrics.jsonl").open())
    assert first["env_steps"] == 0
    assert second["seconds"] == pytest.approx(2.0)
    assert second["env_steps_per_second"] == pytest.approx(500)
    assert second["policy_version"] == 3
    assert second["policy_age_mean"] == 0.5
    assert second["episode_return_mean"] == 15
    assert second["eval_return_mean"] == 8
    assert second["train.loss"] == 0.25
    assert abs(second["time"] - os.stat(tmp_path / "metrics.jsonl").st_mtime) < 60
    assert third["env_steps_per_second"] == pytest.approx(4000 / 3)
    assert third["train.entropy"] == 0.5
    assert third["train.loss"] == 0.25


@pytest.mark.parametrize("seconds", [0.3, 1.0, 5.0, 60.0])
def test_a_short_run_has_at_least_twenty_lines_and_a_long_one_no_more_than_asked(tmp_path, seconds):
    collector = Collector(tmp_path, QUIET, ONE)
    assert [collector.tick(t) for t in (985.0, 985.5, 995.0)] == [True, False, True]
    collector.add(update(1000))
    polls = round(seconds / 0.01)
    written = [n for n in range(polls + 1) if collector.tick(1000.0 + n * 0.01)]
    lines = read_metrics(tmp_path)
    assert len(lines) == 2 + len(written)
    assert 20 <= len(written) < 100 + seconds
    assert lines[-1]["seconds"] > 15 + 0.9 * seconds
    late = [n for n in written if n > 2000]
    assert all(after - before >= 99 for before, after in itertools.pairwise(late))


def test_the_rate_forgets_what_is_older_than_its_window(tmp_path):
    collector = Collector(tmp_path, LoggingConfig(sinks=(), rate_seconds=5), ONE)
    for second in range(30):
        slow = second > 10
        collector.add(update(1000 * min(second, 10) + (10 * (second - 10) if slow else 0)))
        collector.tick(float(second))
    assert collector.snapshot()["env_steps_per_second"] == pytest.approx(10, rel=0.01)


def test_an_update_longer_than_the_rate_window_still_has_a_rate(tmp_path):
    collector = Collector(tmp_path, LoggingConfig(sinks=(), rate_seconds=5), ONE)
    rates = []
    for second in range(100):
        collector.add(update(20_000 * (second // 20)))
        collector.tick(float(second))
        rates.append(collector.snapshot().get("env_steps_per_second"))
    assert min(rates[41:]) > 400
    assert max(rates[41:]) < 2100


def test_several_policies_have_their_own_numbers(tmp_path):
    collector = Collector(tmp_path, QUIET, SEVERAL)
    collector.add(update(1000, version=5, policy="red", age=1.0, loss=1.0))
    collector.add(update(900, version=4, policy="blue", age=0.0, loss=2.0))
    collector.add(episodes(10.0, policy="red"))
    collector.add(episodes(20.0, policy="blue"))
    collector.add(episodes(-1000.0, policy="frozen"))
    collector.add(episodes(7.0, policy="stranger"))
    values = collector.snapshot()
    assert values["policies.red.episode_return_mean"] == 10
    assert values["policies.blue.train.loss"] == 2.0
    assert values["policies.frozen.episode_return_mean"] == -1000
    assert values["env_steps"] == 1000
    assert values["agent_steps"] == 1900
    assert values["policy_version"] == 5
    assert values["policy_age_mean"] == 0.5
    for name in ("episode_return_mean", "episode_length_mean", "train.loss", "window_full"):
        assert name not in values, "how well policies do has no mean over them"
    assert not [name for name in values if "stranger" in name]
    assert collector.consumed("blue") == {"env_steps": 900, "agent_steps": 900}
    assert collector.consumed("frozen") == {"env_steps": 0, "agent_steps": 0}


def test_each_policy_that_learns_has_a_score_of_its_own(tmp_path):
    collector = Collector(tmp_path, LoggingConfig(sinks=(), window=2), SEVERAL)
    collector.add(episodes(1.0, 3.0, policy="red"))
    collector.add(episodes(-1.0, policy="blue"))
    collector.add(episodes(9.0, 9.0, policy="frozen"))
    assert collector.scores == {"red": 2.0}
    collector.add(Evaluation("evaluator/0", "blue", 1, 1, [-4.0], [1]))
    assert collector.scores == {"red": 2.0, "blue": -4.0}


def test_a_policy_that_plays_several_sides_has_the_returns_of_each(tmp_path):
    names = MetricNames({"both": ("player_1", "player_2")}, ["both"])
    collector = Collector(tmp_path, LoggingConfig(sinks=(), window=2), names)
    collector.add(Episodes("actor/0", "both", [1.0, -1.0, 1.0], [5, 4, 5], {}, [0, 1, 0]))
    collector.add(Evaluation("evaluator/0", "both", 1, 1, [0.5, -0.5], [5, 4], [0, 1]))
    collector.add(Evaluation("evaluator/0", "both", 2, 2, [0.7, -0.7], [5, 4], [0, 1]))
    # (An index that no agent has counts for the policy alone.)
    collector.add(Episodes("actor/0", "both", [-1.0], [4], {}, [9]))
    again = Collector(tmp_path, collector.config, names)
    save_state(tmp_path / "collector.safetensors", collector.state(1.0))
    again.restore(load_state(tmp_path / "collector.safetensors"))
    for values in (collector.snapshot(), again.snapshot()):
        assert values["episode_return_mean"] == 0
        assert values["agents.player_1.episode_return_mean"] == 1
        assert values["agents.player_2.episode_return_mean"] == -1
        assert values["agents.player_1.window_full"]
        assert not values["agents.player_2.window_full"]
        assert values["agents.player_1.eval_return_mean"] == 0.7
        assert values["agents.player_2.eval_return_mean"] == -0.7


def test_evaluations_of_one_version_add_up_and_a_newer_one_starts_afresh(tmp_path):
    collector = Collector(tmp_path, QUIET, ONE)
    assert collector.scores == {}
    collector.add(Evaluation("evaluator/0", "agent", 3, 3, [1.0], [1]))
    collector.add(Evaluation("evaluator/1", "agent", 3, 3, [3.0], [3]))
    assert collector.scores == {"agent": 2.0}
    collector.add(Evaluation("evaluator/0", "agent", 9, 9, [50.0], [5]))
    collector.add(Evaluation("evaluator/1", "agent", 3, 3, [-9.0], [3]))
    assert collector.scores == {"agent": 50.0}
    assert collector.snapshot()["eval_policy_version"] == 9


def test_an_opponent_that_stays_as_it_is_is_evaluated_anew_with_its_opponent(tmp_path):
    names = MetricNames({"learner": ("a",), "frozen": ("b",)}, ["learner"])
    collector = Collector(tmp_path, QUIET, names)
    for version, won in ((1, -1.0), (2, 0.0), (3, 1.0)):
        collector.add(Evaluation("evaluator/0", "learner", version, version, [won] * 4, [9] * 4))
        collector.add(Evaluation("evaluator/0", "frozen", 0, version, [-won] * 4, [9] * 4))
    values = collector.snapshot()
    assert values["policies.learner.eval_return_mean"] == 1.0
    assert values["policies.frozen.eval_return_mean"] == -1.0
    assert len(collector.state(0.0)["policies"]["frozen"]["eval"]["returns"]) == 4


def test_the_score_without_evaluations_needs_a_full_window(tmp_path):
    collector = Collector(tmp_path, LoggingConfig(sinks=(), window=3), ONE)
    collector.add(episodes(1.0, 2.0))
    assert collector.scores == {}
    collector.add(episodes(6.0))
    assert collector.scores == {"agent": 3.0}


def test_worker_shares_are_those_since_the_last_line(tmp_path):
    collector = Collector(tmp_path, QUIET, ONE)
    collector.tick(0.0)
    for second, busy in ((1.0, 1.0), (2.0, 1.25)):
        times = WorkerTimes(kind="trainer", name="trainer/0", busy_seconds=busy)
        times.waits = {"samples": second - busy}
        collector.observe([times])
        collector.tick(second)
    values = collector.snapshot()
    assert values["workers.trainer.busy"] == pytest.approx(0.25)
    assert values["workers.trainer.wait.samples"] == pytest.approx(0.75)


def test_a_resumed_collector_goes_on_counting(tmp_path):
    first = Collector(tmp_path, QUIET, ONE)
    first.tick(50.0)
    first.add(update(1000, version=3, loss=0.5))
    first.add(episodes(*range(60), goals=[4.0]))
    first.add(Evaluation("evaluator/0", "agent", 3, 3, [5.0], [5]))
    first.tick(60.0)
    save_state(tmp_path / "collector.safetensors", first.state(60.5))
    # The clock of another boot starts anywhere.
    second = Collector(tmp_path, QUIET, ONE)
    second.restore(load_state(tmp_path / "collector.safetensors"))
    before, after = first.snapshot(), second.snapshot()
    before.pop("env_steps_per_second")
    assert before.pop("seconds") == 10.0
    assert after.pop("seconds") == 10.5  # Those since the last line, too.
    assert before == after
    second.tick(3.0)
    second.add(update(1500, version=4))
    second.add(episodes(*range(60, 120)))
    second.tick(5.0)
    values = second.snapshot()
    assert values["seconds"] == pytest.approx(12.5)
    assert values["env_steps_per_second"] == pytest.approx(250)
    assert values["episodes"] == 120
    assert values["episode_return_mean"] == sum(range(20, 120)) / 100
    assert [line["env_steps"] for line in read_metrics(tmp_path)] == [0, 1000, 1000, 1500]


def test_lines_beyond_the_checkpoint_that_was_resumed_are_replaced_when_read(tmp_path):
    first = Collector(tmp_path, QUIET, ONE)
    first.add(update(1000))
    first.tick(0.0)
    state = first.state(0.0)
    for steps in (2000, 3000):
        first.add(update(steps))
        first.tick(float(steps))
    second = Collector(tmp_path, QUIET, ONE)
    second.restore(state)
    second.add(update(1500))
    second.tick(0.0)
    assert [line["env_steps"] for line in read_metrics(tmp_path)] == [1000, 1500]


def test_a_torn_last_line_does_not_spoil_the_next(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"env_steps": 5}\n{"env_st')
    collector = Collector(tmp_path, QUIET, ONE)
    collector.add(update(10))
    collector.tick(0.0)
    assert [line["env_steps"] for line in read_metrics(tmp_path)] == [5, 10]


def test_nan_is_written_as_null(tmp_path):
    collector = Collector(tmp_path, QUIET, ONE)
    collector.add(update(10, loss=math.nan))
    collector.tick(0.0)
    (line,) = read_metrics(tmp_path)
    assert line["train.loss"] is None


def test_tensorboard_reads_what_was_written(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    collector = Collector(tmp_path, LoggingConfig(), ONE)
    for steps in (100, 200):
        collector.add(update(steps, loss=steps / 100))
        collector.add(Episodes("actor/0", "agent", [1.0], [1], {"goals": [2.0]}))
        collector.add(Evaluation("evaluator/0", "agent", 3, 3, [7.0], [7]))
        collector.observe([WorkerTimes(kind="actor", name="actor/0", busy_seconds=steps)])
        collector.tick(float(steps))
    collector.close()
    curves = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in curves.Scalars("train/loss")] == [(100, 1.0), (200, 2.0)]
    tags = set(curves.Tags()["scalars"])
    assert {
        *("episode/episode_return_mean", "episode/goals", "eval/eval_return_mean"),
        *("progress/env_steps", "speed/env_steps_per_second", "policy/policy_version"),
        "workers/actor.busy",
    } <= tags
    assert not [tag for tag in tags if "/" not in tag or tag.startswith("more/")]
    assert not [tag for tag in tags if "window_full" in tag]


def test_every_policy_has_a_section_of_its_own():
    assert tag("policies.red.train.loss") == "policies.red/train.loss"
    assert tag("policies.red.episode_return_mean") == "policies.red/episode_return_mean"


def test_notes_are_kept_for_the_console(tmp_path):
    collector = Collector(tmp_path, QUIET, ONE)
    collector.add(Note("actor/3", "warning", "slow"))
    assert collector.notes.popleft().text == "slow"


def test_a_full_disk_says_file_and_free_bytes(tmp_path):
    # /dev/full is a disk that is always full.
    if not os.path.exists("/dev/full"):
        pytest.skip("this system has no /dev/full")
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    collector = Collector(tmp_path, QUIET, ONE)
    with pytest.raises(RunError, match=r"metrics.jsonl: .*No space left.* \d+ bytes are free"):
        collector.tick(0.0)


def test_a_run_directory_that_vanished_is_a_run_error(tmp_path):
    collector = Collector(tmp_path / "gone", QUIET, ONE)
    with pytest.raises(RunError, match="cannot write metrics"):
        collector.tick(0.0)
    with pytest.raises(RunError, match="Is this a run directory"):
        read_metrics(tmp_path)


@pytest.mark.parametrize("wrong", [{"window": 0}, {"interval_seconds": 0}, {"rate_seconds": -1.0}])
def test_wrong_settings_are_named(wrong):
    with pytest.raises(ConfigError, match=rf"logging.{next(iter(wrong))}: .*got"):
        LoggingConfig(**wrong)


def test_the_services_import_neither_torch_nor_what_is_slow():
    services = ["messages", "metrics", "until", "tensorboard", "checkpoints", "checkpoint_parts"]
    reports = ["bottleneck", "console", "plotting", "summary"]
    modules = [f"services.{name}" for name in services] + [f"reporting.{name}" for name in reports]
    code = "import sys, importlib\n"
    code += f"for m in {modules}: importlib.import_module('srl.' + m)\n"
    code += "print([m for m in ('torch', 'tensorboard', 'rich', 'matplotlib') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"


def test_a_policy_that_plays_several_sides_has_a_score_of_each(tmp_path):
    """In self-play the mean over both is always 0."""
    names = MetricNames({"both": ("x", "o")}, ["both"])
    collector = Collector(tmp_path, LoggingConfig(sinks=(), window=2), names)
    for agents in ([0, 1], [0, 1]):
        collector.add(Episodes("actor/0", "both", [1.0, -1.0], [5, 5], {}, agents))
    assert collector.scores == {"both/x": 1.0, "both/o": -1.0}
    collector.add(Evaluation("evaluator/0", "both", 3, 3, [0.5, -0.5], [5, 5], [0, 1]))
    assert collector.scores == {"both/x": 0.5, "both/o": -0.5}
