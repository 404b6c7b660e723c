"""A run's folder on disk: configuration, checkpoints, logs, metrics, summary."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from srl.data.tree import flatten
from srl.errors import CheckpointError, ConfigError, RunError
from srl.experiment import ALGORITHM_FREE, Experiment
from srl.files import write_whole
from srl.services.checkpoints import Checkpoint, CheckpointConfig, CheckpointStore, weights_part
from srl.services.parts import verify_part
from srl.settings import convert, to_plain

CONFIG_FILE = "config.yaml"


def new_run_dir(name: str, seed: int) -> Path:
    """Makes a folder that no other run has: `runs/<name>-<time>-seed<seed>`."""
    safe = re.sub(r"[^A-Za-z0-9_.-]+", "-", name).strip("-") or "run"
    stem = Path("runs") / f"{safe}-{time.strftime('%Y%m%d-%H%M%S')}-seed{seed}"
    path, number = stem, 1
    while True:
        try:
            path.mkdir(parents=True)
            return path
        except FileExistsError:
            number += 1
            path = stem.with_name(f"{stem.name}-{number}")
        except OSError as error:
            raise _unusable(path, error) from error


class RunDir:
    """The folder of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def checkpoints(self) -> Path:
        """Where checkpoints are."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """Where each process writes its log."""
        return self.path / "logs"

    @property
    def sources(self) -> Path:
        """Where weights of other runs are, that policies of this one start with or keep."""
        return self.path / "sources"

    @property
    def exists(self) -> bool:
        """Whether a run has been here."""
        return (self.path / CONFIG_FILE).exists()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keeps two runs out of one folder."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(self.path, error) from error
        try:
            self._lock(fd)
            yield
        finally:
            os.close(fd)

    def _lock(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise RunError(
                f"{self.path}: another process is training here. Wait for it, or choose another "
                "--run-dir."
            ) from None
        except OSError as error:
            raise _unusable(self.path, error) from error

    def clear(self) -> None:
        """Removes a run, for `--fresh`; refuses a folder that is not one, or a run that trains."""
        if not self.path.exists():
            return
        # A run that failed before it was written down left no more than these.
        own = {".lock", self.sources.name, self.logs.name, self.checkpoints.name}
        if not self.exists and {entry.name for entry in self.path.iterdir()} - own:
            raise ConfigError(
                f"{self.path}: expected a run to replace, got a folder of other things."
            )
        with self.locked():
            shutil.rmtree(self.path)

    def keep_source(self, source: str, policy: str, name: str) -> Path:
        """The file of the weights that the policy `name` starts with or keeps: a copy, because the
        run they are from may go on, drop that checkpoint, or be removed."""
        kept = self.sources / f"{name}.safetensors"
        if not kept.exists():
            content = weights_of(source, policy or name).read_bytes()
            kept.parent.mkdir(exist_ok=True)
            write_whole(kept, content, to_disk=True)
        return kept.resolve()

    def write_config(self, experiment: Experiment) -> None:
        """Writes the resolved settings, in one move."""
        text = yaml.safe_dump(to_plain(experiment), sort_keys=False)
        write_whole(self.path / CONFIG_FILE, text.encode())

    def read_config(self) -> Experiment:
        """The experiment that this run is."""
        file = self.path / CONFIG_FILE
        try:
            plain = yaml.safe_load(file.read_text())
        except OSError:
            raise RunError(
                f"{self.path}: expected a run (a folder with {CONFIG_FILE}), got none. "
                "Give the folder that `srl train` printed."
            ) from None
        except yaml.YAMLError as error:
            raise ConfigError(f"{file}: expected YAML, got something else ({error}).") from None
        return convert(plain, Experiment, "")

    def store(self, config: CheckpointConfig | None = None) -> CheckpointStore:
        """The run's checkpoints."""
        if not self.exists:
            self.read_config()
        return CheckpointStore(self.checkpoints, config or CheckpointConfig())

    def check_resumable(self, experiment: Experiment) -> None:
        """Raises if `experiment` would learn something else than this run does, and lists the
        differences."""
        before = _learning_settings(to_plain(self.read_config()))
        after = _learning_settings(to_plain(experiment))
        differences = [
            f"  {key}: {before.get(key, '(default)')!r} -> {after.get(key, '(default)')!r}"
            for key in {**before, **after}
            if key not in before or key not in after or before[key] != after[key]
        ]
        if differences:
            raise ConfigError(
                f"{self.path}: resuming cannot change what is learned:\n"
                + "\n".join(differences)
                + "\nUse another --run-dir, or --fresh to start over (which removes this run)."
            )


def _unusable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path}: cannot be a run's folder ({error.strerror}). Choose another --run-dir, on a disk "
        "that can be written and that locks files."
    )


def _learning_settings(plain: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in flatten(plain).items()
        if not any(key == free or key.startswith(f"{free}.") for free in ALGORITHM_FREE)
    }


def find_checkpoint(source: str) -> Checkpoint:
    """The checkpoint that `RUN` or `RUN@CHECKPOINT` names (`latest`, `best`, a number, a tag)."""
    path, _, name = source.partition("@")
    return RunDir(Path(path)).store().find(name or "latest")


def weights_of(source: str, policy: str) -> Path:
    """The file of a policy's weights in `RUN` or `RUN@CHECKPOINT`."""
    checkpoint = find_checkpoint(source)
    parts = checkpoint.manifest.parts
    name = weights_part(policy)
    if name not in parts:
        found = [part for part in parts if part.startswith(weights_part(""))]
        if len(found) != 1:
            names = ", ".join(part.removeprefix(weights_part("")) for part in found)
            raise CheckpointError(
                f"{source}: no policy {policy!r} in it; it has {names or 'none'}."
            )
        name = found[0]
    if problem := verify_part(checkpoint.path, parts[name]):
        raise CheckpointError(
            f"{source}: checkpoint {checkpoint.number} is corrupt: {problem}. Name another one: "
            "RUN@NUMBER."
        )
    return (checkpoint.path / parts[name].file).resolve()
