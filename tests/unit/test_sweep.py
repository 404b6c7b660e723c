"""Search spaces, and what a sweep reads from its folder."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

from srl.arguments import assemble
from srl.cli import main, make_parser
from srl.errors import ConfigError, RunError
from srl.overrides import parse_pairs
from srl.sweep.definition import (
    SweepDefinition,
    TrainArguments,
    read_definition,
    write_definition,
)
from srl.sweep.report import draw, report, scored
from srl.sweep.search_space import check_search, parse_search, suggest
from srl.sweep.study import open_study, unfinished
from srl.sweep.trial_runs import core_sets

SEARCH = [
    "algorithm.learning_rate=log(1e-4, 1e-2)",
    "algorithm.epochs=int(1,9)",
    "algorithm.entropy_coefficient=uniform(0,0.5)",
    "network.hidden_sizes=choice([64,64],[32])",
]


def definition(**more: Any) -> SweepDefinition:
    train = TrainArguments(
        target="CartPole-v1",
        options={"layout": "serial", "steps": 2000, "init_from": "runs/a b"},
        env_args={"size": 3},
        set={"actor.envs": 8, "trainer.device": "cpu"},
    )
    return SweepDefinition(train=train, search=SEARCH, trials=6, **more)


def test_every_form_of_a_search_space_is_read() -> None:
    rate, epochs, entropy, sizes = parse_search(SEARCH)
    assert (rate.key, rate.kind, rate.values) == ("algorithm.learning_rate", "log", (1e-4, 1e-2))
    assert (epochs.kind, epochs.values) == ("int", (1, 9))
    assert (entropy.kind, entropy.values) == ("uniform", (0.0, 0.5))
    assert (sizes.kind, sizes.values) == ("choice", ([64, 64], [32]))
    check_search(assemble("CartPole-v1"), [rate, epochs, entropy, sizes])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm.learning_rate", "expected KEY=log"),
        ("algorithm.learning_rate=1e-3", r"expected KEY=log\(a,b\), uniform"),
        ("algorithm.learning_rate=normal(0,1)", "expected KEY=log"),
        ("algorithm.learning_rate=log(1e-4)", r"expected two numbers in log\(a,b\), got"),
        ("algorithm.learning_rate=log(1e-4,x)", "expected two numbers"),
        ("algorithm.learning_rate=log(1e-2,1e-4)", "expected a below b"),
        ("algorithm.learning_rate=log(0,1)", "expected bounds above 0"),
        ("algorithm.learning_rate=uniform(.nan,1)", "expected two numbers"),
        ("algorithm.epochs=int(1,2.5)", "expected whole numbers"),
        ("algorithm.epochs=choice()", "expected values in the parentheses"),
        ("algorithm.epochs=choice(1,1)", "expected each value once"),
        ("algorithm.epochs=choice([1,2)", "expected values with commas"),
        ("seed=int(1,5)", "For several seeds of each trial use --seeds"),
    ],
)
def test_what_is_no_search_space_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"--search.*{message}"):
        parse_search([text])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("algorithm.learning_rat=log(1e-4,1e-2)", "unknown setting .* did you mean"),
        ("algorithm.epochs=log(0.5,4)", "algorithm.epochs: expected int, got 0.5"),
        ("actor.envs=choice(8,many)", "actor.envs: expected int, got 'many'"),
        ("layout=choice(serial,parallel)", "layout: expected one of"),
    ],
)
def test_what_names_no_setting_is_refused(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=rf"--search {text.partition('=')[0]}: {message}"):
        check_search(assemble("CartPole-v1"), parse_search([text]))


def test_a_wrong_sweep_leaves_no_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["sweep", "CartPole-v1", "--folder", str(tmp_path / "a")]
    assert main([*command, "--search", "algorithm.learning_rat=log(1e-4,1e-2)"]) == 2
    assert "did you mean 'algorithm.learning_rate'" in capsys.readouterr().err
    assert main([*command, "--search", "gamma=log(1e-4"]) == 2
    assert main([*command]) == 2
    assert "expected at least one KEY=" in capsys.readouterr().err
    assert main([*command, "--search", SEARCH[0], "--metric", "retrun"]) == 2
    assert "--metric: unknown metric 'retrun': did you mean 'return'" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()


def test_the_command_of_a_trial_gives_its_settings() -> None:
    found = definition()
    settings = {"algorithm.learning_rate": 0.0012345678, "network.hidden_sizes": [64, 64]}
    args = make_parser().parse_args(found.train.command(settings, 3))
    assert (args.layout, args.steps, args.init_from, args.seed) == ("serial", 2000, "runs/a b", 3)
    assert parse_pairs(args.env_arg, "--env-arg") == {"size": 3}
    assert parse_pairs(args.set, "--set") == {**found.train.set, **settings}


def test_a_sweep_of_somebody_else_is_not_run(tmp_path: Path) -> None:
    write_definition(tmp_path, definition())
    assert read_definition(tmp_path, trust=False) == definition()
    file = tmp_path / "sweep.json"
    file.write_text(file.read_text().replace("CartPole-v1", "stranger.py:Env"))
    with pytest.raises(ConfigError, match=r"names \(stranger.py:Env\).*give --trust"):
        read_definition(tmp_path, trust=False)
    assert read_definition(tmp_path, trust=True).train.target == "stranger.py:Env"
    with pytest.raises(RunError, match="expected a sweep"):
        read_definition(tmp_path / "none", trust=False)


def test_each_of_several_trials_has_its_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2, 3, 6})
    assert core_sets(2) == [[0, 1], [2, 3]]
    assert core_sets(7) == [[0], [1], [2], [3], [6], [0], [1]]


def test_a_study_goes_on_and_reports_what_it_found(tmp_path: Path) -> None:
    found = definition(seeds=2)
    space = parse_search(SEARCH)
    study = open_study(tmp_path, found)
    for number in range(5):
        trial = study.ask()
        settings = suggest(trial, space)
        if number < 4:
            study.tell(number, 10.0 - abs(settings["algorithm.epochs"] - 4))
    again = open_study(tmp_path, found)
    (left,) = unfinished(again)
    assert left.number == 4
    assert suggest(left, space) == settings
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        text = report(again, found, space, tmp_path)
        picture = draw(again, found, space, tmp_path)
    best = scored(again)[0]
    assert best.value == max(trial.value for trial in again.trials[:4])
    assert "5 trials: 4 complete, 1 running" in text
    assert "importance" in text
    (command,) = [line for line in text.splitlines() if line.startswith("again")]
    assert f"--set algorithm.epochs={best.params['algorithm.epochs']}" in command
    assert picture.read_bytes().startswith(b"\x89PNG")
