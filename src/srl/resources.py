"""What workers need from a machine, and the settings for Ray and Slurm.

`--set resources.trainer.gpus=1` says what one worker of a kind needs. A host asks its backend for
the sum over its workers.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field

from srl.errors import ConfigError


def machine_memory() -> int:
    """Bytes of this machine's main memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@dataclass(frozen=True, kw_only=True)
class ResourceConfig:
    """What one worker of a kind needs."""

    cpus: float = 1.0
    """Cores; use a fraction where many workers mostly wait."""
    gpus: float = 0.0
    """GPUs; Ray shares a GPU between workers that ask for fractions, Slurm gives whole GPUs."""
    memory_gb: float = 0.0
    """Main memory; 0 asks for no particular amount."""

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
    """What one worker of each kind needs; workers that share a process are counted one by one."""

    actor: ResourceConfig = field(default_factory=ResourceConfig)
    """An actor, with its environments."""
    policy: ResourceConfig = field(default_factory=ResourceConfig)
    """A policy worker."""
    trainer: ResourceConfig = field(default_factory=ResourceConfig)
    """A trainer."""
    other: ResourceConfig = field(default_factory=ResourceConfig)
    """Any other worker: evaluators, and workers that your own dataflow adds."""

    def of(self, groups: Iterable[str]) -> ResourceConfig:
        """The sum over workers, given by the names of their groups (`actor`, `trainer-red`)."""
        total = ResourceConfig(cpus=0.0)
        for group in groups:
            total += vars(self).get(group.partition("-")[0], self.other)
        return total


@dataclass(frozen=True, kw_only=True)
class RayConfig:
    """How host agents are started on a Ray cluster."""

    address: str = ""
    """The cluster: `auto`, HOST:PORT or ray://HOST:PORT; empty starts a small cluster on this
    machine."""
    working_dir: str = "."
    """The folder with the user's code, which is sent to every node; empty sends none."""
    py_modules: tuple[str, ...] = ()
    """Folders of packages that are sent too, for code outside of `working_dir`."""
    pip: tuple[str, ...] = ()
    """Packages that Ray installs on every node before host agents start there."""
    env_vars: dict[str, str] = field(default_factory=dict)
    """Environment variables of the host agents."""
    spread: str = "SPREAD"
    """How Ray places the hosts of a run: SPREAD, STRICT_SPREAD, PACK or STRICT_PACK."""
    max_restarts: int = -1
    """How often Ray starts a host agent again, on the same or another node; -1 has no limit."""
    wait_seconds: float = 0.0
    """How long to wait for resources before the run fails; 0 has no limit."""

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
    """What a job requests from Slurm."""

    partition: str = ""
    """The partition; empty takes the cluster's default."""
    account: str = ""
    """The account to charge; empty takes the user's default."""
    qos: str = ""
    """The quality of service; empty takes the default."""
    time_minutes: int = 0
    """Time limit of the job, after which it is queued again; 0 takes the partition's limit."""
    gres: str = ""
    """Value of `--gres` for hosts that need GPUs, with {gpus} for their number; empty uses
    `--gpus-per-node` instead."""
    signal_seconds: int = 60
    """Time before the limit at which the run writes its last checkpoint and is queued again."""
    setup: tuple[str, ...] = ()
    """Shell lines that run once, on the head's node, before the run. The variables that they set
    (as `module load python` does) also reach the other nodes."""
    extra: tuple[str, ...] = ()
    """More sbatch options for every part of the job, like `--constraint=ib`."""

    def __post_init__(self) -> None:
        for name in ("time_minutes", "signal_seconds"):
            if getattr(self, name) < 0:
                raise ConfigError(f"slurm.{name}: expected at least 0, got {getattr(self, name)}.")
