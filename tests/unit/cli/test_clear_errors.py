"""What a user can get wrong, and files that are damaged, end in one message and a non-zero code."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from srl.cli import main

CODE = '''
from dataclasses import dataclass
from pathlib import Path
import gymnasium
import numpy as np
from srl.policies.protocol import Policy


class Env(gymnasium.Env):
    """Nothing can be seen of it, and it draws what is in a file, if that is there."""

    def reset(self, *, seed=None, options=None):
        return np.zeros(3, np.float32), {}

    def step(self, action):
        return np.zeros(3, np.float32), 0.0, True, False, {}

    def render(self):
        picture = Path(__file__).with_name("picture.npy")
        return np.load(picture) if picture.exists() else super().render()


class NoAction(Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (3,))


class Text(NoAction):
    action_space = "left or right"


class Blind(NoAction):
    action_space = gymnasium.spaces.Discrete(2)


class NoConfig(Policy):
    extras_spec = {}

    def act(self, *args):
        pass


class NoExtras(NoConfig):
    @dataclass
    class Config:
        pass

    @property
    def extras_spec(self):
        raise AttributeError("no extras_spec")


class OtherExtras(NoExtras):
    extras_spec = {"value": (1,)}


class Unmade(OtherExtras):
    def __init__(self, agent, config):
        super().__init__(agent, config)
        self.layer = undefined_name


class Abstract(Policy):
    Config = NoExtras.Config
'''


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with code and a short run of an environment that cannot draw yet."""
    path = tmp_path_factory.mktemp("errors")
    (path / "code.py").write_text(CODE)
    arguments = ("--layout", "serial", "--steps", "200", "--quiet", "--set", "actor.envs=2")
    rollout = ("--set", "algorithm.rollout_length=16", "--set", "logging.interval_seconds=0.001")
    target = f"{path / 'code.py'}:Blind"
    assert main(["train", target, *arguments, *rollout, "--run-dir", str(path / "run")]) == 0
    return path


def fails(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What a command that must fail has printed."""
    capsys.readouterr()
    assert main(list(arguments)) in (1, 2)
    printed = capsys.readouterr().err
    assert printed.startswith("srl: ")
    assert "Traceback" not in printed
    return printed


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Env", "observation_space to be a gymnasium.spaces.Space, got none"),
        ("NoAction", "action_space to be a gymnasium.spaces.Space, got none"),
        ("Text", "action_space to be a gymnasium.spaces.Space, got str"),
    ],
)
@pytest.mark.parametrize("verb", ["plan", "train", "settings"])
def test_an_environment_without_spaces(
    verb: str, name: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in fails(capsys, verb, f"{folder / 'code.py'}:{name}")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("NoConfig", "expected a dataclass `Config`"),
        ("NoExtras", "expected extras_spec to be a tree"),
        ("OtherExtras", "expected extras_spec to be a tree"),
        ("Unmade", "raised NameError: name 'undefined_name' is not defined"),
        ("Abstract", "raised TypeError: Can't instantiate abstract class"),
    ],
)
def test_a_policy_that_is_not_one(
    name: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = f"network.name={folder / 'code.py'}:{name}"
    assert words in fails(capsys, "plan", "CartPole-v1", "--set", network)


@pytest.mark.skipif(torch.cuda.is_available(), reason="it has a GPU")
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("trainer.device=cuda", "trainer.device: expected a device that this machine has"),
        ("trainer.device=cuda:7", "got 'cuda:7'"),
        ("trainer.device=xpu", "got 'xpu'"),
        ("inference.device=cuda", "inference.device: expected a device that this machine has"),
        ("trainer.device=gpu", "trainer.device: expected one of"),
        ("inference.device=auto", "inference.device: expected one of"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "resume", "plan"])
def test_a_device_that_is_not_there(
    verb: str, setting: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(folder / "run") if verb == "resume" else "CartPole-v1"
    more = [] if verb == "plan" else ["--steps", "999"]
    more += ["--run-dir", str(folder / "none")] if verb == "train" else []
    assert words in fails(capsys, verb, target, *more, "--set", setting)
    assert not (folder / "none").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--video", "FOLDER/v.gif"), "render: expected uint8[height,width,3], got none"),
        (("--video", "/proc/none/v.gif"), "cannot write the video"),
        (("--video", "FOLDER/v.gif", "--fps", "0"), "fps: expected"),
        (("--video", "FOLDER/v.gif", "--seed", "-1"), "seed: expected"),
        (("--video", "FOLDER/v.txt"), "video: expected"),
    ],
)
def test_play(
    arguments: tuple[str, ...], words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [part.replace("FOLDER", str(folder)) for part in arguments]
    assert words in fails(capsys, "play", str(folder / "run"), *given)


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((3,), "uint8"),
        ((8, 8), "uint8"),
        ((8, 8, 1), "uint8"),
        ((0, 8, 3), "uint8"),
        ((8, 8, 3), "float32"),
        ((2, 8, 8, 3), "uint8"),
    ],
)
@pytest.mark.parametrize("suffix", ["gif", "mp4"])
def test_play_of_what_is_no_picture(
    shape: tuple[int, ...],
    dtype: str,
    suffix: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    picture = folder / "picture.npy"
    np.save(picture, np.zeros(shape, dtype))
    try:
        printed = fails(capsys, "play", str(folder / "run"), "--video", f"{folder}/v.{suffix}")
    finally:
        picture.unlink()
    assert f"render: expected uint8[height,width,3], got {dtype}{list(shape)}" in printed


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--seconds", "nan"), "seconds: expected a number, got nan"),
        (("--set", "silence_seconds=.nan"), "silence_seconds: expected a number, got nan"),
        (("--seed", "99999999999999999999"), "seed: expected less than"),
    ],
)
def test_numbers_that_are_none(
    arguments: tuple[str, ...], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert words in fails(capsys, "train", "CartPole-v1", *arguments)


DAMAGE = {
    "empty": b"",
    "list": b"[1, 2]",
    "binary": bytes(range(256)),
    "not text": b'{"a": "\xff\xfe"}',
    "null": b"null",
    "deep list": b"[" * 50_000 + b"]" * 50_000,
    "deep object": b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
    "strings": b'{"env_steps": "many", "number": "one", "status": 3}\n{"env_steps": "more"}',
    "lists": b'{"env_steps": [1]}\n{"env_steps": {}}\n{"env_steps": null}',
    "huge": b'{"env_steps": ' + b"9" * 400 + b', "episode_return_mean": 1e999}',
    "folder": None,
}


READERS = (
    ("config.yaml", "eval"),
    ("config.yaml", "resume"),
    ("metrics.jsonl", "plot"),
    ("status.json", "status"),
    ("summary.json", "summary"),
    ("checkpoints/*/manifest.json", "eval"),
    ("checkpoints/*/weights.default.safetensors", "eval"),
    ("checkpoints/*/trainer%2F0.safetensors", "resume"),
)


@pytest.mark.parametrize(
    ("file", "verb", "damage"),
    [(file, verb, damage) for file, verb in READERS for damage in DAMAGE]
    + [("logs/controller.log", "resume", "folder")],
)
def test_a_damaged_run(
    file: str, verb: str, damage: str, folder: Path, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    content = DAMAGE[damage]
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    for path in [*run.glob(file)] or [run / file]:
        path.unlink(missing_ok=True)
        if content is None:
            path.mkdir()
        else:
            path.write_bytes(content)
    if verb == "summary":
        import srl

        with pytest.raises(srl.errors.SrlError, match=r"summary\.json: expected a "):
            _ = srl.load(run).summary
        return
    # It begins with what is wrong; a long run would show that it was not noticed.
    limit = ["--steps", "300"] if verb == "resume" else []
    fails(capsys, verb, str(run), *limit)


def test_a_config_that_is_no_text_does_not_keep_a_run_from_being_drawn(
    folder: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(folder / "run", run)
    (run / "config.yaml").write_bytes(bytes(range(256)))
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b'{"env_steps": "many"}\n' + b"[" * 50_000 + b'\n{"env_steps": 3, "x": [1]}\n')
    assert main(["plot", str(run)]) == 0
