"""An algorithm that cannot learn what it is given is refused by the plan: nothing has started."""

from __future__ import annotations

import pytest

from srl.cli import main
from srl.envs.registry import probe
from srl.errors import ConfigError
from srl.launch.plan.build import make_plan, resolve_settings
from srl.plan import Plan
from srl.run import assemble


def plan_of(target: str, algorithm: str, **given: object) -> Plan:
    settings = {f"algorithm.{name}": value for name, value in given.items() if name != "steps"}
    experiment = assemble(
        target, algorithm=algorithm, layout="inline", steps=given.get("steps"), set=settings
    )
    experiment = resolve_settings(experiment, 2, "cpu")
    return make_plan(experiment, probe(experiment.env), "cpu")[0]


@pytest.mark.parametrize(
    ("target", "algorithm", "message"),
    [
        ("Pendulum-v1", "dqn", r"one discrete action, .*, got Box\. Use .* sac, td3 or ppo"),
        ("CartPole-v1", "sac", r"real-valued actions .*, got Discrete\. Use .* dqn"),
        ("CartPole-v1", "td3", r"real-valued actions .*, got Discrete\. Use .* dqn"),
        ("CartPole-v1", "bc", r"algorithm\.dataset: expected the folder .*, got none\. Record one"),
        ("CartPole-v1", "dagger", r"algorithm\.expert: expected the folder of a run .*, got none"),
    ],
)
def test_spaces_that_an_algorithm_cannot_do(target: str, algorithm: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of(target, algorithm)


@pytest.mark.parametrize("algorithm", ["dqn", "sac"])
def test_a_run_that_ends_before_it_learns(algorithm: str) -> None:
    """100 steps in the replay first, and 8 gradient steps at one for each 4 steps."""
    target = "CartPole-v1" if algorithm == "dqn" else "Pendulum-v1"
    given = {"learning_starts": 100, "gradient_steps": 8, "updates_per_step": 0.25}
    with pytest.raises(ConfigError, match=r"steps: expected at least 132, .*, got 131\. Raise st"):
        plan_of(target, algorithm, steps=131, **given)
    plan_of(target, algorithm, steps=132, **given)
    plan_of(target, algorithm, steps=0, **given)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"learning_starts": 5000, "buffer_size": 4000},
            r"0 to buffer_size \(4000\), got 5000",
        ),
        ({"buffer_size": 64, "learning_starts": 0, "n_steps": 20}, r"replay: expected room for a"),
        ({"replay": "fifo", "updates_per_step": 1.0}, r"max_uses: expected at least 64 .*, got 1"),
    ],
    ids=["learning starts", "window", "reuse"],
)
def test_a_ratio_that_can_never_be_met(given: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        plan_of("CartPole-v1", "dqn", **given)


def test_a_refused_run_says_what_to_change(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "CartPole-v1", "--algorithm", "dqn", "--set", "steps=500"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("srl: steps: expected at least 1032")
    assert "algorithm.learning_starts is 1000" in said
