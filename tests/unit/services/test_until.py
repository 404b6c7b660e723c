import pytest

from srl.errors import ConfigError
from srl.services.messages import Episodes
from srl.services.metrics import Collector, LoggingConfig, parse_until

FULL = {"window_full": True}


@pytest.mark.parametrize(
    ("text", "value", "reached"),
    [
        ("return>=475", 475.0, True),
        ("return >= 475", 474.9, False),
        ("return>475", 475.0, False),
        ("return<=-1.5e2", -150.0, True),
        ("return<-150", -150.0, False),
        ("episode_return_mean>=1", 1.0, True),
        (" return > -.5 ", 0.0, True),
    ],
)
def test_every_operator(text, value, reached):
    assert parse_until(text).reached({"episode_return_mean": value, **FULL}) is reached


def test_return_waits_for_a_full_window(tmp_path):
    collector = Collector(tmp_path, LoggingConfig(tensorboard=False))
    until = parse_until("return>=475")
    assert not until.reached(collector.snapshot())
    collector.add(Episodes("actor/0", "agent", [500.0] * 99, [500] * 99))
    assert not until.reached(collector.snapshot())
    collector.add(Episodes("actor/0", "agent", [500.0], [500]))
    assert until.reached(collector.snapshot())


def test_a_policy_of_several_waits_for_its_own_window():
    until = parse_until("policies.red.episode_return_mean>=5")
    values = {"policies.red.episode_return_mean": 9.0, "policies.red.window_full": False, **FULL}
    assert not until.reached(values)
    assert until.reached({**values, "policies.red.window_full": True})


def test_several_conditions_hold_together():
    until = parse_until("eval_return>=10 and steps>1000 and  train.entropy<0.1")
    values = {"eval_return_mean": 10.0, "env_steps": 1001, "train.entropy": 0.05}
    assert until.reached(values)
    for name in values:
        assert not until.reached({**values, name: 1.0})
        assert not until.reached({key: value for key, value in values.items() if key != name}), name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected <metric><op><number>"),
        ("return", "expected <metric><op><number>"),
        ("return==475", "expected <metric><op><number>"),
        ("return>=475 or length>3", "expected <metric><op><number>"),
        ("return>=475 and", "expected <metric><op><number>"),
        ("return>=many", "expected a number after return>=, got 'many'"),
        ("return>=nan", "expected a number after return>=, got 'nan'"),
        ("retrun>=475", "unknown metric 'retrun': did you mean 'return'"),
        ("evalreturn>=475", "did you mean .*'eval_return'"),
    ],
)
def test_mistakes_are_named(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_until(text)


def test_a_learner_metric_that_nobody_reports_is_an_error_after_the_first_update():
    until = parse_until("train.entropi<0.1")
    assert not until.reached({"env_steps": 0})
    with pytest.raises(ConfigError, match=r"did you mean 'train.entropy'"):
        until.reached({"env_steps": 10, "train.entropy": 1.0})


def test_progress_shows_where_it_stands():
    until = parse_until("return>=475 and steps>10")
    assert (
        until.progress({"episode_return_mean": 312.42}) == "return 312.4 (>= 475), steps - (> 10)"
    )
