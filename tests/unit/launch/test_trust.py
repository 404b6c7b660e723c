"""Code that a run names is imported only if the run is this user's, or the user says so."""

from __future__ import annotations

import dataclasses
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

import srl
from srl.arguments import resumed
from srl.cli import main
from srl.envs.protocol import EnvConfig
from srl.errors import ConfigError
from srl.experiment import Experiment, PolicyConfig
from srl.launch.backends.slurm_job import job_script
from srl.launch.directory import signature
from srl.launch.directory.run_dir import RunDir
from srl.launch.directory.trust import named_code
from srl.resources import SlurmConfig
from srl.settings import to_plain

CANARY = """
import pathlib
import gymnasium

pathlib.Path({canary!r}).write_text("imported")


class Env(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, text=""):
        pass

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {{}}

    def step(self, action):
        return self.observation_space.sample(), 0.0, True, False, {{}}
"""


@pytest.fixture
def canary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once `stranger.py` of the current folder was imported."""
    file = tmp_path / "canary"
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "stranger.py").write_text(CANARY.format(canary=str(file)))
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield file
    sys.modules.pop("stranger", None)


def strangers_run(path: Path, **settings: Any) -> Path:
    """The folder of a run that somebody else has made."""
    path.mkdir(parents=True)
    plain: dict[str, Any] = to_plain(Experiment(env=EnvConfig(id="CartPole-v1"), steps=100))
    plain.update(settings)
    (path / "config.yaml").write_text(yaml.safe_dump(plain))
    return path


NAMES: list[dict[str, Any]] = [
    {"env": {"id": "stranger:Env"}},
    {"env": {"id": "stranger.py:Env"}},
    {"env": {"id": "stranger:Thing-v0"}},
    {"env": {"id": "stranger.py:Thing-v0"}},
    {"env": {"id": "pettingzoo:stranger"}},
    {"env": {"id": "srl.resolve:importlib.import_module", "args": {"name": "stranger"}}},
    {"env": {"id": "srl.resolve:resolve", "args": {"path": "stranger:Env"}}},
    {"env": {"id": "os:system", "args": {"command": "touch canary"}}},
    {"env": {"id": "GymV26Environment-v0", "args": {"env_id": "stranger:Thing-v0"}}},
    {"env": {"id": "Ant-v5", "args": {"xml_file": "/elsewhere/ant.xml"}}},
    {"network": {"name": "stranger:Net"}},
    {"algorithm": {"name": "stranger.py:Algorithm"}},
    {"policies": {"default": {"network": {"name": "stranger:Net"}}}},
    {"policies": {"default": {"algorithm": {"name": "stranger:Algorithm"}}}},
]
CALLBACK: dict[str, Any] = {"logging": {"callbacks": ["stranger.py:Callback"]}}


@pytest.mark.parametrize("settings", [*NAMES, CALLBACK], ids=str)
@pytest.mark.parametrize("verb", ["eval", "play", "resume"])
def test_a_strangers_code_is_listed_and_not_imported(
    settings: dict[str, Any],
    verb: str,
    canary: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = strangers_run(tmp_path / "run", **settings)
    more = ["--video", str(tmp_path / "x.gif")] if verb == "play" else []
    assert main([verb, str(run), *more]) == 2
    said = capsys.readouterr().err
    assert "--trust" in said
    (part,) = settings
    assert f"{part}." in said
    assert not canary.exists()
    assert "stranger" not in sys.modules


def test_a_dataflow_and_set_do_not_import_before_asking(canary: Path, tmp_path: Path) -> None:
    run = strangers_run(tmp_path / "a", dataflow="stranger:flow")
    with pytest.raises(ConfigError, match=r"dataflow +stranger:flow .*stranger\.py"):
        srl.resume(run)
    run = strangers_run(tmp_path / "b", network={"name": "stranger:Net"})
    with pytest.raises(ConfigError, match="--trust"):
        srl.resume(run, set={"network.size": 3})
    assert not canary.exists()


def test_python_asks_too_and_what_needs_no_code_does_not(canary: Path, tmp_path: Path) -> None:
    path = strangers_run(tmp_path / "run", env={"id": "stranger:Env"})
    run = srl.load(path)
    assert run.experiment.env.id == "stranger:Env"
    for ask in (
        run.evaluate,
        lambda: run.policy,
        lambda: run.at("best")["default"],
        lambda: run.play(tmp_path / "x.gif"),
    ):
        with pytest.raises(ConfigError, match=r"stranger\.py[^$]*trust=True"):
            ask()
    assert not canary.exists()
    with pytest.raises(srl.errors.CheckpointError):
        srl.load(path, trust=True).evaluate()
    assert canary.exists()


def test_policies_of_other_runs_are_asked_for_each(canary: Path, tmp_path: Path) -> None:
    mine = RunDir(strangers_run(tmp_path / "mine"))
    theirs = strangers_run(tmp_path / "theirs", env={"id": "stranger:Env"})
    with pytest.raises(ConfigError, match="theirs: this run names code"):
        srl.load(mine.path).evaluate(policies={"default": f"{theirs}@best"})
    with pytest.raises(srl.errors.CheckpointError):
        srl.train("CartPole-v1", init_from=theirs, run_dir=tmp_path / "new", layout="serial")
    assert not canary.exists()


def test_what_only_looks_at_a_run_imports_nothing(
    canary: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = strangers_run(
        tmp_path / "run", env={"id": "stranger:Env"}, network={"name": "stranger:Net"}
    )
    line = {"env_steps": 1, "seconds": 1.0, "episode_return_mean": 1.0}
    (run / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    assert main(["plot", str(run)]) == 0
    assert main(["list"]) == 0
    main(["status", str(run)])
    main(["scale", str(run), "actor=2"])
    capsys.readouterr()
    assert not canary.exists()


@pytest.mark.parametrize(
    "env",
    [
        EnvConfig(id="CartPole-v1", args={"render_mode": "rgb_array", "size": 3}),
        EnvConfig(id="ALE/Pong-v5"),
        EnvConfig(id="envpool:Pong-v5"),
        EnvConfig(id="pettingzoo:mpe2.simple_tag_v3"),
        EnvConfig(id="pettingzoo:classic.tictactoe_v3"),
        EnvConfig(id="srl.envs.tasks.memory:CueRecall", args={"num_cues": 3}),
    ],
    ids=lambda env: env.id,
)
def test_our_own_and_registered_environments_need_no_trust(env: EnvConfig) -> None:
    policies = {"a": PolicyConfig(network={"hidden_sizes": [8]}), "b": PolicyConfig(mode="random")}
    assert not named_code(Experiment(env=env, policies=policies))


def test_an_encoder_is_code_unless_it_is_ours() -> None:
    env = EnvConfig(id="CartPole-v1")
    stranger = {"name": "actor_critic", "encoder": "stranger.py:Net"}
    own = PolicyConfig(network={"critic_encoder": "auto", "critic_encoder_args": {"x": "a:b"}})
    ours = Experiment(env=env, network={"name": "actor_critic", "encoder": "auto"})
    assert not named_code(ours)
    found = named_code(Experiment(env=env, network=stranger, policies={"main": own}))
    assert [(one.setting, one.value) for one in found] == [
        ("network.encoder", "stranger.py:Net"),
        ("policies.main.network.critic_encoder_args", "a:b"),
    ]


# -- whose run it is -----------------------------------------------------------------------------


def own_run(path: Path, **settings: Any) -> RunDir:
    """A run as training here writes it down."""
    path.mkdir()
    directory = RunDir(path)
    directory.write_config(Experiment(env=EnvConfig(id="stranger:Env", **settings), steps=100))
    return directory


def test_a_run_that_was_made_here_is_not_asked_about(canary: Path, tmp_path: Path) -> None:
    run = own_run(tmp_path / "run", args={"text": "a/b"})
    assert run.read_trusted(trust=False).env.args == {"text": "a/b"}
    moved = run.path.rename(tmp_path / "moved")
    assert RunDir(moved).read_trusted(trust=False).env.id == "stranger:Env"


def test_a_run_that_is_written_anew_is_signed_anew(canary: Path, tmp_path: Path) -> None:
    run = own_run(tmp_path / "run")
    before = (run.path / "config.yaml").read_bytes()
    run.write_config(dataclasses.replace(run.read_config(), steps=200))
    assert run.read_trusted(trust=False).steps == 200
    # Whoever dies between the two files leaves the older settings, which stay this user's.
    (run.path / "config.yaml").write_bytes(before)
    assert run.read_trusted(trust=False).steps == 100


def test_changes_by_hand_other_keys_and_other_files_are_asked_about(
    canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited = own_run(tmp_path / "edited")
    config = edited.path / "config.yaml"
    config.write_text(config.read_text().replace("stranger:Env", "stranger:Other"))
    with pytest.raises(ConfigError, match=r"config\.yaml was changed"):
        edited.read_trusted(trust=False)

    run = own_run(tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path / "another user"))
        with pytest.raises(ConfigError, match="not made by this user"):
            run.read_trusted(trust=False)
    # The same name in another folder is other code.
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "stranger.py").write_text("")
    monkeypatch.chdir(folder)
    with pytest.raises(ConfigError, match=r"elsewhere/stranger\.py"):
        run.read_trusted(trust=False)
    assert not canary.exists()


def test_the_key_is_private_and_one_that_others_can_read_is_not_used(
    canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    run = own_run(tmp_path / "run")
    key = signature.key_path()
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert stat.S_IMODE(key.parent.stat().st_mode) == 0o700
    run.read_trusted(trust=False)
    key.chmod(0o644)
    with pytest.raises(ConfigError, match="only you may read, got mode 644"):
        run.read_trusted(trust=False)


def test_a_home_that_cannot_be_written_leaves_runs_unsigned(
    canary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    run = own_run(tmp_path / "run")
    with pytest.raises(ConfigError, match="--trust"):
        run.read_trusted(trust=False)


# -- launchers -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("launcher", "settings"),
    [
        ("slurm", {"setup": ["touch canary"]}),
        ("slurm", {"partition": "gpu\n\ntouch canary"}),
        ("ray", {"address": "ray://elsewhere:10001"}),
        ("ray", {"pip": ["package"]}),
    ],
)
def test_what_a_launcher_would_do_is_listed(
    launcher: str, settings: dict[str, Any], tmp_path: Path
) -> None:
    run = strangers_run(tmp_path / "run", launcher=launcher, **{launcher: settings})
    (key,) = settings
    with pytest.raises(ConfigError, match=f"{launcher}.{key}"):
        resumed(run)
    assert resumed(run, trust=True).launcher == launcher
    assert resumed(run, set={f"{launcher}.{key}": type(settings[key])()}).launcher == launcher
    own = RunDir(tmp_path / "own")
    own.path.mkdir()
    own.write_config(RunDir(run).read_config())
    assert resumed(own.path).launcher == launcher


def test_a_resume_without_a_launcher_does_not_sign_what_one_would_do(tmp_path: Path) -> None:
    run = strangers_run(tmp_path / "run", launcher="processes", slurm={"setup": ["touch canary"]})
    for launcher in (None, "processes"):
        with pytest.raises(ConfigError, match=r"slurm\.setup"):
            # What `launch` does for the run that goes on.
            RunDir(run).write_config(resumed(run, launcher=launcher))
    with pytest.raises(ConfigError, match=r"slurm\.setup"):
        resumed(run, launcher="slurm")
    RunDir(run).write_config(resumed(run, trust=True))
    assert resumed(run, launcher="slurm").slurm.setup == ("touch canary",)


def test_a_job_that_was_handed_in_is_not_asked_again(tmp_path: Path) -> None:
    script = job_script("name", tmp_path, [], SlurmConfig())
    assert f"resume {tmp_path} --quiet --trust" in script


def test_a_strangers_folder_does_not_replace_packages(tmp_path: Path) -> None:
    """Working in it, files that are called like packages are not imported in their place."""
    for name in ("matplotlib", "msgspec", "gymnasium", "envpool", "numpy"):
        (tmp_path / f"{name}.py").write_text("open('canary', 'w').close()")
    command = [sys.executable, "-P", "-c", "from srl.cli import main; raise SystemExit(main())"]
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [*command, "train", "CartPole-v1", "--layout", "inline", "--steps", "1", "--quiet"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "canary").exists()
