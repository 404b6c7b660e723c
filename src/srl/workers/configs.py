"""Settings of the workers that use torch, in a module of their own that does not import torch."""

from __future__ import annotations

from dataclasses import dataclass

from srl.errors import ConfigError
from srl.workers.devices import check_name


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """How policy workers batch requests."""

    count: int = 0
    """Policy workers, in layouts where they are processes of their own. 0 takes one, or one
    for each core of a CPU where each of at most three has an actor. In `inline` each actor has its
    own."""
    max_count: int = 0
    """Most policy workers that `srl scale` may ask for; 0 allows no more than `count`."""
    max_restarts: int = -1
    """How often a killed policy worker is started again; -1 takes the experiment's
    `max_restarts`."""
    device: str = ""
    """Device of the policy workers; empty takes the trainer's device."""
    threads: int = 1
    """Torch threads of each policy worker."""
    min_rows: int = 1
    """Rows that a policy worker waits for, but no longer than `max_wait_microseconds`."""
    max_wait_microseconds: int = 1000
    """The longest time that a request waits for other requests."""
    max_rows: int = 0
    """The most rows in one batch; 0 answers all rows that have arrived."""

    def __post_init__(self) -> None:
        for name, least in (("count", 0), ("threads", 1), ("min_rows", 1), ("max_rows", 0)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"inference.{name}: expected at least {least}, got {getattr(self, name)}."
                )
        check_name(self.device, "inference.device", "")


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How many trainers a policy has, and where and how each one computes."""

    count: int = 1
    """Trainers of each policy; they learn together, each from its part of every batch."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, ...; `auto` takes cuda when there is one."""
    threads: int = 0
    """Torch threads of each trainer. 0 takes one, or half of the cores (at least two) where a CPU
    learns from images for more than one epoch."""
    trust_network: bool = False
    """Allows trainers of a policy on several hosts. Their sums then travel without encryption and
    authentication, so nobody else may have access to the network between the hosts."""
    max_restarts: int = -1
    """How often a killed trainer is started again; -1 takes the experiment's `max_restarts`."""

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("threads", 0)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"trainer.{name}: expected at least {least}, got {getattr(self, name)}."
                )
        check_name(self.device, "trainer.device", "auto")


@dataclass(frozen=True, kw_only=True)
class EvaluatorConfig:
    """Evaluation beside training; off by default."""

    count: int = 0
    """Evaluators; 0 switches evaluation off."""
    episodes: int = 10
    """Episodes of one evaluation."""
    envs: int = 4
    """Environments that are played side by side."""
    every_seconds: float = 10.0
    """Time between the starts of two evaluations."""
    explore: float = 0.0
    """0 plays greedily, 1 samples from the policy as training does."""
    max_restarts: int = -1
    """How often a killed evaluator is started again; -1 takes the experiment's `max_restarts`."""

    def __post_init__(self) -> None:
        for name, least in (("count", 0), ("episodes", 1), ("envs", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"evaluator.{name}: expected at least {least}, got {getattr(self, name)}."
                )
