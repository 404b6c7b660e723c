"""Callbacks: what they are told, and what happens if they raise."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import srl
from srl.arguments import assemble
from srl.errors import ConfigError, RunError
from srl.launch.run.callbacks import Callback, Callbacks, FinishedEpisode, named_callbacks
from srl.services.messages import Episodes

SHORT = {
    "actor.envs": 4,
    "algorithm.rollout_length": 16,
    "logging.sinks": [],
    "evaluator.count": 1,
    "evaluator.episodes": 1,
    "network.hidden_sizes": [8],
}


class Recorder(Callback):
    """Keeps everything it is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []

    def on_metrics(self, metrics: Mapping[str, Any]) -> None:
        self.heard.append(("metrics", metrics))

    def on_episode(self, episode: FinishedEpisode) -> None:
        self.heard.append(("episode", episode))

    def on_evaluation(self, evaluation: Any) -> None:
        self.heard.append(("evaluation", evaluation))

    def on_checkpoint(self, checkpoint: Any) -> None:
        assert (checkpoint.path / "manifest.json").exists()
        self.heard.append(("checkpoint", checkpoint))

    def on_end(self, summary: srl.run.Summary) -> None:
        self.heard.append(("end", summary))

    def of(self, kind: str) -> list[Any]:
        return [what for name, what in self.heard if name == kind]


class FailsAtCheckpoints(Callback):
    """Raises in its own code."""

    def on_checkpoint(self, checkpoint: Any) -> None:
        raise ValueError("no room for checkpoints")


class FailsAtTheEnd(Callback):
    """Raises when all else is done."""

    def on_end(self, summary: Any) -> None:
        raise ValueError("nothing to say")


def train(path: Path, *callbacks: object, **settings: Any) -> srl.Run:
    found: srl.Run = srl.train(
        "CartPole-v1",
        layout="serial",
        steps=640,
        run_dir=path,
        quiet=True,
        callbacks=callbacks,
        set={**SHORT, **settings},
    )
    return found


def test_a_run_tells_everything_to_its_callbacks(tmp_path: Path) -> None:
    seen = Recorder()
    run = train(tmp_path / "run", seen, **{"checkpoint.every_seconds": 0.001})
    lines = [json.loads(x) for x in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [m["env_steps"] for m in seen.of("metrics")] == [x["env_steps"] for x in lines]
    assert len(seen.of("episode")) == run.summary.episodes
    last = [episode.episode_return for episode in seen.of("episode")][-100:]
    assert sum(last) / len(last) == pytest.approx(run.summary.episode_return_mean)
    assert seen.of("evaluation")[0].policy == "default"
    numbers = [checkpoint.number for checkpoint in seen.of("checkpoint")]
    assert numbers == [*range(1, len(numbers) + 1)]
    assert len(numbers) > 1
    (end,) = seen.of("end")
    assert end == run.summary
    assert seen.heard[-1][0] == "end"


def test_a_callback_that_raises_ends_the_run_with_its_traceback(tmp_path: Path) -> None:
    other = Recorder()
    with pytest.raises(RunError) as caught:
        train(tmp_path / "run", FailsAtCheckpoints(), other, **{"checkpoint.every_seconds": 0.001})
    message = str(caught.value)
    assert "callback FailsAtCheckpoints: on_checkpoint raised ValueError: no room" in message
    assert f'File "{__file__}", line ' in message
    assert 'raise ValueError("no room for checkpoints")' in message
    assert "srl resume" in message
    (end,) = other.of("end")
    assert end.status == "failed"
    run = srl.load(tmp_path / "run")
    assert run.summary.error == message
    assert (run.path / "checkpoints" / "000000001" / "manifest.json").exists()
    assert train(tmp_path / "run").summary.status == "finished"


@pytest.mark.slow
def test_a_sink_that_fails_is_told_once_and_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nosuchstore://x")
    run = srl.train(
        "CartPole-v1",
        layout="serial",
        steps=640,
        run_dir=tmp_path / "run",
        set={**SHORT, "logging.sinks": ["mlflow"]},
    )
    assert run.summary.status == "finished"
    for text in (capsys.readouterr().out, (run.path / "logs" / "controller.log").read_text()):
        assert text.count("sink mlflow: failed") == 1


def test_a_callback_that_raises_at_the_end_fails_the_run(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="FailsAtTheEnd: on_end raised ValueError: nothing to say"):
        train(tmp_path / "run", FailsAtTheEnd())
    assert srl.load(tmp_path / "run").summary.status == "failed"


def test_callbacks_are_named_by_their_import_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "class Mine:\n    def on_end(self, summary): print(summary.status)\nmine = Mine()\n"
        "class Odd:\n    def __init__(self, needed): pass\n"
    )
    made = named_callbacks([f"{file}:Mine", f"{file}:mine"])
    assert [type(one).__name__ for one in made] == ["Mine", "Mine"]
    with pytest.raises(ConfigError, match=r"logging.callbacks: .*mine.py:Odd raised TypeError"):
        named_callbacks([f"{file}:Odd"])
    with pytest.raises(ConfigError, match="has no 'Nine'"):
        named_callbacks([f"{file}:Nine"])


def test_a_file_of_callbacks_is_found_from_any_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    experiment = assemble("cartpole", set={"logging.callbacks": ["mine.py:Mine"]})
    assert experiment.logging.callbacks == (f"{tmp_path.resolve()}/mine.py:Mine",)


class Misspelt:
    def on_metric(self, metrics: object) -> None: ...


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (Misspelt(), "Misspelt has 'on_metric': did you mean 'on_metrics'"),
        (object(), "expected an object with some of on_metrics, .* got object"),
        (Recorder, r"expected objects, got the class Recorder. Write Recorder\(\)"),
    ],
)
def test_what_is_no_callback_is_refused(wrong: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Callbacks([wrong])


def test_slurm_jobs_cannot_call_objects_of_this_process(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"callbacks: .* slurm.*logging.callbacks"):
        srl.train("cartpole", launcher="slurm", run_dir=tmp_path / "a", callbacks=[Recorder()])


def test_episodes_cost_nothing_where_nobody_asks() -> None:
    callbacks = Callbacks([FailsAtTheEnd()])
    callbacks.hear(Episodes("a", "default", [1.0], [1]))
    callbacks.call()
    assert not callbacks._heard
