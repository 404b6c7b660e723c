"""User code that raises is told with file, line and message; a file that trains is refused."""

from __future__ import annotations

from pathlib import Path

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

import srl
from srl.cli import main
from srl.envs.protocol import EnvConfig
from srl.envs.registry import probe
from srl.errors import ConfigError, EnvError
from srl.resolve import resolve
from srl.tracebacks import in_user_code, raised_at

ENV = """
import builtins
import gymnasium
import numpy as np
import srl


class Env(gymnasium.Env):
    def __init__(self, bad="", error="ValueError"):
        self.bad, self.error = bad, error
        self.observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.fail("init")

    def fail(self, call):
        if self.bad == call:
            raise getattr(builtins, self.error)(f"went wrong in {call}")  # here

    def reset(self, *, seed=None, options=None):
        self.fail("reset")
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.fail("step")
        return np.zeros(3, np.float32), 0.0, False, False, {}

    def state(self):
        self.fail("state")
        return {}

    def restore(self, state):
        self.fail("restore")

    def render(self):
        self.fail("render")

    def close(self):
        self.fail("close")
"""


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "mine.py") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def line_of(path: Path, text: str) -> int:
    return 1 + next(n for n, line in enumerate(path.read_text().splitlines()) if text in line)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        ("srl.train(Env, steps=100)", "srl.train"),
        ("srl.resume('runs/x')", "srl.resume"),
        ("srl.run.Run.evaluate(object())", "run.evaluate"),
        ("srl.run.Run.play(object(), 'x.gif')", "run.play"),
    ],
)
@pytest.mark.parametrize("form", ["file", "module"])
def test_a_file_that_trains_when_it_is_imported_is_refused(
    call: str, name: str, form: str, write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stem = f"unguarded_{abs(hash((call, form)))}"
    path = write(f"{ENV}\nimport srl.run\n{call}\n", f"{stem}.py")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError) as error:
        resolve(f"{path}:Env" if form == "file" else f"{stem}:Env")
    assert str(error.value).startswith(f"{name}: ")
    assert stem in str(error.value)
    assert 'if __name__ == "__main__":' in str(error.value)
    assert not (tmp_path / "runs").exists()
    # Afterwards nothing is being imported.
    with pytest.raises(srl.errors.RunError):
        srl.resume(tmp_path / "none")


@pytest.mark.parametrize(
    ("id", "backend"),
    [("Unguarded-v0", "single"), ("Unguarded-v0", "vector"), ("pettingzoo:unguarded", "auto")],
)
def test_a_file_that_trains_when_an_environment_is_made_is_refused(
    id: str, backend: str, write, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if id.startswith("pettingzoo:"):
        pytest.importorskip("pettingzoo")
    write(f"{ENV}\nsrl.train(Env, steps=100)\n", "unguarded.py")
    monkeypatch.syspath_prepend(str(tmp_path))
    point = "unguarded:Env"
    spec = EnvSpec("Unguarded-v0", entry_point=point, vector_entry_point=point)
    monkeypatch.setitem(gymnasium.registry, "Unguarded-v0", spec)
    with pytest.raises(ConfigError, match="got one by unguarded while SRL imports it"):
        probe(EnvConfig(id=id, backend=backend))


def test_a_guarded_file_is_imported(write) -> None:
    path = write(f"{ENV}\nif __name__ == '__main__':\n    srl.train(Env)\n")
    assert resolve(f"{path}:Env").__name__ == "Env"


def test_a_file_that_exits_when_it_is_imported_is_refused(write) -> None:
    path = write("import sys\nsys.exit(3)\n")
    with pytest.raises(ConfigError, match="exit code 3") as error:
        resolve(f"{path}:Env")
    assert 'if __name__ == "__main__":' in str(error.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\nundefined_name\n", ("line 2", "NameError", "undefined_name")),
        ("x = 1\n\ndef broken(:\n", ("line 3", "SyntaxError")),
        ("import no_such_package_here\n", ("line 1", "no_such_package_here")),
    ],
)
def test_a_file_that_raises_when_it_is_imported(
    text: str, words: tuple[str, ...], write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(text)
    assert main(["train", f"{path}:Env", "--run-dir", str(path.parent / "run")]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"srl: {path}")
    assert "Traceback" not in printed
    for word in (f'File "{path}"', *words):
        assert word in printed


@pytest.mark.parametrize("error", ["ValueError", "SystemExit"])
@pytest.mark.parametrize("call", ["init", "reset", "step", "state", "restore", "close"])
def test_check_says_where_an_environment_raised(
    call: str, error: str, write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(ENV)
    options = ["--env-arg", f"bad={call}", "--env-arg", f"error={error}"]
    assert main(["check", f"{path}:Env", *options]) == 1
    printed = capsys.readouterr().out
    assert f'File "{path}", line {line_of(path, "# here")}' in printed
    assert f"{error}: went wrong in {call}" in printed


def test_an_environment_that_ends_the_program_while_it_is_made_ends_a_run_as_an_error(
    write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(ENV)
    options = ["--env-arg", "bad=init", "--env-arg", "error=SystemExit"]
    assert main(["train", f"{path}:Env", *options, "--run-dir", str(path.parent / "run")]) == 1
    printed = capsys.readouterr().err
    assert f'File "{path}", line {line_of(path, "# here")}' in printed
    assert "SystemExit: went wrong in init" in printed


def test_a_picture_that_ends_the_program_is_a_warning(
    write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(ENV)
    main(["check", f"{path}:Env", "--env-arg", "bad=render", "--env-arg", "error=SystemExit"])
    printed = capsys.readouterr().out
    assert "SystemExit: went wrong in render" in printed


def test_a_wrong_argument_inside_of_the_constructor_is_not_the_settings_fault(write) -> None:
    text = "def inner():\n    pass\n\ndef make():\n    inner(size=3)\n"
    path = write(text)
    with pytest.raises(EnvError, match="unexpected keyword argument 'size'") as error:
        probe(EnvConfig(id=f"{path}:make"))
    assert "line 5" in str(error.value)
    with pytest.raises(ConfigError, match=r"env\.args.*does not take them"):
        probe(EnvConfig(id=f"{path}:make", args={"depth": 1}))


@pytest.mark.parametrize(
    ("function", "subject"),
    [
        ("def mine() -> srl.Experiment:\n    raise KeyError('recipe')\n", "recipe"),
        (
            "def mine() -> srl.Experiment:\n"
            "    return srl.Experiment(env=srl.EnvConfig(id='CartPole-v1'), "
            "dataflow=__file__ + ':flow')\n"
            "def flow(graph):\n    raise KeyError('dataflow')\n",
            "dataflow",
        ),
    ],
)
def test_recipes_and_dataflows_that_raise(
    function: str, subject: str, write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(f"import srl\n{function}")
    assert main(["plan", f"{path}:mine"]) == 2
    printed = capsys.readouterr().err
    assert printed.startswith(f"srl: {subject} ")
    assert f'File "{path}", line {line_of(path, "raise")}' in printed


def deep(depth: int) -> None:
    if depth == 0:
        raise ValueError("x" * 10_000)
    (deep if depth % 2 else shallow)(depth - 1)


def shallow(depth: int) -> None:
    deep(depth)


def test_long_tracebacks_are_shortened() -> None:
    with pytest.raises(ValueError, match="xxx") as caught:
        deep(300)
    text = raised_at(caught.value)
    assert len(text) < 20_000
    assert "lines left out" in text
    assert "in test_long_tracebacks_are_shortened" in text
    assert 'raise ValueError("x" * 10_000)' in text
    assert in_user_code(caught.value)


def chained() -> None:
    try:
        raise KeyError("first")
    except KeyError as error:
        raise RuntimeError("second") from error


def test_causes_are_told_too() -> None:
    with pytest.raises(RuntimeError) as caught:
        chained()
    text = raised_at(caught.value)
    assert text.index("KeyError: 'first'") < text.index("RuntimeError: second")
