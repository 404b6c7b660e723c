"""Settings of the workers that compute with torch; apart, so that reading settings does not import
it."""

from __future__ import annotations

from dataclasses import dataclass

from srl.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class InferenceConfig:
    """How policy workers batch requests."""

    count: int = 0
    """Policy workers of the layouts that have them apart; 0 takes one, or two where a CPU of two
    cores has an actor on each. In `inline` each actor has its own."""
    max_count: int = 0
    """Room for so many policy workers, for `srl scale`; 0 has none beyond `count`."""
    max_restarts: int = -1
    """How often a killed policy worker is started again; -1 is as `max_restarts` says."""
    device: str = ""
    """Where they compute; empty takes the trainer's device."""
    threads: int = 1
    """Torch threads of each policy worker."""
    min_rows: int = 1
    """Waits for this many rows before it answers, but no longer than `max_wait_microseconds`."""
    max_wait_microseconds: int = 1000
    """The longest that a request waits for others to join it."""
    max_rows: int = 0
    """Answers at most this many rows at once; 0 answers all that have arrived."""

    def __post_init__(self) -> None:
        for name, least in (("count", 0), ("threads", 1), ("min_rows", 1), ("max_rows", 0)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"inference.{name}: expected at least {least}, got {getattr(self, name)}."
                )


@dataclass(frozen=True, kw_only=True)
class TrainerConfig:
    """How many trainers a policy has, and where and how each computes."""

    count: int = 1
    """Trainers of each policy; they learn together, each from its part of every batch."""
    device: str = "auto"
    """`cpu`, `cuda`, `cuda:1`, ...; `auto` takes cuda when there is one."""
    threads: int = 0
    """Torch threads of each trainer; 0 takes one, or half of the cores (at least two) where a CPU
    learns from images more than once."""
    trust_network: bool = False
    """Trainers of a policy may be on several hosts: what they sum up is then neither encrypted nor
    authenticated on its way, so nobody else must have access to the network between them."""
    max_restarts: int = -1
    """How often a killed trainer is started again; -1 is as `max_restarts` says."""

    def __post_init__(self) -> None:
        for name, least in (("count", 1), ("threads", 0)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"trainer.{name}: expected at least {least}, got {getattr(self, name)}."
                )


@dataclass(frozen=True, kw_only=True)
class EvaluatorConfig:
    """Evaluation beside training; off by default."""

    count: int = 0
    """Evaluators; 0 switches evaluation off."""
    episodes: int = 10
    """Episodes of one evaluation."""
    envs: int = 4
    """Environments that it plays them in."""
    every_seconds: float = 10.0
    """Time between the starts of two evaluations."""
    explore: float = 0.0
    """0 plays greedily, 1 samples from the policy as training does."""
    max_restarts: int = -1
    """How often a killed evaluator is started again; -1 is as `max_restarts` says."""

    def __post_init__(self) -> None:
        for name, least in (("count", 0), ("episodes", 1), ("envs", 1)):
            if getattr(self, name) < least:
                raise ConfigError(
                    f"evaluator.{name}: expected at least {least}, got {getattr(self, name)}."
                )
