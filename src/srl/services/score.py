"""The results of evaluation episodes."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from srl.errors import ConfigError
from srl.services.metric_names import MetricNames


@dataclass(frozen=True)
class Score:
    """Returns and lengths of evaluation episodes by policy, and by side if a policy plays
    several."""

    returns: dict[str, list[float]]
    lengths: dict[str, list[int]]
    agents: dict[str, list[int]]
    """For each episode: the index of the policy's agent that played it."""
    names: MetricNames
    metrics: dict[str, list[float]] = field(default_factory=dict)
    """What the environment reports of each episode, by name; NaN where it does not know."""

    @property
    def mean(self) -> float:
        """The mean return of the only policy, or of the only one that learns."""
        if (policy := self.names.subject) is None:
            known = ", ".join(self.returns)
            raise ConfigError(
                f"score.mean: expected one policy, got several ({known}). "
                f"Use score.table()[{next(iter(self.returns))!r}]['mean']."
            )
        return float(np.mean(self.returns[policy]))

    def by_name(self, lengths: bool = False) -> dict[str, list[float]]:
        """Returns (or lengths) of `POLICY`, and of `POLICY/SIDE` if it plays several sides."""
        found: dict[str, list[float]] = {}
        for policy in self.returns:
            values = [float(x) for x in (self.lengths if lengths else self.returns)[policy]]
            found[policy] = values
            for side in self.names.sides(policy):
                found[f"{policy}/{side}"] = [
                    value
                    for value, agent in zip(values, self.agents[policy], strict=True)
                    if self.names.side_of(policy, agent) == side
                ]
        return {name: values for name, values in found.items() if values}

    def table(self) -> dict[str, dict[str, float]]:
        """Mean, standard deviation, extremes, mean length and number of returns, by name."""
        lengths = self.by_name(lengths=True)
        return {
            name: {
                "mean": float(np.mean(found)),
                "std": float(np.std(found)),
                "min": float(np.min(found)),
                "max": float(np.max(found)),
                "length_mean": float(np.mean(lengths[name])),
                "episodes": len(found),
            }
            for name, found in self.by_name().items()
        }

    def metric_means(self) -> dict[str, float]:
        """The mean of each metric of the environment over the episodes that have it."""
        known = {name: [x for x in values if x == x] for name, values in self.metrics.items()}
        return {name: float(np.mean(values)) for name, values in known.items() if values}

    def __str__(self) -> str:
        lines = [
            f"{name}: {row['mean']:.1f} ± {row['std']:.1f} "
            f"(from {row['min']:.1f} to {row['max']:.1f}, {row['episodes']:.0f} episodes, "
            f"mean length {row['length_mean']:.1f})"
            for name, row in self.table().items()
        ]
        lines += [f"{name}: {mean:.3g}" for name, mean in self.metric_means().items()]
        return "\n".join(lines)
