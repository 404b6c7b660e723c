"""One run for every registered algorithm: it learns a small task, survives, and goes on.

A new algorithm enters the suite by a task in `TASKS`. `tests/system/test_algorithms.py` tries each
in one layout, `benchmarks/soak_algorithms.py` in all.
"""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from chaos import accounts
from harness import Training, checkpoints, read_summary, wait_for

import srl
from srl.algorithms.registry import ALGORITHMS, find_algorithm
from srl.resolve import resolve

ENVS = Path(__file__).parents[1] / "learning" / "tasks.py"
LAYOUTS = ("serial", "inline", "shared", "remote")
COMMON = {
    "actor.envs": 8,
    "actor.count": 2,
    "checkpoint.every_seconds": 1,
    "logging.interval_seconds": 0.1,
    "logging.sinks": [],
    "max_restarts": 100,
}


@dataclass(frozen=True, kw_only=True)
class Task:
    """What an algorithm has to learn, and in which layout CI tries it."""

    env: str
    """A class of `tests/learning/tasks.py`."""
    goal: float
    """Mean return, far above that of random actions."""
    layout: str
    """Each of the four is tried with actors that a trainer reads, and with a replay."""
    settings: dict[str, Any] = field(default_factory=dict)
    metric: str = "episode_return_mean"
    """Where the return is read during the run."""
    dataset: bool = False
    """Whether it learns from recorded episodes."""
    expert: bool = False
    """Whether it asks the policy of another run."""


_ACTOR_CRITIC = {
    "algorithm.learning_rate": 3e-3,
    "algorithm.rollout_length": 32,
    "algorithm.entropy_coefficient": 0.0,
    "network.hidden_sizes": [32, 32],
}
_REPLAY = {
    "algorithm.learning_rate": 3e-3,
    "algorithm.batch_size": 32,
    "algorithm.buffer_size": 20_000,
    "algorithm.learning_starts": 200,
    "algorithm.gamma": 0.5,
    "network.hidden_sizes": [32, 32],
}
_CONTINUOUS = {
    **_REPLAY,
    "algorithm.updates_per_step": 0.5,
    "algorithm.critic_hidden_sizes": [32, 32],
}
_TEAM_VALUES = {
    **_REPLAY,
    "algorithm.updates_per_step": 0.25,
    "algorithm.target_steps": 50,
    "algorithm.tau": 1.0,
    "algorithm.epsilon_steps": 500,
}
TASKS = {
    "ppo": Task(env="NameIt", goal=0.7, layout="inline", settings=_ACTOR_CRITIC),
    "appo": Task(env="NameIt", goal=0.7, layout="remote", settings=_ACTOR_CRITIC),
    "impala": Task(env="NameIt", goal=0.7, layout="shared", settings=_ACTOR_CRITIC),
    "a2c": Task(env="NameIt", goal=0.7, layout="serial", settings=_ACTOR_CRITIC),
    "dqn": Task(
        env="NameIt",
        goal=0.7,
        layout="shared",
        settings={
            **_REPLAY,
            "algorithm.replay": "prioritized",
            "algorithm.target_steps": 50,
            "algorithm.epsilon_steps": 500,
        },
    ),
    "sac": Task(
        env="PointAt",
        goal=0.6,
        layout="remote",
        settings={**_CONTINUOUS, "algorithm.initial_temperature": 0.01},
    ),
    "td3": Task(env="PointAt", goal=0.6, layout="inline", settings=_CONTINUOUS),
    "mappo": Task(env="NameTogether", goal=0.7, layout="inline", settings=_ACTOR_CRITIC),
    "vdn": Task(env="NameTogether", goal=0.7, layout="serial", settings=_TEAM_VALUES),
    "qmix": Task(env="NameTogether", goal=0.7, layout="remote", settings=_TEAM_VALUES),
    "bc": Task(
        env="NameIt",
        goal=0.9,
        layout="serial",
        settings={"algorithm.learning_rate": 3e-3, "evaluator.count": 1},
        metric="eval_return_mean",
        dataset=True,
    ),
    "dagger": Task(
        env="NameIt",
        goal=0.9,
        layout="shared",
        settings={"algorithm.learning_rate": 3e-3},
        expert=True,
    ),
}


def task_of(name: str) -> Task:
    """The task of a registered algorithm."""
    assert name in TASKS, (
        f"algorithm {name!r} is registered without a task: add `{name!r}: Task(...)`, which it "
        f"learns in seconds, to TASKS in tests/system/{Path(__file__).name}."
    )
    return TASKS[name]


def combinations() -> list[tuple[str, str, int]]:
    """Every algorithm in every layout, with one trainer and with two if it can; one process cannot
    hold two."""
    return [
        (name, layout, trainers)
        for name in ALGORITHMS
        for layout in LAYOUTS
        for trainers in ((1, 2) if find_algorithm(name).data_parallel else (1,))
        if layout != "serial" or trainers == 1
    ]


@dataclass
class Trial:
    """One algorithm in one layout: what is done to the run, in order."""

    name: str
    layout: str
    trainers: int
    folder: Path
    """A new one."""
    say: Callable[[str], None] = print
    """Told of each step."""
    killed: list[str] = field(default_factory=list)
    """The processes that were killed."""
    score: float = 0.0
    """Mean return at the end, greedy."""

    def run(self) -> None:
        """Starts, kills, stops, resumes and evaluates; raises at the first thing that is wrong."""
        task = task_of(self.name)
        assert task.layout in LAYOUTS
        training = self._start("train", f"{ENVS}:{task.env}", *self._arguments(task))
        try:
            training.wait_for_updates(3)
            if self.layout == "serial":
                self._kill_the_only_process(training)
            else:
                self._kill_each_kind(training)
                assert training.stop(signal.SIGINT) == 130, training.printed
                self._check_end(training)
        finally:
            training.kill()
        self.say("resume")
        again = self._start("resume", str(self.run_dir))
        try:
            again.wait_for_updates(3)
            wait_for(lambda: self._reached(again, task), f"{task.metric} of {task.goal}")
            assert again.stop(signal.SIGINT) == 130, again.printed
            self._check_end(again)
        finally:
            again.kill()
        self._evaluate(task)

    @property
    def run_dir(self) -> Path:
        """The folder of the run."""
        return self.folder / "run"

    def _arguments(self, task: Task) -> list[str]:
        settings = {**COMMON, **task.settings, "trainer.count": self.trainers}
        if task.dataset:
            settings["algorithm.dataset"] = record(task, self.folder / "dataset")
        if task.expert:
            settings["algorithm.expert"] = train_expert(task, self.folder / "expert")
        given = [f"{key}={value}" for key, value in settings.items()]
        sets = [word for setting in given for word in ("--set", setting)]
        return [
            *("--algorithm", self.name, "--layout", self.layout, "--steps", "1e9"),
            *("--run-dir", str(self.run_dir), *sets),
        ]

    def _start(self, *arguments: str) -> Training:
        return Training(self.run_dir, (*arguments, "--quiet"))

    def _kill_the_only_process(self, training: Training) -> None:
        wait_for(lambda: (self.run_dir / "checkpoints").exists(), "the first checkpoint")
        wait_for(lambda: checkpoints(self.run_dir), f"a checkpoint: {training.printed}")
        self.say("kill the run")
        training.process.kill()
        training.process.wait()
        self.killed.append("the run")

    def _kill_each_kind(self, training: Training) -> None:
        for name in one_of_each_kind(training):
            self.say(f"kill {name}")
            pid = training.workers()[name].pid
            training.workers()[name].kill()

            def replaced(name: str = name, pid: int = pid) -> bool:
                training.check_running()
                worker = training.workers().get(name)
                return worker is not None and worker.pid != pid

            wait_for(replaced, f"another {name}")
            training.wait_for_updates(2)
            self.killed.append(name)

    def _check_end(self, training: Training) -> None:
        """Nothing is left, and every fragment is accounted for."""
        assert training.survivors() == []
        summary = read_summary(self.run_dir)
        streams = {key.split(".")[1] for key in summary["metrics"] if key.startswith("samples.")}
        assert streams
        for stream in streams:
            kept = accounts(summary, stream)
            assert kept["lost"] == 0, (stream, kept)
            assert kept["consumed"] > 0, (stream, kept)

    def _reached(self, training: Training, task: Task) -> bool:
        training.check_running()
        return (training.metrics().get(task.metric) or 0.0) >= task.goal

    def _evaluate(self, task: Task) -> None:
        run = srl.load(self.run_dir)
        self.score = run.evaluate(episodes=30).mean
        random = run.evaluate(episodes=30, policies={"default": "random"}).mean
        self.say(f"return {self.score:.2f}, at random {random:.2f}")
        assert self.score >= task.goal - 0.1
        assert random < task.goal - 0.3


def one_of_each_kind(training: Training) -> list[str]:
    """A process of each kind of worker; the last, where there are several."""
    last = {name.rpartition("-")[0]: name for name in sorted(training.workers())}
    return sorted(last.values())


def record(task: Task, folder: Path, episodes: int = 40) -> Path:
    """Writes episodes of a task whose right action is its secret."""
    from srl.datasets.episode import Episode
    from srl.datasets.writer import DatasetWriter

    env = resolve(f"{ENVS}:{task.env}")()
    with DatasetWriter(
        folder, observation_space=env.observation_space, action_space=env.action_space
    ) as writer:
        for seed in range(episodes):
            seen, actions, rewards, over = [env.reset(seed=seed)[0]], [], [], False
            while not over:
                actions.append(env.secret)
                obs, reward, over, _, _ = env.step(actions[-1])
                seen.append(obs)
                rewards.append(reward)
            ends = np.arange(len(actions)) == len(actions) - 1
            writer.add(
                Episode(
                    observations=np.stack(seen),
                    actions=np.array(actions),
                    rewards=np.array(rewards),
                    terminations=ends,
                    truncations=np.zeros(len(actions), bool),
                    seed=seed,
                )
            )
        return writer.finish()


def train_expert(task: Task, folder: Path) -> Path:
    """The folder of a run that has learned a task."""
    settings = {**TASKS["a2c"].settings, "actor.envs": 8}
    run = srl.train(
        f"{ENVS}:{task.env}",
        algorithm="a2c",
        layout="serial",
        steps=100_000,
        until="return>=0.97",
        run_dir=folder,
        quiet=True,
        set=settings,
    )
    return run.path
