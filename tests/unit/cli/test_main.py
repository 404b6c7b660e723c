"""The command as a user meets it: help, speed of start, errors and exit codes."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

from srl.cli import main, make_parser

VERBS = (
    *("train", "resume", "eval", "play", "record", "plot", "plan", "check", "list", "settings"),
    *("status", "scale", "checkpoint", "stop", "worker", "watch", "compare", "sweep", "export"),
    *("bench", "tune"),
)


def test_no_verb_is_left_out():
    choices = next(a for a in make_parser()._actions if a.dest == "verb").choices
    assert set(choices) == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_with_examples(verb, capsys):
    with pytest.raises(SystemExit) as ended:
        main([verb, "--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert "examples:" in text
    assert f"srl {verb} " in text.split("examples:")[1] + " "


def test_examples_in_the_help_parse():
    parser = make_parser()
    for verb in VERBS:
        choices = next(a for a in parser._actions if a.dest == "verb").choices
        for line in choices[verb].epilog.splitlines()[1:]:
            import shlex

            words = shlex.split(line.split("   (")[0].split("|")[0])
            assert words[0] == "srl"
            parser.parse_args(words[1:])


COMMAND = "import sys; from srl.cli import main; sys.exit(main())"


@pytest.mark.parametrize("verb", ["", *VERBS])
def test_help_imports_nothing_heavy(verb):
    code = (
        "import sys, srl.cli\n"
        "try:\n"
        "    srl.cli.main(sys.argv[1:])\n"
        "except SystemExit:\n"
        "    heavy = {'torch', 'gymnasium', 'numpy', 'yaml', 'rich', 'matplotlib'}\n"
        "    sys.exit(f'imported {heavy & set(sys.modules)}' if heavy & set(sys.modules) else 0)"
    )
    command = [sys.executable, "-c", code, *verb.split(), "--help"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: srl" in done.stdout


@pytest.mark.guard
def test_help_comes_in_the_time_of_a_small_import():
    """Half a second anywhere; measured against numpy, so that a busy machine slows both."""

    def seconds(*command: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", *command], check=True, stdout=subprocess.DEVNULL)
        return time.perf_counter() - started

    pairs = [(seconds(COMMAND, "--help"), seconds("import numpy")) for _ in range(5)]
    helped, imported = (min(times) for times in zip(*pairs, strict=True))
    assert helped < 2 * imported


def test_import_srl_imports_nothing_heavy():
    code = (
        "import sys, srl\n"
        "assert 'train' in dir(srl)\n"
        "heavy = {'torch', 'gymnasium', 'numpy'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "cartpol"], "'cartpole'"),
        (["train", "CartPole-v9"], "'CartPole-v1'"),
        (["train", "nowhere_module:Env"], "no module named 'nowhere_module'"),
        (["train", "cartpole", "--algorithm", "pp"], "did you mean 'ppo'"),
        (["train", "cartpole", "--set", "actor.env=3"], "'actor.envs'"),
        (["train", "cartpole", "--set", "learning_rate=3"], "'algorithm.learning_rate'"),
        (["train", "cartpole", "--set", "algorithm.gama=0.9"], "'algorithm.gamma'"),
        (["train", "cartpole", "--set", "actor.envs=many"], "expected int, got 'many'"),
        (["train", "cartpole", "--set", "algorithm.gamma=3"], "from 0 to 1, got 3"),
        (["train", "cartpole", "--set", "layout=parallel"], "serial, inline, shared"),
        (["train", "cartpole", "--set", "actor"], "expected key=value"),
        (["train", "cartpole", "--set", "policies.other.mode=train"], "the policies are default"),
        (["train", "cartpole", "--until", "returns>=3"], "'return'"),
        (["train", "cartpole", "--seeds", "0"], "at least 1"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(arguments, said, capsys, tmp_path):
    folder = tmp_path / "run"
    assert main([*arguments, "--run-dir", str(folder)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.startswith("srl: ")
    assert "Traceback" not in err
    assert not folder.exists()


def test_bad_number_is_a_usage_error(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["train", "cartpole", "--steps", "lots"])
    assert ended.value.code == 2
    assert "200_000, 1e6 or 2M" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["resume", "eval", "play", "plot"])
def test_a_folder_without_a_run_is_named(verb, capsys, tmp_path):
    more = ["--video", "x.mp4"] if verb == "play" else []
    assert main([verb, str(tmp_path), *more]) == 1
    assert str(tmp_path) in capsys.readouterr().err
