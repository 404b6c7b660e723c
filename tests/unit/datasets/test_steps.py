"""Recorded steps as ticks: the rules of episodes, windows, frame stacks, and what is refused."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest
from gymnasium import spaces
from logging_env import ACTIONS, RICH, Logging, record

from srl.data.records import NO_VERSION
from srl.data.spec import AgentSpec, ArraySpec
from srl.data.stacking import stack_index
from srl.data.trajectory import TrajectorySpec
from srl.datasets.reader import Dataset
from srl.datasets.steps import RecordedSteps
from srl.datasets.writer import METADATA_FILE
from srl.envs.spaces import agent_spec
from srl.errors import ConfigError

pytest.importorskip("h5py", reason="needs the extra `datasets`")


def windows(agent: AgentSpec, rows: int, length: int) -> TrajectorySpec:
    extras = {"value": ArraySpec()}
    return TrajectorySpec(length=length, rows=rows, envs=rows, agent=agent, extras=extras)


@pytest.mark.parametrize("kind", ACTIONS)
def test_windows_keep_the_rules_of_episodes(tmp_path: Path, kind: str) -> None:
    masked = kind == "discrete"
    env = Logging(action=ACTIONS[kind], masked=masked)
    agent = agent_spec(RICH, ACTIONS[kind], has_action_mask=masked)
    steps = RecordedSteps(record([env], tmp_path / "a"), agent)
    whole = [e for e in env.episodes if len(e["obs"]) == len(e["actions"]) + 1][:-1]
    assert steps.num_steps == sum(len(e["actions"]) for e in whole)
    assert steps.num_ticks == steps.num_steps + len(whole)

    ticks = steps.num_ticks
    into = windows(agent, 2, ticks).allocate()
    into.extras["value"].fill(np.nan)
    acted = steps.read(np.array([0, ticks - 1]), into)
    assert acted == into.acted.sum()
    assert (into.policy_version == NO_VERSION).all()
    assert not into.extras["value"].any()
    final = into.terminated | into.truncated
    np.testing.assert_array_equal(final[:-1], into.is_first[1:])
    np.testing.assert_array_equal(final, ~into.acted)
    # The second window begins one tick earlier: it goes on from the last tick to the first one.
    np.testing.assert_array_equal(into.reward[:-1, 0], into.reward[1:, 1])
    tick = 0
    for number, episode in enumerate(whole):
        count = len(episode["actions"])
        shown = np.array([obs["pair"][0] for obs in episode["obs"]]) - 5
        np.testing.assert_array_equal(into.obs["pair"]["0"][tick : tick + count + 1, 0], shown)
        images = np.stack([obs["image"] for obs in episode["obs"]])
        np.testing.assert_array_equal(into.obs["image"][tick : tick + count + 1, 0], images)
        told = np.stack(episode["actions"]) - (2 if kind == "discrete" else 0)
        np.testing.assert_array_equal(into.action[tick : tick + count, 0], told)
        np.testing.assert_allclose(into.reward[tick : tick + count, 0], episode["rewards"], 1e-6)
        if masked:
            assert into.action_mask is not None
            masks = into.action_mask[tick : tick + count, 0]
            np.testing.assert_array_equal(masks, np.stack(episode["masks"])[:-1])
        assert into.terminated[tick + count, 0] == (number % 2 == 0)
        tick += count + 1


def test_stacks_of_frames_do_not_reach_into_the_episode_before(tmp_path: Path) -> None:
    seen = spaces.Box(-9, 9, (1,), np.float32)
    folder = record([Logging(seen, length=4)], tmp_path / "a", ticks=40)
    plain = agent_spec(seen, ACTIONS["discrete"])
    agent = msgspec.structs.replace(plain, obs=ArraySpec(shape=(1,), stack=3))
    steps = RecordedSteps(folder, agent)
    into = windows(agent, steps.num_ticks, 3).allocate()
    steps.read(np.arange(steps.num_ticks), into)
    index = stack_index(into.is_first, 3)
    single = RecordedSteps(folder, plain)
    frames = windows(plain, 1, steps.num_ticks).allocate()
    single.read(np.zeros(1, np.int64), frames)
    for tick in range(steps.num_ticks):
        for ahead in range(4):
            at = (tick + ahead) % steps.num_ticks
            first = at - at % 5  # Each episode has 4 steps and its final observation.
            expected = [max(first, at - back) for back in (2, 1, 0)]
            got = into.obs[index[ahead, tick], tick, 0]
            np.testing.assert_array_equal(got, frames.obs[expected, 0, 0])


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = record([Logging()], tmp_path / "a")
    ours = agent_spec(RICH, ACTIONS["discrete"])
    other = agent_spec(RICH, ACTIONS["numbers"])
    with pytest.raises(ConfigError, match=r"algorithm.dataset: expected .* actions Box.*Discrete"):
        RecordedSteps(folder, other, "algorithm.dataset")
    smaller = agent_spec(RICH["pair"], ACTIONS["discrete"])
    with pytest.raises(ConfigError, match=r"observations .*Choose the environment in which"):
        RecordedSteps(folder, smaller)
    masked = msgspec.structs.replace(ours, has_action_mask=True)
    with pytest.raises(ConfigError, match="episode 0: expected action masks"):
        RecordedSteps(folder, masked)
    for name in ("nothing", "a/data/main_data.hdf5"):
        with pytest.raises(ConfigError, match="srl record RUN"):
            Dataset(tmp_path / name, "algorithm.dataset")
    metadata = folder / "data" / METADATA_FILE
    whole = metadata.read_text()
    metadata.write_text(whole.replace('"hdf5"', '"arrow"'))
    with pytest.raises(ConfigError, match="expected data_format hdf5, got 'arrow'"):
        Dataset(folder)
    metadata.write_text(whole.replace('"total_episodes": ', '"total_episodes": 9'))
    with pytest.raises(ConfigError, match="damaged"):
        RecordedSteps(folder, ours)
    metadata.write_text("[]")
    with pytest.raises(ConfigError, match="expected the metadata of a dataset"):
        Dataset(folder)


def test_numbers_that_no_network_can_use_are_refused(tmp_path: Path) -> None:
    seen = spaces.Box(-np.inf, np.inf, (1,), np.float32)
    folder = record([Logging(seen)], tmp_path / "a")
    import h5py

    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/observations"][0] = np.nan
    with pytest.raises(ConfigError, match="episode 1: expected finite numbers, got nan"):
        RecordedSteps(folder, agent_spec(seen, ACTIONS["discrete"]))
    with h5py.File(folder / "data" / "main_data.hdf5", "a") as file:
        file["episode_1/observations"][0] = 0.0
        file["episode_0/actions"][0] = 1
    with pytest.raises(ConfigError, match="episode 0: expected actions of Discrete"):
        RecordedSteps(folder, agent_spec(seen, ACTIONS["discrete"]))
