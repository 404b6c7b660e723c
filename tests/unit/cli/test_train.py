"""Training, resuming, evaluating and filming by command and from Python, on runs of a second."""

from __future__ import annotations

import json

import numpy as np
import pytest

import srl
from srl.cli import main
from srl.cli.train import seeds_table
from srl.reporting.summary import Summary, write_summary
from srl.services.metric_names import PolicyResult

SMALL = ["--layout", "serial", "--set", "actor.envs=4", "--set", "algorithm.rollout_length=16"]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A tiny run that other tests read."""
    return srl.train(
        "CartPole-v1",
        steps=640,
        layout="serial",
        seed=3,
        set={"actor.envs": 4, "algorithm.rollout_length": 16},
        run_dir=tmp_path_factory.mktemp("runs") / "tiny",
        quiet=True,
    )


def test_train_prints_a_report_and_leaves_a_whole_run(tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["train", "cartpole", "--steps", "640", "--run-dir", str(folder), *SMALL]) == 0
    out = capsys.readouterr().out
    for word in ("Finished", "reached", "speed", "bottleneck", str(folder), "plot.png"):
        assert word in out
    for name in ("config.yaml", "metrics.jsonl", "summary.json", "checkpoints", "logs", "plot.png"):
        assert (folder / name).exists()
    assert json.loads((folder / "summary.json").read_text())["env_steps"] >= 640


def test_the_same_run_dir_goes_on_and_fresh_starts_over(tmp_path, capsys):
    folder = tmp_path / "run"

    def train(*more):
        return main(["train", "cartpole", "--quiet", "--run-dir", str(folder), *SMALL, *more])

    def steps():
        return srl.load(folder).summary.env_steps

    assert train("--steps", "320") == 0
    first = steps()
    assert train("--steps", "640") == 0
    assert steps() >= 640 > first
    assert main(["resume", str(folder), "--steps", "1k", "--quiet"]) == 0
    assert steps() >= 1000
    assert train("--steps", "640", "--set", "algorithm.gamma=0.5", "--seed", "7") == 2
    err = capsys.readouterr().err
    assert "algorithm.gamma: 0.98 -> 0.5" in err
    assert "seed: 1 -> 7" in err
    assert steps() >= 1000
    assert train("--steps", "320", "--fresh") == 0
    assert steps() < 640


def test_what_a_recipe_left_to_defaults_counts_as_a_difference(run, capsys):
    """The run was made with another learning rate than the recipe's."""
    assert main(["train", "cartpole", "--run-dir", str(run.path), *SMALL, "--seed", "3"]) == 2
    assert "algorithm.learning_rate: 0.001 -> " in capsys.readouterr().err


def test_fresh_refuses_to_remove_a_folder_that_is_no_run(tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("years of work")
    assert main(["train", "cartpole", "--run-dir", str(tmp_path), "--fresh", *SMALL]) == 2
    assert "got a folder of other files" in capsys.readouterr().err
    assert (tmp_path / "thesis.txt").exists()


def test_seeds_run_one_after_another_with_a_table_and_one_plot(tmp_path, capsys):
    folder = tmp_path / "runs"
    more = ["--seeds", "2", "--run-dir", str(folder), "--quiet", *SMALL]
    assert main(["train", "cartpole", "--steps", "640", *more]) == 0
    out = capsys.readouterr().out
    assert [line.split()[0] for line in out.splitlines()[:4]] == ["seed", "1", "2", "mean"]
    assert (folder / "plot.png").exists()
    assert [srl.load(folder / f"seed{n}").experiment.seed for n in (1, 2)] == [1, 2]


def test_table_of_seeds_has_means():
    rows = [
        (1, Summary(status="finished", episode_return_mean=100.0, env_steps=1000, seconds=2.0)),
        (2, Summary(status="stopped", episode_return_mean=None, env_steps=3000, seconds=2.0)),
    ]
    last = seeds_table(rows).splitlines()[-1].split()
    assert last == ["mean", "100.0", "2,000", "2.0", "1,000"]


def test_table_of_seeds_has_a_return_for_each_policy_that_learns():
    def summary(**returns):
        policies = {n: PolicyResult(episode_return_mean=r) for n, r in returns.items()}
        policies["idle"] = PolicyResult(learns=False, episode_return_mean=7.0)
        return Summary(status="finished", policies=policies, env_steps=1000, seconds=2.0)

    rows = [(1, summary(red=5.0, blue=-5.0)), (2, summary(red=7.0, blue=-7.0))]
    early = (3, Summary(status="stopped"))
    title, *_, third, last = map(str.split, seeds_table([*rows, early]).splitlines())
    assert title[2:4] == ["return/red", "return/blue"]
    assert third[2:4] == ["-", "-"]
    assert last[:3] == ["mean", "6.0", "-6.0"]


def test_eval_prints_mean_and_spread_or_json(run, capsys):
    assert main(["eval", str(run.path), "--episodes", "3"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("default: ")
    assert "±" in text
    assert main(["eval", str(run.path), "--episodes", "3", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["policies"]["default"]
    assert found["episodes"] == len(found["returns"]) == 3
    assert found["mean"] == pytest.approx(np.mean(found["returns"]))


def test_evaluation_is_repeatable_and_seeds_differ(run):
    first = run.evaluate(4, seed=5).returns
    assert run.evaluate(4, seed=5).returns == first
    assert run.evaluate(4, seed=6).returns != first


def test_a_policy_may_be_replaced(run, capsys):
    random = run.evaluate(20, policies={"default": "random"})
    assert 10 < random.mean < 40
    assert run.evaluate(4, policies={"default": f"{run.path}@latest"}) == run.evaluate(4)
    assert main(["eval", str(run.path), "--policy", "nobody=random"]) == 2
    assert "nobody" in capsys.readouterr().err
    assert main(["eval", str(run.path), "--checkpoint", "12345"]) == 1
    assert "12345" in capsys.readouterr().err
    assert main(["eval", str(run.path), "--opponent", "random", "--side", "agent"]) == 0
    assert "agent: " in capsys.readouterr().out
    assert main(["eval", str(run.path), "--opponent", "random"]) == 2
    assert "add --side PATTERN" in capsys.readouterr().err


def test_the_environment_of_an_evaluation_may_have_other_arguments(run, capsys):
    lengths = run.evaluate(4, env_args={"max_episode_steps": 3}).lengths
    assert lengths == {"default": [3] * 4}
    assert main(["eval", str(run.path), "--env-arg", "max_episode_steps=5"]) == 0
    assert "mean length 5.0" in capsys.readouterr().out
    assert main(["eval", str(run.path), "--env-arg", "size"]) == 2
    assert "expected key=value" in capsys.readouterr().err


def test_the_policy_acts_on_one_observation_and_on_batches(run):
    policy = run.policy
    obs = np.array([0.01, 0.02, 0.03, 0.04], np.float32)
    one = policy.act(obs)
    assert one in (0, 1)
    policy.reset()
    many = policy.act(np.stack([obs] * 5))
    assert many.shape == (5,)
    assert set(many.tolist()) == {int(one)}
    with pytest.raises(srl.errors.SpecError, match="expected an observation"):
        policy.act(np.zeros(3))
    with pytest.raises(KeyError):
        run.policies["other"]


def test_acting_is_what_evaluation_plays(run):
    """The same episode step by step as `evaluate` counts it."""
    import gymnasium

    env = gymnasium.make("CartPole-v1")
    expected = run.evaluate(1, seed=11).returns["default"][0]
    obs, _ = env.reset(seed=11)
    run.policy.reset()
    total, over = 0.0, False
    while not over:
        obs, reward, terminated, truncated, _ = env.step(int(run.policy.act(obs)))
        total += float(reward)
        over = terminated or truncated
    env.close()
    assert total == expected


@pytest.mark.parametrize("name", ["x.mp4", "x.gif"])
def test_play_films(run, tmp_path, name, capsys):
    import imageio

    assert main(["play", str(run.path), "--video", str(tmp_path / name)]) == 0
    written = capsys.readouterr().out.strip().splitlines()[-1]
    frames = imageio.mimread(written, memtest=False)
    assert len(frames) > 5
    assert frames[0].shape[:2] == (400, 600)


def test_record_writes_the_episodes_that_eval_plays(run, tmp_path, monkeypatch, capsys):
    minari = pytest.importorskip("minari", reason="needs the extra `dev`")
    monkeypatch.chdir(tmp_path)
    assert main(["record", str(run.path), "--episodes", "9", "--explore"]) == 0
    folder = capsys.readouterr().out.strip().splitlines()[-1]
    assert folder == "datasets/tiny-v0"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "datasets"))
    dataset = minari.load_dataset("tiny-v0")
    played = run.evaluate(9, explore=True)
    assert sorted(sum(e.rewards) for e in dataset) == sorted(played.by_name()["default"])
    assert dataset.recover_environment().spec.id == "CartPole-v1"
    assert main(["record", str(run.path), "--episodes", "9"]) == 2
    assert "tiny-v0: expected a name for a new dataset" in capsys.readouterr().err
    assert main(["record", str(run.path), "--episodes", "1", "--of", "red"]) == 2
    assert (
        "--of: expected the policy whose agents are recorded (default)" in capsys.readouterr().err
    )


def test_without_an_encoder_a_gif_is_written_and_said(run, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("srl.evaluation._has_encoder", lambda: False)
    assert main(["play", str(run.path), "--video", str(tmp_path / "x.mp4")]) == 0
    assert "GIF" in capsys.readouterr().out
    assert (tmp_path / "x.gif").exists()


def test_weights_of_another_run_are_taken(run, tmp_path):
    again = srl.train(
        "CartPole-v1",
        steps=64,
        layout="serial",
        set={"actor.envs": 4, "algorithm.rollout_length": 16, "algorithm.learning_rate": 1e-12},
        init_from=run.path,
        run_dir=tmp_path / "second",
        quiet=True,
    )
    ours, theirs = again.policy.module.state_dict(), run.policy.module.state_dict()
    for key in ours:
        if key.endswith(".weight") and "value_head" not in key:  # Returns rescale that one.
            np.testing.assert_allclose(ours[key], theirs[key], atol=1e-6)


def test_experiments_classes_and_own_recipes_are_targets(tmp_path):
    from srl.envs.tasks.memory import CueRecall
    from srl.recipes.target import find_experiment

    experiment = find_experiment("cartpole", {"gravity": 5.0})
    assert experiment.env.args == {"gravity": 5.0}
    assert find_experiment(experiment) is experiment
    assert find_experiment(CueRecall).env.id == "srl.envs.tasks.memory:CueRecall"
    file = tmp_path / "mine.py"
    file.write_text(
        "from srl import Experiment\n"
        "from srl.recipes.classic import cartpole\n"
        "def mine() -> Experiment:\n    return cartpole()\n"
    )
    assert find_experiment(f"{file}:mine").name == "cartpole"
    later = tmp_path / "later.py"
    later.write_text(
        "from __future__ import annotations\n"
        "import srl\n"
        "from srl.recipes.classic import cartpole\n"
        "def mine() -> srl.Experiment:\n    return cartpole()\n"
    )
    assert find_experiment(f"{later}:mine").name == "cartpole"
    with pytest.raises(srl.errors.ConfigError, match="got int"):
        find_experiment(3)


@pytest.mark.parametrize(("status", "code"), [("finished", 0), ("failed", 1), (None, 1)])
def test_who_waits_for_a_slurm_job_is_told_how_it_went(status, code, tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    handed = []

    def submit_run(experiment, directory):
        directory.path.mkdir()
        directory.write_config(experiment)
        handed.append(experiment.name)
        return "7"

    def wait_for_job(job):
        if status is not None:
            error = "the reward is NaN" if status == "failed" else None
            write_summary(folder, Summary(status=status, error=error))

    monkeypatch.setattr("srl.launch.backends.slurm_submit.submit_run", submit_run)
    monkeypatch.setattr("srl.run.wait_for_job", wait_for_job)
    command = ["train", "cartpole", "--launcher", "slurm", "--wait", "--run-dir", str(folder)]
    assert main([*command, "--quiet"]) == code
    assert handed == ["cartpole"]
    assert ("the reward is NaN" in capsys.readouterr().err) == (status == "failed")
