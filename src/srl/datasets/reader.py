"""Reads datasets that Minari or `srl record` wrote: episodes in HDF5, with metadata as JSON."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from srl.datasets.episode import Episode
from srl.datasets.spaces import is_image, space_from_json
from srl.datasets.writer import DATA_FILE, DATA_FOLDER, METADATA_FILE
from srl.errors import ConfigError
from srl.extras import import_extra
from srl.files import read_limited

MAX_METADATA_BYTES = 1 << 26
"""Largest metadata file that is read. Bounds of image spaces are written number by number."""
_RECORD = "Record one with `srl record RUN --episodes N --output FOLDER`, or name one of Minari's."


def find_dataset(path: Path, setting: str) -> Path:
    """The folder with a dataset's files: the given one, or the folder `data` in it.

    Raises if there is no complete dataset, or if the path is empty; `setting` names the path in the
    error.
    """
    for folder in (path, path / DATA_FOLDER) if path != Path() else ():
        if (folder / METADATA_FILE).is_file():
            return folder
    got = "no such folder" if not path.is_dir() else f"a folder without {METADATA_FILE}"
    got = "none" if path == Path() else f"{got}: {path}"
    raise ConfigError(f"{setting}: expected the folder of a dataset, got {got}. {_RECORD}")


class Dataset:
    """A dataset on disk. Opening it reads its metadata only."""

    def __init__(self, path: Path, setting: str = "dataset") -> None:
        """`setting` names the path in errors."""
        self.path = find_dataset(path, setting)
        self._metadata = _read_metadata(self.path / METADATA_FILE)
        if (kind := self._metadata.get("data_format", "hdf5")) != "hdf5":
            raise ConfigError(
                f"{self.path}: expected data_format hdf5, got {kind!r:.40}. Write it anew with "
                "Minari and data_format='hdf5'."
            )
        self.num_episodes = int(self._metadata["total_episodes"])
        self.num_steps = int(self._metadata["total_steps"])
        if not self.num_steps:
            raise ConfigError(f"{self.path}: expected recorded steps, got none. {_RECORD}")
        self._has_jpegs = bool(self._metadata.get("jpeg_encoding", True))

    @cached_property
    def observation_space(self) -> spaces.Space[Any]:
        """The space of its observations."""
        return self._space("observation_space")

    @cached_property
    def action_space(self) -> spaces.Space[Any]:
        """The space of its actions."""
        return self._space("action_space")

    def _space(self, name: str) -> spaces.Space[Any]:
        return space_from_json(str(self._metadata.get(name)), f"{self.path}: {name}")

    def episodes(self) -> Iterator[Episode]:
        """Its episodes in the order of their numbers; those without a step are left out."""
        h5py = import_extra("h5py", "a dataset")
        try:
            with h5py.File(self.path / DATA_FILE, "r") as file:
                for number in range(self.num_episodes):
                    group = file[f"episode_{number}"]
                    if len(group["rewards"]):
                        yield self._episode(group)
        except (OSError, KeyError) as error:
            raise ConfigError(
                f"{self.path / DATA_FILE}: expected {self.num_episodes} episodes, as "
                f"{METADATA_FILE} says, got {error}. The dataset is damaged: copy or record it "
                "again."
            ) from error

    def _episode(self, group: Any) -> Episode:
        masks = group["infos"].get("action_mask") if "infos" in group else None
        seed = group.attrs.get("seed")
        return Episode(
            observations=self._read(group["observations"], self.observation_space),
            actions=self._read(group["actions"], self.action_space),
            rewards=np.asarray(group["rewards"][()], np.float64),
            terminations=np.asarray(group["terminations"][()], bool),
            truncations=np.asarray(group["truncations"][()], bool),
            action_masks=None if masks is None else masks[()],
            seed=None if seed is None else int(seed),
        )

    def _read(self, found: Any, space: spaces.Space[Any]) -> Any:
        if isinstance(space, spaces.Dict):
            return {key: self._read(found[key], part) for key, part in space.spaces.items()}
        if isinstance(space, spaces.Tuple):
            return tuple(
                self._read(found[f"_index_{index}"], part)
                for index, part in enumerate(space.spaces)
            )
        if self._has_jpegs and is_image(space):
            return _decode_jpegs(found[()])
        return found[()]


def _read_metadata(path: Path) -> dict[str, Any]:
    try:
        metadata = json.loads(read_limited(path, MAX_METADATA_BYTES))
        for name in ("total_episodes", "total_steps"):
            int(metadata[name])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ConfigError(
            f"{path}: expected the metadata of a dataset, got something else ({error!r:.100})."
        ) from None
    return metadata  # type: ignore[no-any-return]


def _decode_jpegs(rows: np.ndarray) -> np.ndarray:
    from PIL import Image

    return np.stack([np.asarray(Image.open(io.BytesIO(row.tobytes()))) for row in rows])
