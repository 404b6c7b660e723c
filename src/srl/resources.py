"""What workers need of a machine, and what Ray and Slurm are told about it.

`--set resources.trainer.gpus=1` says what one worker of a kind needs; a host asks its engine for
the sum over its workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from srl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ResourceConfig:
    """What one worker of a kind needs."""

    cpus: float = 1.0
    """Cores; parts of one are fine where many workers mostly wait."""
    gpus: float = 0.0
    """GPUs; Ray shares one between workers that ask for parts of it, Slurm gives whole ones."""
    memory_gb: float = 0.0
    """Main memory; 0 asks for none in particular."""

    def __post_init__(self) -> None:
        for name in ("cpus", "gpus", "memory_gb"):
            if getattr(self, name) < 0:
                raise ConfigError(
                    f"resources: expected {name} of at least 0, got {getattr(self, name)}."
                )

    def __add__(self, other: ResourceConfig) -> ResourceConfig:
        return ResourceConfig(
            cpus=self.cpus + other.cpus,
            gpus=self.gpus + other.gpus,
            memory_gb=self.memory_gb + other.memory_gb,
        )


@dataclass(frozen=True, kw_only=True)
class ResourcesConfig:
    """What one worker of each kind needs; workers beside each other are counted each."""

    actor: ResourceConfig = field(default_factory=ResourceConfig)
    """An actor, with its environments."""
    policy: ResourceConfig = field(default_factory=ResourceConfig)
    """A policy worker."""
    trainer: ResourceConfig = field(default_factory=ResourceConfig)
    """A trainer."""
    other: ResourceConfig = field(default_factory=ResourceConfig)
    """Any other worker: evaluators, and what a dataflow of your own adds."""

    def of(self, groups: Iterable[str]) -> ResourceConfig:
        """The sum over workers, given by the names of their groups (`actor`, `trainer-red`)."""
        total = ResourceConfig(cpus=0.0)
        for group in groups:
            total += vars(self).get(group.partition("-")[0], self.other)
        return total


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """How agents are started on a Ray cluster."""

    address: str = ""
    """The cluster: `auto`, HOST:PORT or ray://HOST:PORT; empty starts a small one on this machine.
    """
    working_dir: str = "."
    """The folder of the user's code that is sent to every node; empty sends none."""
    py_modules: tuple[str, ...] = ()
    """Packages that are sent too, by their folders; for code outside of `working_dir`."""
    pip: tuple[str, ...] = ()
    """Packages that Ray installs on every node before agents start there."""
    env_vars: dict[str, str] = field(default_factory=dict)
    """Environment variables of the agents."""
    spread: str = "SPREAD"
    """Where the hosts of a run are placed: SPREAD, STRICT_SPREAD, PACK or STRICT_PACK."""
    max_restarts: int = -1
    """How often Ray starts an agent again, here or on another node; -1 has no limit."""
    wait_seconds: float = 0.0
    """How long to wait for resources before giving up; 0 waits for as long as it takes."""

    def __post_init__(self) -> None:
        known = ("SPREAD", "STRICT_SPREAD", "PACK", "STRICT_PACK")
        if self.spread not in known:
            raise ConfigError(
                f"ray.spread: expected one of {', '.join(known)}, got {self.spread!r}."
            )
        if self.max_restarts < -1:
            raise ConfigError(f"ray.max_restarts: expected at least -1, got {self.max_restarts}.")


@dataclass(frozen=True, kw_only=True)
class SlurmConfig:
    """What a job asks Slurm for."""

    partition: str = ""
    """The partition; empty takes the cluster's default."""
    account: str = ""
    """The account that pays; empty takes the user's default."""
    qos: str = ""
    """The quality of service; empty takes the default."""
    time_minutes: int = 0
    """How long the job may take before it has to queue again; 0 takes the partition's limit."""
    gres: str = ""
    """What is asked for where a host needs GPUs, with {gpus} for their number; empty asks by
    `--gpus-per-node`."""
    signal_seconds: int = 60
    """How long before the time limit the run writes its last checkpoint and is queued again."""
    setup: tuple[str, ...] = ()
    """Lines of shell that run once, on the head's node, before the run; what they set, like `module
    load python` does, holds on the other nodes too."""
    extra: tuple[str, ...] = ()
    """More options of sbatch for every part of the job, like `--constraint=ib`."""

    def __post_init__(self) -> None:
        for name in ("time_minutes", "signal_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"slurm.{name}: expected at least 0, got {getattr(self, name)}.")
