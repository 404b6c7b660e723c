"""Names of metrics by policy, and by the agents that a policy plays.

| the run has | a metric of a policy | the same of some of its agents |
|---|---|---|
| one policy | `episode_return_mean` | `agents.player_1.episode_return_mean` |
| several | `policies.red.episode_return_mean` | `policies.red.agents.tank_*.episode_return_mean` |

Users write `return`, `return/player_1`, `return/red` and `return/red/tank_*`.
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from srl.errors import ConfigError
from srl.services.metric_table import RUN_METRICS

if TYPE_CHECKING:
    from srl.services.checkpoints import Checkpoint

RUN_PREFIXES = ("workers.",)
AGENT_METRICS = ("episode_return_mean", "eval_return_mean")
"""Metrics that the sides of a policy have, too."""
_POLICIES, _AGENTS, _ACTORS = "policies.", "agents.", "actors."
_OPEN = (".train", ".episode")
"""Ends of prefixes whose metrics have names that the algorithm or the environment chooses."""


class AgentResult(msgspec.Struct, frozen=True, kw_only=True):
    """Mean returns of some agents of one policy."""

    episode_return_mean: float | None = None
    eval_return_mean: float | None = None
    best_checkpoint: int | None = None
    """The number of the checkpoint with their highest score."""


class PolicyResult(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a policy, and its returns."""

    learns: bool = True
    episodes: int = 0
    episode_return_mean: float | None = None
    """Over the last training episodes; None if none has ended."""
    episode_length_mean: float | None = None
    eval_return_mean: float | None = None
    policy_version: int = 0
    policy_age_mean: float | None = None
    """Mean policy age in the last update."""
    agents: dict[str, AgentResult] = {}
    """The result of each side, if the policy plays several."""
    actors: dict[str, float] = {}
    """Mean return of the last training episodes in each group of actors, if there are several."""
    best_checkpoint: int | None = None
    """The number of the checkpoint with its highest score; if it plays several sides, each side has
    one."""


@dataclass(frozen=True)
class MetricNames:
    """The names of one run's metrics."""

    policies: Mapping[str, Sequence[str] | None]
    """The side of each of a policy's agents (`agent_sides`), by policy; None if the environment is
    not known yet."""
    learning: Sequence[str]
    """The policies that are trained."""
    actors: Sequence[str] = ()
    """The names of the groups of actors, if there are several: each has returns of its own."""

    @property
    def subject(self) -> str | None:
        """The policy if no name is given: the only one, or the only one that learns."""
        return _only(tuple(self.policies), self.learning)

    def sides(self, policy: str) -> tuple[str, ...]:
        """The sides that a policy plays; empty if there is only one."""
        found = tuple(dict.fromkeys(self.policies[policy] or ()))
        return found if len(found) > 1 else ()

    def side_of(self, policy: str, agent: int) -> str:
        """The side of a policy's agent, by its index; empty if the policy plays one side only."""
        agents = self.policies[policy] or ()
        return agents[agent] if agent < len(agents) and self.sides(policy) else ""

    def key(self, metric: str, policy: str, agents: str = "") -> str:
        """The key of a policy's metric in a snapshot and in metrics.jsonl."""
        before = f"{_POLICIES}{policy}." if len(self.policies) > 1 else ""
        return f"{before}{_AGENTS}{agents}.{metric}" if agents else f"{before}{metric}"

    def key_of_actors(self, metric: str, policy: str, actors: str) -> str:
        """The key of a policy's metric in one group of actors."""
        return self.key(f"{_ACTORS}{actors}.{metric}", policy)

    def owners(self, policy: str) -> tuple[str, ...]:
        """The owners of the returns that rate a policy: the policy, or each of its sides as
        POLICY/SIDE.

        What one side wins another may lose, so the mean over sides says nothing.
        """
        return tuple(f"{policy}/{side}" for side in self.sides(policy)) or (policy,)

    def find(self, metric: str, whose: str = "", shown: str = "") -> str:
        """The key of a metric of the run, or of `POLICY`, `POLICY/AGENTS` or `AGENTS`.

        `shown` is the user's name for the metric, for errors.
        """
        shown = shown or metric
        of_sides = metric in AGENT_METRICS
        if whose:
            policy, agents = self._named(metric, whose, shown)
            if of_sides and not agents:
                self._check_one_side(policy, f"{shown}/{whose}", shown)
            return self.key(metric, policy, agents)
        if metric in RUN_METRICS or metric.startswith(RUN_PREFIXES):
            return metric
        if self.subject is None:
            names = self.learning or self.policies
            owners = [one for name in names for one in (self.owners(name) if of_sides else (name,))]
            choice = " or ".join(f"{shown}/{owner}" for owner in owners)
            raise ConfigError(
                f"{shown}: expected the name of a policy, because this run has several "
                f"({', '.join(self.policies)}). Write {choice}."
            )
        if of_sides:
            self._check_one_side(self.subject, shown, shown)
        return self.key(metric, self.subject)

    def _check_one_side(self, policy: str, got: str, shown: str) -> None:
        if self.sides(policy):
            choice = " or ".join(f"{shown}/{owner}" for owner in self.owners(policy))
            raise ConfigError(
                f"{got}: expected one side of policy {policy!r}, which plays several, because what "
                f"one wins another may lose. Write {choice}."
            )

    def _named(self, metric: str, whose: str, shown: str) -> tuple[str, str]:
        policy, agents = whose, ""
        if policy not in self.policies:
            policy, _, agents = whose.partition("/")
        if policy not in self.policies and len(self.policies) == 1:
            policy, agents = next(iter(self.policies)), whose
        if policy not in self.policies:
            raise ConfigError(
                f"{shown}/{whose}: expected a policy of this run ({', '.join(self.policies)}), "
                f"got {policy!r}."
            )
        if agents and self.policies[policy] is not None and agents not in self.sides(policy):
            known = " or ".join(self.owners(policy))
            raise ConfigError(
                f"{shown}/{whose}: expected {known}, got agents {agents!r}, which "
                "have no returns of their own."
            )
        if agents and metric not in AGENT_METRICS:
            raise ConfigError(
                f"{shown}/{whose}: only {' and '.join(AGENT_METRICS)} are measured for sides. "
                f"Write {shown}/{policy}."
            )
        return policy, agents

    def results(
        self, snapshot: Mapping[str, float], best: Mapping[str, Checkpoint] | None = None
    ) -> dict[str, PolicyResult]:
        """The result of every policy, by name, with the numbers of its `best` checkpoints."""
        return {policy: self._result(policy, snapshot, best or {}) for policy in self.policies}

    def _result(
        self, policy: str, snapshot: Mapping[str, float], best: Mapping[str, Checkpoint]
    ) -> PolicyResult:
        def known(kind: type[msgspec.Struct], agents: str = "") -> dict[str, float]:
            keys = {name: self.key(name, policy, agents) for name in kind.__struct_fields__}
            return {name: snapshot[key] for name, key in keys.items() if key in snapshot}

        names = {
            actors: self.key_of_actors("episode_return_mean", policy, actors)
            for actors in self.actors
        }

        def number(owner: str) -> int | None:
            return best[owner].number if owner in best else None

        sides = {
            side: AgentResult(
                best_checkpoint=number(f"{policy}/{side}"),
                **known(AgentResult, side),
            )
            for side in self.sides(policy)
        }
        return PolicyResult(
            learns=policy in self.learning,
            agents=sides,
            actors={name: snapshot[key] for name, key in names.items() if key in snapshot},
            best_checkpoint=number(policy),
            **known(PolicyResult),  # type: ignore[arg-type]
        )


def subject(results: Mapping[str, PolicyResult]) -> PolicyResult | None:
    """The result if no policy is named: that of the only policy, or of the only one that learns."""
    name = _only(tuple(results), tuple(n for n, result in results.items() if result.learns))
    return None if name is None else results[name]


def _only(policies: Sequence[str], learning: Sequence[str]) -> str | None:
    return next((names[0] for names in (policies, learning) if len(names) == 1), None)


def agent_sides(
    patterns: Sequence[str], agents: Sequence[str], *, turn_based: bool
) -> tuple[str, ...]:
    """The side of each agent of one policy.

    If the policy has several patterns, the side is the first that matches. Else agents whose names
    differ only in their number are one side (`adversary_*`). In turn-based games each agent is a
    side.
    """
    if len(patterns) > 1:
        return tuple(
            next((p for p in patterns if fnmatch.fnmatchcase(agent, p)), agent) for agent in agents
        )
    return tuple(agent if turn_based else re.sub(r"\d+$", "*", agent) for agent in agents)


def columns(keys: Iterable[str], metric: str) -> dict[tuple[str, str], str]:
    """The keys of a metric in a line of metrics.jsonl, by policy and agents or group of actors
    (empty: all of them).

    The policy is empty if the run has only one. Metrics that a run with several policies has as a
    whole are left out.
    """
    found: dict[tuple[str, str], str] = {}
    for key in keys:
        head = key.removesuffix(f".{metric}") if key != metric else ""
        if head == key or head.endswith(_OPEN):
            continue
        if head.startswith(_POLICIES):
            policy, _, rest = head.removeprefix(_POLICIES).partition(f".{_AGENTS}")
            if not rest:
                policy, _, rest = policy.partition(f".{_ACTORS}")
            found[policy, rest] = key
        elif head.startswith((_AGENTS, _ACTORS)):
            found["", head.partition(".")[2]] = key
        elif not head:
            found["", ""] = key
    if any(policy for policy, _ in found):
        found.pop(("", ""), None)
    return dict(sorted(found.items()))
