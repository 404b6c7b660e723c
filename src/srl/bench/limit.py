"""The highest speed that a machine can reach with a workload, computed from the costs of its parts.

    limit = min(cores / core-seconds per step, 1 / longest serial chain per step)

The first term assumes that every core works all the time, and only on environments, inference and
training. The second term counts work that cannot run in parallel, however many cores there are: an
environment is stepped only after its action was chosen, and an update begins only after the one
before.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Costs of one environment step. Each is measured while all cores run copies of that part."""

    env: float
    """Core-seconds of stepping the environment."""
    inference: float
    """Core-seconds of choosing its action."""
    training: float
    """Core-seconds of learning from it."""
    collect_chain: float
    """Seconds of one tick (step a group, choose its actions) / environments in all actors."""
    train_chain: float
    """Seconds of one learner step / environment steps in its batch, for the slowest policy."""
    overlaps: bool = True
    """Whether collecting goes on while the trainer learns (algorithm.max_policy_age is not 0)."""

    @property
    def core_seconds(self) -> float:
        """Core-seconds of one environment step, all parts together."""
        return self.env + self.inference + self.training

    @property
    def chain_seconds(self) -> float:
        """Seconds of the longest serial chain, per environment step."""
        if self.overlaps:
            return max(self.collect_chain, self.train_chain)
        return self.collect_chain + self.train_chain


@dataclass(frozen=True)
class Limit:
    """The limit of a workload on a machine."""

    steps_per_second: float
    binds: str
    """What sets the limit: "cores", "collecting", "training", or "collecting, then training"."""


def limit_of(costs: Costs, cores: int) -> Limit:
    """The limit on a machine with this number of cores."""
    by_cores = cores / costs.core_seconds
    by_chain = 1.0 / costs.chain_seconds
    if by_cores <= by_chain:
        return Limit(by_cores, "cores")
    if not costs.overlaps:
        return Limit(by_chain, "collecting, then training")
    chain = "collecting" if costs.collect_chain > costs.train_chain else "training"
    return Limit(by_chain, chain)
