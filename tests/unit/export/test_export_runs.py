"""A run's policy leaves it: `srl.load_policy` and `srl export` need no environment."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import srl
from srl.cli import main
from srl.errors import ConfigError, RunError
from srl.launch.directory import signature

ENV = """
import gymnasium
import numpy as np


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Dict(
        {"speed": gymnasium.spaces.Box(-1, 1, (2,)), "gear": gymnasium.spaces.Discrete(3, start=1)}
    )
    action_space = gymnasium.spaces.Discrete(3, start=5)

    def reset(self, *, seed=None, options=None):
        self.observation_space.seed(seed)
        self.count = 0
        return self.observation_space.sample(), {}

    def step(self, action):
        self.count += 1
        return self.observation_space.sample(), float(action), self.count == 10, False, {}
"""


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of an environment whose file is gone."""
    folder = tmp_path_factory.mktemp("export")
    env = folder / "their_env.py"
    env.write_text(ENV)
    settings = {"network.recurrent": "lstm", "network.recurrent_size": 8, "actor.envs": 2}
    srl.train(
        f"{env}:Env", steps=200, layout="serial", set=settings, run_dir=folder / "run", quiet=True
    )
    env.unlink()
    return folder / "run"


def observations() -> list[dict[str, object]]:
    rng = np.random.default_rng(0)
    return [
        {"speed": rng.normal(size=2).astype(np.float32), "gear": int(rng.integers(1, 4))}
        for _ in range(30)
    ]


def test_a_policy_acts_and_is_exported_without_its_environment(
    run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match="their_env"):
        _ = srl.load(run_dir).policy
    policy = srl.load_policy(run_dir)
    file = tmp_path / "new" / "policy.onnx"
    assert main(["export", str(run_dir), "--output", str(file)]) == 0
    assert str(file.with_suffix(".md")) in capsys.readouterr().out
    assert "default" in file.with_suffix(".md").read_text()
    session = onnxruntime.InferenceSession(file)
    names = [port.name for port in session.get_outputs()]
    state = {
        port.name: np.zeros((1, 8), np.float32)
        for port in session.get_inputs()
        if port.name.startswith("state.")
    }
    chosen = set()
    for number, obs in enumerate(observations()):
        given = {
            "obs.speed": np.asarray([obs["speed"]], np.float32),
            "obs.gear": np.asarray([obs["gear"]], np.int64),
            "is_first": np.array([number % 10 == 0]),
        }
        if number % 10 == 0:
            policy.reset()
        found = dict(zip(names, session.run(names, given | state), strict=True))
        state = {name: found[f"next_{name}"] for name in state}
        expected = policy.act(obs)
        assert found["action"][0] == expected
        chosen.add(int(expected))
    assert chosen <= {5, 6, 7}


def test_names_that_are_wrong_are_refused_before_anything_is_written(
    run_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"policy: expected the name of one \(default\).*'red'"):
        srl.load(run_dir).export(tmp_path / "policy.onnx", of="red")
    with pytest.raises(ConfigError, match=r"ends in \.onnx or \.pt2"):
        srl.load(run_dir).export(tmp_path / "policy.tflite")
    assert main(["export", str(run_dir), "--output", str(tmp_path / "policy")]) == 2
    assert not list(tmp_path.iterdir())


def test_a_strangers_run_needs_trust_only_for_the_code_of_its_policy(
    run_dir: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "theirs"
    shutil.copytree(run_dir, copy)
    (copy / signature.SIGNATURE_FILE).unlink()
    # Its environment is a stranger's code, which is not imported.
    assert srl.load_policy(copy).act(observations()[0]) in (5, 6, 7)
    config = copy / "config.yaml"
    text = config.read_text()
    assert "\n  name: actor_critic" in text
    config.write_text(text.replace("\n  name: actor_critic", "\n  name: stranger:Net", 1))
    with pytest.raises(ConfigError, match=r"network\.name .*stranger:Net") as caught:
        srl.load_policy(copy)
    assert "env.id" not in str(caught.value)


def test_a_run_without_its_spaces_says_how_to_get_them(run_dir: Path, tmp_path: Path) -> None:
    copy = tmp_path / "old"
    shutil.copytree(run_dir, copy)
    (copy / "spaces.json").unlink()
    with pytest.raises(RunError, match=r"spaces\.json: expected .*srl resume"):
        srl.load_policy(copy, trust=True)
    (copy / "spaces.json").write_text('{"spec": 3}')
    with pytest.raises(RunError, match=r"spaces\.json: expected the spaces"):
        srl.load_policy(copy, trust=True)
