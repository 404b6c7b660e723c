"""The run directory: configuration, checkpoints, logs, metrics and summary of a run on disk."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from srl.data.codec import state_shapes
from srl.data.tree import flatten
from srl.envs.saved_spaces import SavedSpaces
from srl.errors import CheckpointError, ConfigError, RunError, SrlError
from srl.experiment import ALGORITHM_FREE, Experiment
from srl.files import read_limited, write_atomically
from srl.launch.directory.config_file import decode_config, encode_config
from srl.launch.directory.notebook_code import NOTEBOOK_FILE
from srl.launch.directory.signature import SIGNATURE_FILE, sign, unsigned_because
from srl.launch.directory.trust import check_trust, code_locations, named_code, named_commands
from srl.launch.plan.build import filled_in
from srl.services.checkpoint_names import is_by_policy, is_checkpoint, policy_of
from srl.services.checkpoint_parts import verify_part
from srl.services.checkpoints import Checkpoint, CheckpointConfig, CheckpointStore, weights_part
from srl.settings import MAX_CONFIG_BYTES, to_plain

CONFIG_FILE = "config.yaml"
SPACES_FILE = "spaces.json"
_MAX_SPACES_BYTES = 1 << 24
LOCK_FILE = ".lock"
_LOCK_TEXT = b"srl run\n"
"""Content of a run's lock file: a file with that name alone does not prove that it is a run's."""
_RUN_FILES = (
    *(
        CONFIG_FILE,
        SPACES_FILE,
        SIGNATURE_FILE,
        "metrics.jsonl",
        "summary.json",
        "status.json",
        "request.json",
    ),
    *("answer.json", "head.json", "job.sh", "plot.png", "events.out.tfevents.*.srl"),
    *("sinks", "wandb", "logs/sink-*.log", NOTEBOOK_FILE),
    *("checkpoints/.tmp-*", "checkpoints/.gone-*", "trainers"),
    *("sources/*.safetensors", "keys/join.key"),
    *("logs/controller.log", "logs/planner.log", "logs/template.log", "logs/slurm.log"),
    *("logs/bridge.log", "logs/bridge-*.log", "logs/agent-*.log", ".session", LOCK_FILE),
    # Unfinished files of processes that were killed.
    *(".config.*.[0-9]*", ".*.json.[0-9]*", "*/.*.safetensors.[0-9]*", "keys/.join.key.[0-9]*"),
)
"""Names of the files that a run writes, besides checkpoints and logs of its worker processes. Other
files in the folder are not the run's. No run begins in a folder of other files with such names."""
_PROCESS_LOG = re.compile(r".+-\d+\.log")
Shapes = Mapping[str, tuple[tuple[int, ...], str]]
"""Shape and dtype of each array of a policy's weights, by name."""


def new_run_dir(name: str, seed: int) -> Path:
    """Makes a new folder for a run: `runs/<name>-<time>-seed<seed>`."""
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
        """The folder of the checkpoints."""
        return self.path / "checkpoints"

    @property
    def logs(self) -> Path:
        """The folder of the logs; each process writes its own."""
        return self.path / "logs"

    @property
    def sources(self) -> Path:
        """The folder for weights of other runs that policies of this run start with or keep."""
        return self.path / "sources"

    @property
    def exists(self) -> bool:
        """Whether the folder has a run's configuration."""
        return (self.path / CONFIG_FILE).exists()

    @property
    def has_checkpoints(self) -> bool:
        """Whether there are checkpoints to go on from; they may be damaged."""
        return self.exists and not self.store().is_empty

    @property
    def is_own(self) -> bool:
        """Whether this user has made or resumed the run on this machine."""
        with suppress(SrlError):
            data = self._config()
            code = named_code(decode_config(data, self.path / CONFIG_FILE))
            return not unsigned_because(self.path, data, code_locations(code))
        return False

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Locks the folder, so that two runs cannot use it at the same time."""
        try:
            self.logs.mkdir(parents=True, exist_ok=True)
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            fd = os.open(self.path / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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
            if os.fstat(fd).st_size == 0:
                os.write(fd, _LOCK_TEXT)
        except BlockingIOError:
            raise RunError(
                f"{self.path}: another process is training here. Wait for it, or choose another "
                "--run-dir."
            ) from None
        except OSError as error:
            raise _unusable(self.path, error) from error

    @property
    def _belongs_to_run(self) -> bool:
        """Whether a run has locked this folder, now or before."""
        with suppress(OSError, ConfigError):
            return read_limited(self.path / LOCK_FILE, len(_LOCK_TEXT)) == _LOCK_TEXT
        return False

    def check_free(self) -> None:
        """Raises if a run that begins here would overwrite files that no run has made."""
        if self._belongs_to_run:
            return
        if found := self._run_files():
            names = ", ".join(str(path.relative_to(self.path)) for path in found[:5])
            raise ConfigError(
                f"{self.path}: expected a folder whose files a run does not overwrite, got one "
                f"with {names}, which no run has made. Choose another --run-dir, or move them."
            )

    def clear(self) -> None:
        """Removes a run, for `--fresh`, and keeps all other files of its folder. Raises if the
        folder is not a run's, or if the run is training."""
        if not self.path.exists():
            return
        if not self._belongs_to_run:
            if any(self.path.iterdir()):
                raise ConfigError(
                    f"{self.path}: expected a run to replace, got a folder of other files. Choose "
                    "another --run-dir, or leave out --fresh."
                )
            return
        with self.locked():
            for path in self._run_files():
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()
            for folder in (self.checkpoints, self.logs, self.sources, self.path / "keys"):
                # It stays if it has files that are not the run's.
                with suppress(OSError):
                    folder.rmdir()

    def _run_files(self) -> list[Path]:
        """Files and folders here with names that a run gives to its files."""
        found = [path for pattern in _RUN_FILES for path in sorted(self.path.glob(pattern))]
        found += [path for path in sorted(self.checkpoints.glob("*")) if is_checkpoint(path.name)]
        logs = sorted(self.logs.glob("*.log"))
        return found + [path for path in logs if _PROCESS_LOG.fullmatch(path.name)]

    def keep_source(self, source: str, policy: str, name: str, shapes: Shapes) -> Path:
        """Copies the weights that the policy `name` starts with or keeps, and returns their file.

        It is a copy, because the run that they come from may go on, remove that checkpoint, or be
        removed. Raises if the weights do not have these shapes.
        """
        kept = self.sources / f"{name}.safetensors"
        if kept.exists():
            check_shapes(kept, shapes, name)
        else:
            content = weights_of(source, shapes, policy, name).read_bytes()
            kept.parent.mkdir(exist_ok=True)
            write_atomically(kept, content, to_disk=True)
        return kept.resolve()

    def forget_sources(self, experiment: Experiment, loaded: Iterable[str] = ()) -> None:
        """Removes copies of weights with which the policies of `experiment` do not start, and those
        of the `loaded` policies of other runs. It is for an experiment that replaces a run without
        checkpoints."""
        for name in loaded:
            (self.sources / f"{name}.safetensors").unlink(missing_ok=True)
        with suppress(SrlError):
            before = self.read_config().policies
            for name, policy in experiment.policies.items():
                if name not in before or policy.origin != before[name].origin:
                    (self.sources / f"{name}.safetensors").unlink(missing_ok=True)

    def check_links(self) -> None:
        """Raises if a run that is not this user's has links through which it would write to other
        folders."""
        if self.is_own:
            return
        home = self.path.resolve()
        folders = (self.checkpoints, self.logs, self.sources, self.path / "keys")
        for file in (*folders, *self._run_files()):
            odd = file.exists() and not (file.is_file() or file.is_dir())
            if odd or not file.resolve().is_relative_to(home):
                raise ConfigError(
                    f"{file}: expected a file of this run, got a link to {file.resolve()} or a "
                    "pipe. The run was not made by this user on this machine; remove it first."
                )

    def write_config(self, experiment: Experiment) -> None:
        """Writes the resolved settings in one step, and signs them as this user's."""
        text = encode_config(experiment)
        sign(self.path, text, code_locations(named_code(experiment)))
        write_atomically(self.path / CONFIG_FILE, text)

    def read_config(self) -> Experiment:
        """Reads the run's experiment; imports nothing that the experiment names."""
        return decode_config(self._config(), self.path / CONFIG_FILE)

    def read_trusted(self, *, trust: bool) -> Experiment:
        """Reads the run's experiment for a caller that imports the code that it names. Raises if
        some of that code is not SRL's, the run is not this user's, and `trust` is False."""
        data = self._config()
        experiment = decode_config(data, self.path / CONFIG_FILE)
        check_trust(self.path, data, named_code(experiment), trust=trust)
        return experiment

    def read_trusted_policies(self, *, trust: bool) -> Experiment:
        """As `read_trusted`, for a caller that imports only the code of policies and algorithms."""
        data = self._config()
        experiment = decode_config(data, self.path / CONFIG_FILE)
        code = named_code(experiment)
        used = [one for one in code if one.setting.startswith(("algorithm", "network", "policies"))]
        check_trust(self.path, data, used, code=code, trust=trust)
        return experiment

    def write_spaces(self, spaces: SavedSpaces) -> None:
        """Writes what the run's environment declares."""
        write_atomically(self.path / SPACES_FILE, spaces.encoded())

    def read_spaces(self) -> SavedSpaces:
        """What the run's environment declares, read without the environment."""
        file = self.path / SPACES_FILE
        try:
            return msgspec.json.decode(read_limited(file, _MAX_SPACES_BYTES), type=SavedSpaces)
        except FileNotFoundError:
            raise RunError(
                f"{file}: expected the spaces of the run's environment, got no such file. The run "
                "is from an earlier version: `srl resume --steps N` beyond its end writes the file."
            ) from None
        except (OSError, msgspec.MsgspecError, AttributeError) as error:
            raise RunError(
                f"{file}: expected the spaces of the run's environment, got {error}."
            ) from error

    def check_commands(self, experiment: Experiment, *, trust: bool) -> None:
        """Raises if this run names a command that a launcher may execute for `experiment`, the run
        is not this user's, and `trust` is False."""
        data = self._config()
        own = decode_config(data, self.path / CONFIG_FILE)
        from_run = set(named_commands(own))
        named = [one for one in named_commands(experiment) if one in from_run]
        check_trust(self.path, data, named, code=named_code(own), trust=trust)

    def _config(self) -> bytes:
        try:
            return read_limited(self.path / CONFIG_FILE, MAX_CONFIG_BYTES)
        except OSError:
            raise RunError(
                f"{self.path}: expected a run (a folder with {CONFIG_FILE}), got none. "
                "Give the folder that `srl train` printed."
            ) from None

    def store(self, config: CheckpointConfig | None = None) -> CheckpointStore:
        """The run's checkpoints."""
        if not self.exists:
            self.read_config()
        return CheckpointStore(self.checkpoints, config or CheckpointConfig())

    def check_resumable(self, experiment: Experiment) -> None:
        """Raises if `experiment` would learn something else than this run does, and lists the
        differences."""
        own = self.read_config()
        # Defaults are filled in only if both name the same algorithm and network. This run may name
        # another user's code, which must not be imported for a comparison.
        same = all(
            getattr(own, part)["name"] == getattr(experiment, part)["name"]
            for part in ("algorithm", "network")
        )
        before = _learning_settings(filled_in(own) if same else own)
        after = _learning_settings(filled_in(experiment) if same else experiment)
        differences = [
            f"  {key}: {before.get(key, '(default)')!r} -> {after.get(key, '(default)')!r}"
            for key in {**before, **after}
            if key not in before or key not in after or before[key] != after[key]
        ]
        if differences:
            raise ConfigError(
                f"{self.path}: resuming cannot change what is learned:\n"
                + "\n".join(differences)
                + f"\nTo go on from its weights with other settings: `srl train ... --init-from "
                f"{shlex.quote(str(self.path))}`, with another --run-dir. To start over here: "
                "`srl train ... --fresh`, which removes this run."
            )


def _unusable(path: Path, error: OSError) -> RunError:
    return RunError(
        f"{path}: cannot be a run's folder ({error.strerror}). Choose another --run-dir, on a disk "
        "that can be written and that supports file locks."
    )


def _learning_settings(experiment: Experiment) -> dict[str, Any]:
    """The settings that affect what is learned."""
    free = [pattern for name in ALGORITHM_FREE for pattern in (name, f"{name}.*")]
    return {
        key: value
        for key, value in flatten(to_plain(experiment)).items()
        if not any(fnmatchcase(key, pattern) for pattern in free)
    }


def split_source(source: str) -> tuple[Path, str, str]:
    """Run, checkpoint and policy of `RUN[@CHECKPOINT[:POLICY]]`; the policy is empty if none is
    named. A checkpoint name that depends on the policy keeps it: `best:POLICY`, `v340:POLICY`,
    `best:POLICY/SIDE`."""
    run, _, rest = source.partition("@")
    checkpoint, _, policy = rest.partition(":")
    if policy and is_by_policy(checkpoint):
        checkpoint = rest
    return Path(run), checkpoint or "latest", policy_of(policy)


def weights_of(source: str, shapes: Shapes, policy: str = "", role: str = "") -> Path:
    """The file of a policy's weights in `RUN[@CHECKPOINT[:POLICY]]`; they must have these shapes.

    The policy is `policy`, else the one that the source names, else the one called `role`, else the
    only one in the run. `best` is the best checkpoint of this policy, and `v340` a version of it.
    Shapes are compared first, from the file's header, so that a file that is too large is not read.
    """
    run, name, named = split_source(source)
    store = RunDir(run).store()
    known = _policies_in(store.find("latest"))
    wanted = policy or named or (role if role in known or len(known) != 1 else known[0])
    no_policy = CheckpointError(
        f"{source}: no policy {wanted!r} in it; it has {', '.join(known) or 'none'}."
    )
    if wanted not in known:
        raise no_policy
    checkpoint = store.find(name, wanted)
    part = checkpoint.manifest.parts.get(weights_part(wanted))
    if part is None:
        raise no_policy
    file = checkpoint.path / part.file
    problem = verify_part(checkpoint.path, part, content=False)
    if not problem:
        check_shapes(file, shapes, wanted)
        problem = verify_part(checkpoint.path, part)
    if problem:
        raise CheckpointError(
            f"{source}: checkpoint {checkpoint.number} is corrupt: {problem}. Name another one: "
            "RUN@NUMBER."
        )
    return file.resolve()


def check_shapes(file: Path, expected: Shapes, policy: str) -> None:
    """Raises unless a file of weights has exactly the arrays that a policy needs; reads only its
    header."""
    found = state_shapes(file)
    for key in sorted({*expected, *found}):
        needed = expected[key][0] if key in expected else None
        if found.get(key) != needed:
            raise CheckpointError(
                f"weights of policy {policy!r}: {key}: expected shape {needed}, got "
                f"{found.get(key)}. They belong to another network or environment."
            )


def _policies_in(checkpoint: Checkpoint) -> list[str]:
    start = weights_part("")
    return [
        part.removeprefix(start) for part in checkpoint.manifest.parts if part.startswith(start)
    ]
