"""Going on with a run: interrupted early, finished, with other settings, in a folder of others."""

from __future__ import annotations

import signal
import time

import pytest
import yaml

import srl
from srl.algorithms.ppo.learner import PPO
from srl.cli import main
from srl.launch.run import launch
from srl.launch.run.goals import Goals

SMALL = ["--layout", "serial", "--set", "actor.envs=4", "--set", "algorithm.rollout_length=16"]
SETTINGS = {"actor.envs": 4, "algorithm.rollout_length": 16}


class EndlessUpdate(PPO):
    """From its second update on there are minibatches for as long as a test may wait; the run's
    time is over as soon as that one has begun."""

    def update(self, batch, progress):
        if self.num_updates == 0:
            yield from super().update(batch, progress)
            return
        Goals.by_seconds = lambda goals, seconds: "trained for long enough"
        deadline = time.monotonic() + 120.0
        while time.monotonic() < deadline:
            yield None
        raise AssertionError("the update was not given up when the time was over")


def train(folder, *more, recipe="cartpole"):
    return main(["train", recipe, "--run-dir", str(folder), *SMALL, *more])


def tiny(folder, steps=320, **more):
    return srl.train(
        "CartPole-v1", steps=steps, layout="serial", set=SETTINGS, run_dir=folder, **more
    )


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def interrupt(*_):
    signal.raise_signal(signal.SIGINT)


def test_a_run_that_was_interrupted_before_it_was_planned_goes_on(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(launch, "probe_groups", interrupt)
        assert train(folder, "--steps", "320") == 130
    written = yaml.safe_load((folder / "config.yaml").read_text())
    assert written["algorithm"]["adam_eps"] == 1e-5
    assert written["network"]["hidden_sizes"]
    assert f"go on       srl resume {folder}" in capsys.readouterr().out
    assert train(folder, "--steps", "320") == 0
    assert f"{folder} has no checkpoint: training starts from the beginning" in (
        capsys.readouterr().out
    )
    assert srl.load(folder).summary.env_steps >= 320


def test_one_that_was_interrupted_while_it_was_settled_goes_on(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(launch, "resolve_settings", interrupt)
        assert train(folder, "--steps", "320") == 130
    assert "adam_eps" in yaml.safe_load((folder / "config.yaml").read_text())["algorithm"]
    assert main(["resume", str(folder), "--quiet"]) == 0
    assert srl.load(folder).summary.env_steps >= 320


def test_settings_that_could_not_work_are_put_right_in_the_same_folder(tmp_path):
    """Nothing was learned with them, so nothing has to be kept."""
    folder = tmp_path / "run"
    assert train(folder, "--steps", "320", "--env-arg", "nonsense=1", "--seed", "2") != 0
    assert (folder / "config.yaml").exists()
    assert train(folder, "--steps", "320", "--quiet") == 0
    assert srl.load(folder).experiment.seed == 1


def test_other_first_weights_replace_those_of_a_run_that_learned_nothing(tmp_path, monkeypatch):
    one = tiny(tmp_path / "one", seed=1, quiet=True)
    two = tiny(tmp_path / "two", seed=2, quiet=True)
    folder = tmp_path / "run"
    with monkeypatch.context() as patched:
        patched.setattr(launch._Launch, "_controller", interrupt)
        assert train(folder, "--init-from", str(one.path), recipe="CartPole-v1") == 130
    kept = folder / "sources" / "default.safetensors"
    first = kept.read_bytes()
    again = ["--steps", "320", "--quiet", "--init-from", str(two.path)]
    assert train(folder, *again, recipe="CartPole-v1") == 0
    assert kept.read_bytes() != first


def test_a_finished_run_says_so_and_is_not_trained(tmp_path, capsys):
    folder = tmp_path / "run"
    assert train(folder, "--steps", "320", "--quiet") == 0
    before = contents(folder / "checkpoints") | contents(folder / "logs")
    summary = (folder / "summary.json").read_bytes()
    for again in (["resume", str(folder)], ["train", "cartpole", "--steps", "320", *SMALL]):
        more = [] if again[0] == "resume" else ["--run-dir", str(folder)]
        assert main([*again, *more]) == 0
        out = capsys.readouterr().out
        assert f"{folder} is finished (trained on " in out
        assert "so nothing was trained" in out
        assert f"`srl resume {folder} --steps 640`" in out
        assert contents(folder / "checkpoints") | contents(folder / "logs") == before
        assert (folder / "summary.json").read_bytes() == summary
    assert main(["resume", str(folder), "--quiet", "--steps", "640"]) == 0
    assert srl.load(folder).summary.env_steps >= 640


def test_a_run_that_finished_by_its_condition_says_how_to_train_without_it(tmp_path, capsys):
    folder = tmp_path / "run"
    assert train(folder, "--until", "steps>=256", "--steps", "100k", "--quiet") == 0
    assert main(["resume", str(folder)]) == 0
    out = capsys.readouterr().out
    assert f"{folder} is finished (reached steps>=256)" in out
    assert f"`srl resume {folder} --until none`" in out


def test_a_limit_below_what_was_trained_is_reached_already(tmp_path):
    """Also where the run was killed before it wrote its summary."""
    run = tiny(tmp_path / "run", quiet=True)
    steps = run.summary.env_steps
    (run.path / "summary.json").unlink()
    again = srl.resume(run.path, steps=64, quiet=True)
    assert again.summary.status == "finished"
    assert again.summary.env_steps == steps
    assert len(list((run.path / "checkpoints").iterdir())) == 1


def test_resume_from_python_takes_what_the_command_takes_and_reports(tmp_path, capsys):
    run = tiny(tmp_path / "run", quiet=True)
    assert capsys.readouterr().out == ""
    again = srl.resume(run.path, steps=640, layout="serial", until="none", device="cpu")
    assert again.summary.env_steps >= 640
    out = capsys.readouterr().out
    assert out.count("Finished: trained on ") == 1
    assert again.report() in out
    srl.resume(run.path)
    assert f"srl.resume({str(run.path)!r}, steps=1280)" in capsys.readouterr().out
    tiny(tmp_path / "other")
    assert "Finished: trained on " in capsys.readouterr().out


def test_a_change_of_what_is_learned_is_refused_with_both_ways_out(tmp_path, capsys):
    run = tiny(tmp_path / "run", quiet=True)
    settings = ["--steps", "640", "--set", "algorithm.learning_rate=1e-2"]
    assert main(["resume", str(run.path), *settings]) == 2
    err = capsys.readouterr().err
    assert "algorithm.learning_rate: 0.001 -> 0.01" in err
    assert f"--init-from {run.path}" in err
    assert "--fresh" in err


def test_fresh_removes_what_the_run_made_and_nothing_else(tmp_path):
    folder = tmp_path / "run"
    own = {"thesis.txt", "logs/train.log", "checkpoints/notes.md", "events.out.tfevents.1.mine"}
    own |= {"checkpoints/2024-notes.md", "logs/thesis-2024-final.log"}
    for name in own:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("years of work")
    assert train(folder, "--steps", "640", "--quiet") == 0
    (folder / "video.mp4").write_text("mine, too")
    assert train(folder, "--steps", "320", "--quiet", "--fresh") == 0
    assert srl.load(folder).summary.env_steps < 640
    assert len(list(folder.glob("events.out.tfevents.*.srl"))) == 1
    assert {name for name in own if (folder / name).exists()} == own
    assert (folder / "video.mp4").exists()


OTHERS = (
    *("config.yaml", "metrics.jsonl", "job.sh", "trainers/a.txt"),
    *(".lock", "logs/thesis-2024.log", "checkpoints/000002024"),
)


@pytest.mark.parametrize("name", OTHERS)
@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_a_run_does_not_begin_where_it_would_write_over_others(tmp_path, capsys, name, fresh):
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_text("years of work")
    assert train(tmp_path, "--steps", "320", *fresh) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert contents(tmp_path) == {file: b"years of work"}


@pytest.mark.parametrize("fresh", [[], ["--fresh"]])
def test_a_lock_of_another_program_hands_over_no_folder(tmp_path, capsys, fresh):
    for name in (".lock", "config.yaml", "metrics.jsonl"):
        (tmp_path / name).touch()
    before = contents(tmp_path)
    assert train(tmp_path, "--steps", "320", *fresh) == 2
    assert str(tmp_path) in capsys.readouterr().err
    assert contents(tmp_path) == before


def test_a_serial_run_ends_within_an_update_when_its_time_is_over(tmp_path, monkeypatch):
    # The algorithm puts something else in its place.
    monkeypatch.setattr(Goals, "by_seconds", Goals.by_seconds)
    run = srl.train(
        "CartPole-v1",
        algorithm=f"{__file__}:EndlessUpdate",
        seconds=1e6,
        layout="serial",
        set=SETTINGS,
        run_dir=tmp_path / "run",
        quiet=True,
    )
    assert run.summary.status == "finished"
    assert run.summary.reason == "trained for long enough"
    assert run.summary.policy_version == 1


def test_seeds_that_were_stopped_say_how_to_go_on(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "runs"
    monkeypatch.setattr(launch, "probe_groups", interrupt)
    assert train(folder, "--steps", "320", "--seeds", "2", "--quiet") == 130
    assert f"the same command with --run-dir {folder}" in capsys.readouterr().out
