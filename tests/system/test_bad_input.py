"""Bad input gets one clear message, a non-zero exit, and loses nothing."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from harness import FAULTY, SMALL, Training, checkpoints, read_summary, wait_for

import srl
from srl.cli import main
from srl.errors import ConfigError
from srl.launch.directory.run_dir import RunDir
from srl.testing.envs import ScriptedEnv

pytestmark = pytest.mark.runs

ENVS = "srl.testing.envs"
LAYOUTS = ("serial", "inline")

Train = Callable[..., str]


@pytest.fixture
def fails(tmp_path: Path, shm: Path, capfd: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Runs a command that must fail, and returns what it printed on stderr."""

    def run(*arguments: str, verb: str = "train", run_dir: Path | None = None) -> str:
        run_dir = run_dir or tmp_path / "run"
        where = ("--run-dir", str(run_dir)) if verb == "train" else (str(run_dir),)
        capfd.readouterr()
        code = main([verb, *(arguments[:1] if verb == "train" else ()), *where, "--quiet",
                     *(arguments[1:] if verb == "train" else arguments)])  # fmt: skip
        printed = capfd.readouterr().err
        assert code in (1, 2), printed
        assert printed.startswith("srl: ")
        assert "Traceback" not in printed
        assert list(shm.iterdir()) == []
        return printed

    return run


def assert_failed(run_dir: Path, *words: str) -> None:
    """The summary says that the run failed, and why."""
    summary = read_summary(run_dir)
    assert summary["status"] == "failed"
    for word in words:
        assert word in summary["error"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("CartPoel-v1",), ("CartPoel-v1", "CartPole-v1")),
        (("cartpol",), ("cartpol", "cartpole")),
        (("CartPole-v1", "--algorithm", "poo"), ("poo", "ppo")),
        (("CartPole-v1", "--set", "actor.evns=3"), ("actor.evns", "envs")),
        (("CartPole-v1", "--set", "algorithm.learning_rat=1"), ("learning_rat", "learning_rate")),
        (("CartPole-v1", "--set", "actor.envs=many"), ("actor.envs", "int")),
        (("CartPole-v1", "--set", "algorithm.gamma=1.5"), ("algorithm.gamma", "got 1.5")),
        (("CartPole-v1", "--set", "actor.envs=0"), ("actor.envs", "at least 1", "got 0")),
        (("CartPole-v1", "--set", "silence_seconds=0"), ("silence_seconds", "got 0")),
        (("CartPole-v1", "--until", "retrun>=3"), ("retrun", "return")),
        (("no_such_module:Env",), ("no_such_module",)),
        ((f"{ENVS}:ScriptdEnv",), ("ScriptdEnv", "ScriptedEnv")),
        (("CartPole-v1", "--set", "network.name=nothing"), ("nothing", "actor_critic")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_names_and_values(
    arguments: tuple[str, ...], words: tuple[str, ...], fails: Train, tmp_path: Path
) -> None:
    printed = fails(*arguments)
    for word in words:
        assert word in printed
    assert not (tmp_path / "run").exists()


BROKEN_ENVS = {
    "shape": ("BadShapeEnv", {}, ("expected float32[4]", "got float32[1]", "step()")),
    "dtype": ("BadShapeEnv", {"shape": "[4]", "dtype": "str"}, ("expected float32[4]",)),
    "nan": ("NanEnv", {}, ("nan", "step()")),
    "nan reward": ("NanEnv", {"what": "reward"}, ("reward", "finite", "nan")),
    "raises": ("CrashingEnv", {}, ("RuntimeError in step()", "crashes on purpose")),
    "raises in reset": ("CrashingEnv", {"call": "reset"}, ("RuntimeError in reset()",)),
    "hangs": ("HangingEnv", {}, ("in step()", "env.step_timeout_seconds")),
    "hangs in reset": ("HangingEnv", {"call": "reset"}, ("in reset()", "env.reset_timeout")),
}


# A process takes seconds to start: the cases that are the same code there are tried in one thread.
@pytest.mark.parametrize(
    ("case", "layout"),
    [(case, "serial") for case in BROKEN_ENVS]
    + [(case, "inline") for case in ("shape", "nan reward", "raises", "hangs")],
)
def test_environments_that_break_their_word(
    case: str, layout: str, fails: Train, tmp_path: Path
) -> None:
    name, settings, words = BROKEN_ENVS[case]
    arguments = [f"--env-arg={key}={value}" for key, value in {"at_step": 2, **settings}.items()]
    printed = fails(
        f"{ENVS}:{name}", *arguments, "--layout", layout, *SMALL, "--set", "actor.count=1",
        "--set", "env.step_timeout_seconds=1", "--set", "env.reset_timeout_seconds=1",
    )  # fmt: skip
    for word in (*words, "actor/0", "environment 0"):
        assert word in printed
    assert_failed(tmp_path / "run", *words)


@pytest.mark.parametrize(
    ("layout", "policy", "words"),
    [
        ("serial", "WrongActionPolicy", ("action: expected int64[8]", "got int64[7]", "policy/0")),
        ("serial", "WrongExtrasPolicy", ("extras: expected float32[8]", "got float32[8, 1]")),
        ("serial", "RaisingPolicy", ("policy/0: RuntimeError", "raises on purpose")),
        ("inline", "WrongActionPolicy", ("action: expected int64[8]", "got int64[7]", "policy/0")),
        ("shared", "RaisingPolicy", ("policy/0: RuntimeError", "raises on purpose")),
    ],
)
def test_policies_that_break_their_word(
    layout: str, policy: str, words: tuple[str, ...], tmp_path: Path, shm: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    code = main(
        ["train", "CartPole-v1", "--run-dir", str(tmp_path / "run"), "--quiet", "--layout", layout,
         "--set", f"network.name={FAULTY}:{policy}", *SMALL]
    )  # fmt: skip
    printed = capfd.readouterr().err
    assert code == 1
    for word in words:
        assert word in printed
    assert printed.startswith("srl: ")
    assert_failed(tmp_path / "run", *words)
    assert list(shm.iterdir()) == []


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_loss_that_turns_nan_stops_and_the_last_good_checkpoint_stays(
    layout: str, fails: Train, tmp_path: Path
) -> None:
    printed = fails(
        "CartPole-v1", "--layout", layout, "--algorithm", f"{FAULTY}:NanLoss", *SMALL,
        "--set", "checkpoint.every_seconds=0.01",
    )  # fmt: skip
    for word in ("trainer/0", "finite loss", "nan", "learning_rate"):
        assert word in printed
    assert_failed(tmp_path / "run", "finite loss")
    last = RunDir(tmp_path / "run").store().find("latest")
    assert max(last.manifest.policy_versions.values()) <= 4
    scores = srl.load(tmp_path / "run").evaluate(2)
    assert scores.mean > 0


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_full_disk_while_checkpointing(
    layout: str, fails: Train, small_disk: Callable[[int], Path], tmp_path: Path
) -> None:
    run_dir = small_disk(6) / "run"
    printed = fails(
        "CartPole-v1", "--layout", layout, *SMALL, "--set", "network.hidden_sizes=[256, 256]",
        "--set", "checkpoint.every_seconds=0.2", "--set", "checkpoint.keep_last=100",
        run_dir=run_dir,
    )  # fmt: skip
    assert "the disk is full" in printed
    assert "Earlier checkpoints are untouched" in printed
    found, _ = RunDir(run_dir).store().latest_valid()
    assert found is not None
    assert all(path.joinpath("manifest.json").exists() for path in checkpoints(run_dir))


def test_too_little_shared_memory(
    small_disk: Callable[[int], Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    memory = small_disk(64)
    monkeypatch.setenv("SRL_SHM_DIR", str(memory))
    code = main(
        ["train", "CartPole-v1", "--run-dir", str(tmp_path / "run"), "--quiet", "--layout",
         "inline", "--set", "actor.envs=2000", "--set", "algorithm.rollout_length=512"]
    )  # fmt: skip
    printed = capfd.readouterr().err
    assert code == 1
    for word in ("needs", "MB are free", "sample.slots", "--shm-size"):
        assert word in printed
    assert list(memory.iterdir()) == []
    assert_failed(tmp_path / "run", "shared memory")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_corrupt_checkpoint_gives_way_to_the_one_before(
    layout: str, shm: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run_dir = tmp_path / "run"
    common = ["--quiet", "--layout", layout, *SMALL]
    assert main(["train", "CartPole-v1", "--run-dir", str(run_dir), "--steps", "600", *common]) == 0
    assert main(["resume", str(run_dir), "--quiet", "--steps", "1200"]) == 0
    *_, good, bad = checkpoints(run_dir)
    weights = bad / "weights.default.safetensors"
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 0xFF
    weights.write_bytes(data)

    assert main(["resume", str(run_dir), "--steps", "1800"]) == 0

    said = capfd.readouterr()
    log = (run_dir / "logs" / "controller.log").read_text()
    for text in (said.out + said.err, log):
        assert f"checkpoint {int(bad.name)} is corrupt" in text
        assert f"falling back to checkpoint {int(good.name)}" in text
    assert read_summary(run_dir)["env_steps"] >= 1800


def test_only_corrupt_checkpoints_are_an_error(fails: Train, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    start = ["train", "CartPole-v1", "--run-dir", str(run_dir), "--steps", "600", "--quiet"]
    assert main([*start, "--layout", "serial", *SMALL]) == 0
    for path in checkpoints(run_dir):
        (path / "manifest.json").write_text("{")
    printed = fails("--steps", "1000", verb="resume")
    assert "no whole checkpoint is left" in printed
    assert "--fresh" in printed


def test_a_run_directory_in_use(fails: Train, tmp_path: Path) -> None:
    with RunDir(tmp_path / "run").locked():
        printed = fails("CartPole-v1", "--layout", "serial")
    assert "another process is training here" in printed
    assert "--run-dir" in printed


def test_classes_that_workers_cannot_import() -> None:
    with pytest.raises(ConfigError, match="cannot import"):
        srl.train(lambda: None, steps=100)

    class Local:
        pass

    with pytest.raises(ConfigError, match="Move it out"):
        srl.train(Local, steps=100)


def test_a_class_of_a_prompt_trains_in_serial(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Typed(ScriptedEnv):
        pass

    Typed.__qualname__, Typed.__module__ = "Typed", "__main__"
    monkeypatch.setattr(sys.modules["__main__"], "Typed", Typed, raising=False)
    monkeypatch.delattr(sys.modules["__main__"], "__file__", raising=False)
    with pytest.raises(ConfigError, match=r'typed at a prompt.*layout="serial"'):
        srl.train(Typed, steps=100, layout="inline", run_dir=tmp_path / "a")
    assert not (tmp_path / "a").exists()
    run = srl.train(Typed, steps=100, layout="serial", run_dir=tmp_path / "b", quiet=True)
    assert run.summary.status == "finished"


def test_resuming_cannot_change_what_is_learned(fails: Train, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    start = ["train", "CartPole-v1", "--run-dir", str(run_dir), "--steps", "300", "--quiet"]
    assert main([*start, "--layout", "serial", *SMALL]) == 0
    before = (run_dir / "summary.json").read_text()
    printed = fails("CartPole-v1", "--set", "algorithm.gamma=0.9", *SMALL)
    assert "algorithm.gamma:" in printed
    assert "-> 0.9" in printed
    assert "--fresh" in printed
    assert (run_dir / "summary.json").read_text() == before


def test_actions_that_are_all_clipped_are_told(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start = ["train", f"{FAULTY}:DistantEnv", "--run-dir", str(tmp_path / "run")]
    assert main([*start, "--steps", "64", "--layout", "serial", *SMALL]) == 0
    printed = capfd.readouterr().out
    assert "warning: controller: agent: action 0 is bounded by [10, 20]" in printed
    assert "RescaleAction" in printed


def test_a_failed_run_keeps_what_it_learned(fails: Train, tmp_path: Path) -> None:
    """What fails is an environment, so the learner's state is still good and is saved."""
    fails(
        f"{ENVS}:CrashingEnv", "--env-arg=at_step=150", "--layout", "serial", *SMALL,
        "--set", "checkpoint.every_seconds=1000",
    )  # fmt: skip
    (kept,) = checkpoints(tmp_path / "run")
    manifest = json.loads((kept / "manifest.json").read_text())
    assert manifest["env_steps"] > 0
    assert not manifest["exact"]
    shutil.rmtree(kept)


def test_a_disk_that_is_full_from_the_start(
    fails: Train, small_disk: Callable[[int], Path]
) -> None:
    disk = small_disk(1)
    with (disk / "filler").open("wb") as filler:
        filler.write(bytes(1 << 20))
    printed = fails("CartPole-v1", "--layout", "serial", *SMALL, run_dir=disk / "run")
    assert "No space left" in printed


def test_a_run_dir_that_is_being_trained_in_by_a_process(
    start: Callable[..., Training], fails: Train
) -> None:
    training = start("CartPole-v1", "--layout", "serial", "--steps", "1e9", *SMALL)
    wait_for((training.run_dir / "metrics.jsonl").exists, "the run to start")
    printed = fails("CartPole-v1", "--layout", "serial", *SMALL, run_dir=training.run_dir)
    assert "another process is training here" in printed
    assert training.stop() == 130
