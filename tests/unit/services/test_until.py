import pytest

from srl.errors import ConfigError
from srl.services.messages import Episodes
from srl.services.metric_names import MetricNames
from srl.services.metrics import Collector, LoggingConfig
from srl.services.until import parse_until

FULL = {"window_full": True}
ONE = MetricNames({"agent": ("agent",)}, ["agent"])
SEVERAL = MetricNames(
    {"red": ("tank_*", "tank_*", "jet_*"), "blue": ("b",), "frozen": ("c",)}, ["red", "blue"]
)
SIDES = MetricNames({"both": ("player_1", "player_2")}, ["both"])


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
    assert parse_until(text, ONE).reached({"episode_return_mean": value, **FULL}) is reached


def test_return_waits_for_a_full_window(tmp_path):
    collector = Collector(tmp_path, LoggingConfig(sinks=()), ONE)
    until = parse_until("return>=475", ONE)
    assert not until.reached(collector.snapshot())
    collector.add(Episodes("actor/0", "agent", [500.0] * 99, [500] * 99))
    assert not until.reached(collector.snapshot())
    collector.add(Episodes("actor/0", "agent", [500.0], [500]))
    assert until.reached(collector.snapshot())


@pytest.mark.parametrize(
    ("text", "names", "at"),
    [
        ("return/blue>=5", SEVERAL, "policies.blue."),
        ("length/red>=5", SEVERAL, "policies.red."),
        ("episode_return_mean/frozen >= 5", SEVERAL, "policies.frozen."),
        ("return/red/tank_*>=5", SEVERAL, "policies.red.agents.tank_*."),
        ("return/player_2>=5", SIDES, "agents.player_2."),
        ("return/both/player_2>=5", SIDES, "agents.player_2."),
        ("length>=5", SIDES, ""),
        ("return>=5", MetricNames({"team": ("agent_*", "agent_*")}, ["team"]), ""),
        ("return>=5", MetricNames({"a": ("a",), "b": ("b",)}, ["b"]), "policies.b."),
    ],
)
def test_a_policy_and_its_agents_wait_for_their_own_window(text, names, at):
    until = parse_until(text, names)
    values = {f"{at}episode_{name}_mean": 9.0 for name in ("return", "length")}
    values[f"{at}window_full"] = False
    others = {"x.window_full": True, "window_full": True, "policies.red.window_full": True}
    assert not until.reached({**others, **values})
    assert until.reached({**values, f"{at}window_full": True})
    assert until.progress(values).startswith(text.replace(" ", "").partition(">")[0])


@pytest.mark.parametrize(
    ("text", "names", "message"),
    [
        (
            "return>=5",
            SEVERAL,
            r"several .red, blue, frozen.. Write return/red/tank_\* or .* return/blue",
        ),
        ("return>=5", SIDES, "return: .* several.* Write return/both/player_1 or return/both/p"),
        ("eval_return/both>=5", SIDES, "eval_return/both: .* Write eval_return/both/player_1 or"),
        ("return/red>=5", SEVERAL, r"Write return/red/tank_\* or return/red/jet_\*\."),
        ("train.entropy<1", SEVERAL, "Write train.entropy/red or train.entropy/blue"),
        ("return/rad>=5", SEVERAL, r"return/rad: expected a policy .*\(red, blue, frozen\)"),
        ("return/red/boat_*>=5", SEVERAL, r"expected red/tank_\* or red/jet_\*"),
        ("return/player_3>=5", SIDES, "expected both/player_1 or both/player_2"),
        ("return/agent_1>=5", ONE, "expected agent, got agents 'agent_1'"),
        ("version/red/tank_*>=5", SEVERAL, "Write version/red"),
    ],
)
def test_what_is_of_no_one_policy_is_refused_with_the_names(text, names, message):
    with pytest.raises(ConfigError, match=message):
        parse_until(text, names)


def test_agents_are_taken_on_trust_until_the_environment_is_known():
    names = MetricNames({"both": None}, ["both"])
    assert parse_until("return/player_2>=5", names).conditions[0].metric == (
        "agents.player_2.episode_return_mean"
    )
    with pytest.raises(ConfigError, match="expected a policy"):
        parse_until("return/green>=5", MetricNames({"red": None, "blue": None}, ["red", "blue"]))


def test_how_far_a_run_is_needs_no_policy():
    until = parse_until("steps>10 and version>=3 and workers.actor.busy>0", SEVERAL)
    assert until.reached({"env_steps": 11, "policy_version": 3, "workers.actor.busy": 0.1})
    assert not parse_until("version/blue>=3", SEVERAL).reached({"policy_version": 3})


def test_several_conditions_hold_together():
    until = parse_until("eval_return>=10 and steps>1000 and  train.entropy<0.1", ONE)
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
        parse_until(text, ONE)


def test_a_learner_metric_that_nobody_reports_is_an_error_after_the_first_update():
    until = parse_until("train.entropi<0.1", ONE)
    assert not until.reached({"env_steps": 0})
    with pytest.raises(ConfigError, match=r"did you mean 'train.entropy'"):
        until.reached({"env_steps": 10, "train.entropy": 1.0})


def test_progress_shows_where_it_stands():
    until = parse_until("return>=475 and steps>10", ONE)
    assert (
        until.progress({"episode_return_mean": 312.42}) == "return 312.4 (>= 475), steps - (> 10)"
    )
