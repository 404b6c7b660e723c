"""What a sweep searches, as it is written into `sweep.json`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from srl.arguments import assemble
from srl.errors import ConfigError, RunError
from srl.experiment import Experiment
from srl.files import read_limited, write_atomically
from srl.launch.directory.signature import sign, unsigned_because
from srl.settings import MAX_CONFIG_BYTES, show

SWEEP_FILE = "sweep.json"
Sampler = Literal["tpe", "random"]
Pruner = Literal["median", "hyperband", "none"]


class TrainArguments(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments of `srl train` that all trials share."""

    target: str
    options: dict[str, Any] = {}
    """By the option's name: algorithm, layout, launcher, listen, steps, seconds, until, device,
    init_from."""
    env_args: dict[str, Any] = {}
    set: dict[str, Any] = {}

    def experiment(self, settings: Mapping[str, Any], seed: int) -> Experiment:
        """The experiment of one run."""
        return assemble(
            self.target,
            **self.options,
            seed=seed,
            env_args=self.env_args,
            set={**self.set, **settings},
        )

    def command(self, settings: Mapping[str, Any], seed: int) -> list[str]:
        """`train ...`: the words of the command that trains one run."""
        words = ["train", self.target]
        for name, value in self.options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        for key, value in self.env_args.items():
            words += ["--env-arg", f"{key}={show(value)}"]
        for key, value in {**self.set, **settings}.items():
            words += ["--set", f"{key}={show(value)}"]
        return [*words, "--seed", str(seed)]


class SweepDefinition(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides what a sweep does."""

    train: TrainArguments
    search: list[str]
    trials: int
    seeds: int = 1
    """Runs of each trial, with consecutive seeds; the score is their mean."""
    seed: int = 1
    """The first seed of the runs, and the seed of the sampler."""
    metric: str = "return"
    """Named as for `--until`."""
    minimize: bool = False
    sampler: Sampler = "tpe"
    pruner: Pruner = "median"

    def __post_init__(self) -> None:
        for name in ("trials", "seeds"):
            if getattr(self, name) < 1:
                raise ConfigError(f"--{name}: expected at least 1, got {getattr(self, name)}.")


def write_definition(folder: Path, definition: SweepDefinition) -> None:
    """Writes the definition, and signs it as this user's."""
    data = msgspec.json.format(msgspec.json.encode(definition), indent=1)
    sign(folder, data, [])
    write_atomically(folder / SWEEP_FILE, data)


def read_definition(folder: Path, *, trust: bool) -> SweepDefinition:
    """Reads the definition of a sweep. Raises if this user did not make the sweep on this machine,
    unless `trust`: its trials import the code that it names."""
    file = folder / SWEEP_FILE
    try:
        data = read_limited(file, MAX_CONFIG_BYTES)
        definition = msgspec.json.decode(data, type=SweepDefinition)
    except OSError:
        raise RunError(
            f"{folder}: expected a sweep (a folder with {SWEEP_FILE}), got none."
        ) from None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise RunError(f"{file}: expected the definition of a sweep, got {error}.") from None
    if not trust and (reason := unsigned_because(folder, data, [])):
        raise ConfigError(
            f"{folder}: {reason}. Its trials would import the code that {file} names "
            f"({definition.train.target}). Look at it first; then give --trust."
        )
    return definition


def is_sweep(folder: Path) -> bool:
    """Whether a folder has a sweep."""
    return (folder / SWEEP_FILE).is_file()
