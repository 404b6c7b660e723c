"""Writes a dataset of episodes as Minari does: `data/main_data.hdf5` and `data/metadata.json`.

The files are written into a hidden folder beside the dataset's own, which gets its name when they
are complete. So a recording that was killed leaves no dataset.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from gymnasium import spaces

from srl.datasets.episode import Episode
from srl.datasets.spaces import space_to_json
from srl.errors import ConfigError, RunError
from srl.extras import import_extra

DATA_FILE = "main_data.hdf5"
METADATA_FILE = "metadata.json"
DATA_FOLDER = "data"
MINARI_VERSION = "0.5.4"
"""The version of Minari whose format this is."""
_ID = re.compile(r"[-_\w]+-v\d+")


class DatasetWriter:
    """Writes episodes into a new folder, which exists only after `finish`."""

    def __init__(
        self,
        folder: Path,
        *,
        observation_space: spaces.Space[Any],
        action_space: spaces.Space[Any],
        env_spec: str | None = None,
        algorithm_name: str = "",
        description: str = "",
    ) -> None:
        """`env_spec` is the JSON text of the Gymnasium spec of the environment, if it has one."""
        h5py = import_extra("h5py", "a dataset")
        if folder.exists():
            raise ConfigError(
                f"{folder}: expected a name for a new dataset, got a file or folder that exists. "
                "Choose another --output, or remove it."
            )
        self.folder = folder
        self.num_episodes = self.num_steps = 0
        self._metadata = {
            "data_format": "hdf5",
            "jpeg_encoding": False,
            "observation_space": space_to_json(observation_space),
            "action_space": space_to_json(action_space),
            "dataset_id": dataset_id(folder),
            "minari_version": MINARI_VERSION,
            "algorithm_name": algorithm_name,
            "description": description,
            **({} if env_spec is None else {"env_spec": env_spec}),
        }
        self._partial = folder.with_name(f".{folder.name}.partial")
        self._lock = _take_over(self._partial, folder)
        (self._partial / DATA_FOLDER).mkdir()
        self._file = h5py.File(self._partial / DATA_FOLDER / DATA_FILE, "w", track_order=True)

    def add(self, episode: Episode) -> None:
        """Writes one episode."""
        group = self._file.create_group(f"episode_{self.num_episodes}")
        group.attrs["id"] = self.num_episodes
        group.attrs["total_steps"] = episode.num_steps
        if episode.seed is not None:
            group.attrs["seed"] = episode.seed
        _write(group, "observations", episode.observations)
        for name in ("actions", "rewards", "terminations", "truncations"):
            group.create_dataset(name, data=getattr(episode, name))
        masks = episode.action_masks
        _write(group, "infos", {} if masks is None else {"action_mask": masks})
        self.num_episodes += 1
        self.num_steps += episode.num_steps

    def finish(self) -> Path:
        """Completes the dataset and returns its folder."""
        self._file.close()
        data = self._partial / DATA_FOLDER
        size = (data / DATA_FILE).stat().st_size
        metadata = {
            "total_episodes": self.num_episodes,
            "total_steps": self.num_steps,
            **self._metadata,
            "dataset_size": round(size / 1e6, 1),
        }
        (data / METADATA_FILE).write_text(json.dumps(metadata))
        self._partial.rename(self.folder)
        return self.folder

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Removes what is not finished."""
        self._file.close()
        shutil.rmtree(self._partial, ignore_errors=True)
        os.close(self._lock)


def dataset_id(folder: Path) -> str:
    """The name that Minari asks for: letters, digits, `-` and `_`, and a version at the end."""
    if _ID.fullmatch(folder.name):
        return folder.name
    return re.sub(r"[^-\w]+", "-", folder.name).strip("-") + "-v0"


def _take_over(partial: Path, folder: Path) -> int:
    """Makes the hidden folder and locks it; removes what a killed recording has left in it."""
    try:
        partial.mkdir(parents=True, exist_ok=True)
        lock = os.open(partial, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise RunError(f"{folder}: cannot write a dataset ({error.strerror or error}).") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise ConfigError(
            f"{folder}: another process records this dataset now. Wait for it, or choose another "
            "--output."
        ) from None
    for left in partial.iterdir():
        shutil.rmtree(left)
    return lock


def _write(group: Any, name: str, value: Any) -> None:
    """Writes an array, or a group of them: the parts of a tuple are `_index_0` and so on."""
    if isinstance(value, tuple):
        value = {f"_index_{index}": part for index, part in enumerate(value)}
    if isinstance(value, dict):
        inner = group.create_group(name)
        for key, part in value.items():
            _write(inner, key, part)
    else:
        group.create_dataset(name, data=np.asarray(value))
