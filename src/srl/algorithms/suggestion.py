"""What an algorithm suggests for an environment that has no recipe."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from srl.data.memory_layout import Shape
from srl.data.spec import ArraySpec, EnvSpec
from srl.data.tree import leaves

BATCH_BYTES = 256_000_000
"""Most bytes of observations in a suggested batch. Memory holds four such batches, and a CPU learns
from one in about a minute."""


@dataclass(frozen=True, kw_only=True)
class Suggestion:
    """Settings that an algorithm chooses by what agents see and do."""

    envs: int = 16
    """`actor.envs`."""
    algorithm: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the algorithm that differ from its defaults."""
    evaluators: int = 0
    """`evaluator.count`: 1 where training itself has no episodes whose returns mean something."""
    network: Mapping[str, Any] = field(default_factory=dict)
    """Settings of the algorithm's own policy class that differ from its defaults."""


def is_image(leaf: ArraySpec) -> bool:
    """Whether an array of observations has pixels."""
    return leaf.dtype == "uint8" and len(leaf.shape) + (leaf.stack > 1) >= 3


def has_images(spec: EnvSpec) -> bool:
    """Whether the first agent sees pixels."""
    return any(is_image(leaf) for leaf in leaves(spec.first_agent.obs))


def fit_to_memory(spec: EnvSpec, envs: int, ticks: int) -> tuple[int, int]:
    """Environments and ticks of a batch: fewer than asked for where observations are large or
    agents are many."""
    seen = sum(
        Shape(leaf.shape, leaf.dtype).nbytes
        for agent in spec.agents.values()
        for leaf in leaves(agent.obs)
    )
    # In small steps, so that neither becomes 1 while the other is large.
    for fewest, shortest in ((4, 32), (2, 16), (1, 1)):
        while envs > fewest and envs * ticks * seen > BATCH_BYTES:
            envs //= 2
        while ticks > shortest and envs * ticks * seen > BATCH_BYTES:
            ticks //= 2
    return envs, ticks
