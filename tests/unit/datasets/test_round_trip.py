"""What is recorded is what Minari reads, and what SRL reads again."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from logging_env import ACTIONS, RICH, Logging, record

from srl.datasets.reader import Dataset
from srl.datasets.spaces import space_from_json, space_to_json
from srl.datasets.writer import DatasetWriter
from srl.errors import ConfigError

minari = pytest.importorskip("minari", reason="needs the extra `dev`")


def assert_same(got: Any, shown: list[Any], space: spaces.Space[Any]) -> None:
    """What was read [n, ...] is what was shown, step after step; float64 as float32."""
    if isinstance(space, spaces.Dict):
        for key, part in space.spaces.items():
            assert_same(got[key], [one[key] for one in shown], part)
    elif isinstance(space, spaces.Tuple):
        for index, part in enumerate(space.spaces):
            assert_same(got[index], [one[index] for one in shown], part)
    else:
        assert got.dtype == space.dtype
        np.testing.assert_allclose(got, np.stack(shown), rtol=1e-6)


@pytest.mark.parametrize("kind", ACTIONS)
def test_minari_reads_what_was_recorded(tmp_path: Path, kind: str) -> None:
    env = Logging(action=ACTIONS[kind], masked=kind == "discrete")
    folder = record([env], tmp_path / "logged-v3")

    dataset = minari.MinariDataset(folder / "data")
    assert dataset.id == "logged-v3"
    assert (dataset.observation_space, dataset.action_space) == (RICH, ACTIONS[kind])
    assert dataset.total_episodes == len(dataset) >= 4
    assert dataset.total_steps == sum(len(episode) for episode in dataset)
    for number, (episode, shown) in enumerate(zip(dataset, env.episodes, strict=False)):
        assert_same(episode.observations, shown["obs"], RICH)
        np.testing.assert_array_equal(episode.actions, np.stack(shown["actions"]))
        np.testing.assert_array_equal(episode.rewards, np.float32(shown["rewards"]))
        ends = (episode.terminations[-1], episode.truncations[-1])
        assert ends == ((True, False) if number % 2 == 0 else (False, True))
        assert not (episode.terminations[:-1] | episode.truncations[:-1]).any()
        if kind == "discrete":
            np.testing.assert_array_equal(episode.infos["action_mask"], np.stack(shown["masks"]))
    seeds = [one.get("seed") for one in dataset.storage.get_episode_metadata([0, 1])]
    assert seeds == [7, None]


@pytest.mark.parametrize("jpeg", [False, True])
def test_what_minari_wrote_is_read(tmp_path: Path, jpeg: bool) -> None:
    from minari.data_collector import EpisodeBuffer
    from minari.dataset.minari_storage import MinariStorage

    RICH.seed(3)
    shown = [RICH.sample() for _ in range(4)]
    for one in shown:
        one["image"][...] = 130  # An even picture is the same after JPEG.
    actions = [2, 5, 3]
    storage = MinariStorage.new(tmp_path, RICH, ACTIONS["discrete"], jpeg_encoding=jpeg)
    stacked = {
        "pair": tuple([one["pair"][i] for one in shown] for i in range(2)),
        **{key: [one[key] for one in shown] for key in ("image", "bits", "grid")},
    }
    storage.update_episodes(
        [
            EpisodeBuffer(
                id=0,
                seed=5,
                observations=stacked,
                actions=actions,
                rewards=[1.0, 2.0, 3.0],
                terminations=[False, False, True],
                truncations=[False] * 3,
                infos={},
            )
        ]
    )
    (episode,) = Dataset(tmp_path).episodes()
    assert Dataset(tmp_path).num_steps == 3
    assert_same(episode.observations["pair"], [one["pair"] for one in shown], RICH["pair"])
    np.testing.assert_array_equal(episode.observations["image"], np.stack(stacked["image"]))
    assert episode.actions.tolist() == actions
    assert episode.terminations.tolist() == [False, False, True]
    assert episode.seed == 5


def test_spaces_are_written_as_minari_writes_them() -> None:
    from minari.serialization import deserialize_space, serialize_space

    unbounded = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    for space in (RICH, *ACTIONS.values(), unbounded, spaces.MultiBinary([2, 3])):
        assert json.loads(space_to_json(space)) == json.loads(serialize_space(space))
        assert deserialize_space(space_to_json(space)) == space
        assert space_from_json(space_to_json(space), "test") == space


def test_a_killed_recording_leaves_nothing_that_looks_whole(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys\n"
        f"sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
        "from pathlib import Path\n"
        "from logging_env import Logging, record\n"
        "class Killed(Logging):\n"
        "    def reset(self, **given):\n"
        "        if len(self.episodes) == 3:\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "        return super().reset(**given)\n"
        "record([Killed()], Path(sys.argv[1]))\n"
    )
    folder = tmp_path / "mine"
    done = subprocess.run([sys.executable, "-c", code, str(folder)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert [path.name for path in tmp_path.iterdir()] == [".mine.partial"]
    for path in (folder, tmp_path / ".mine.partial"):
        with pytest.raises(ConfigError, match="expected the folder of a dataset"):
            Dataset(path)
    # The next one takes over what is left.
    record([Logging()], folder)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]
    assert Dataset(folder).num_episodes > 3


def test_an_error_leaves_nothing_and_nothing_is_overwritten(tmp_path: Path) -> None:
    class Broken(Logging):
        def step(self, action: Any) -> Any:
            if len(self.episodes) == 2:
                raise ValueError("broken")
            return super().step(action)

    with pytest.raises(Exception, match="broken"):
        record([Broken()], tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []
    record([Logging()], tmp_path / "mine")
    with pytest.raises(ConfigError, match=r"expected a name for a new dataset, got .* exists"):
        record([Logging()], tmp_path / "mine")


def test_two_recordings_do_not_write_the_same_dataset(tmp_path: Path) -> None:
    given = {"observation_space": RICH, "action_space": ACTIONS["discrete"]}
    with (
        DatasetWriter(tmp_path / "mine", **given),
        pytest.raises(ConfigError, match="another process records this dataset now"),
    ):
        DatasetWriter(tmp_path / "mine", **given)


def test_agents_that_take_turns_have_steps_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("pettingzoo", reason="needs the extra `pettingzoo`")
    from srl.datasets.episode import Episode
    from srl.datasets.recorder import Recorder
    from srl.envs.check import random_actions
    from srl.envs.protocol import EnvConfig
    from srl.envs.registry import make_group

    group = make_group(
        EnvConfig(id="pettingzoo:classic.tictactoe_v3"),
        num_envs=2,
        policy_agents={"both": ("player_1", "player_2")},
        on_call=lambda call, index: None,
    )
    found: list[Episode] = []
    recorder = Recorder(group.spaces["player_1"], 4, 2, seed=0, add=found.append)
    random, step = np.random.default_rng(0), group.reset(0)["both"]
    recorder.observe(step)
    for _ in range(60):
        actions = random_actions(group.spec, {"both": step}, group.policy_agents, random)
        recorder.act(actions["both"])
        step = group.step(actions)["both"]
        recorder.observe(step)
        for row in np.flatnonzero(step.terminated | step.truncated).tolist():
            recorder.end(row, bool(step.terminated[row]))
    assert len(found) >= 6
    for episode in found:
        count = episode.num_steps
        assert len(episode.observations) == count + 1
        assert episode.action_masks is not None
        # Each move was allowed where it was made, and marks a field of the next board.
        assert episode.action_masks[np.arange(count), episode.actions].all()
        assert 2 <= count <= 5
        assert set(episode.rewards[:-1]) <= {0.0}
        assert episode.rewards[-1] in (-1.0, 0.0, 1.0)
    group.close()
