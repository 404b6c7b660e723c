"""The metrics of one policy of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from srl.services.messages import Episodes, Evaluation, Update
from srl.services.metric_names import MetricNames
from srl.services.tensorboard import Value

MAIN_ACTORS = "main"
"""The name of the actors that the setting `actor` describes."""


class PolicyMetrics:
    """The metrics of one policy: its last episodes, last update and last evaluation."""

    def __init__(self, policy: str, names: MetricNames, window: int) -> None:
        self._policy, self._names = policy, names
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)
        self.side_returns: dict[str, deque[float]] = {
            side: deque(maxlen=window) for side in names.sides(policy)
        }
        """The last returns of each side, if the policy plays several."""
        self.actor_returns: dict[str, deque[float]] = {
            actors: deque(maxlen=window) for actors in names.actors
        }
        """The last returns in each group of actors, if there are several."""
        self.metrics: dict[str, deque[float]] = {}
        self.episodes = 0
        self.train: dict[str, float] = {}
        self.totals: dict[str, Value] = {}
        self.eval_version = -1
        self.eval_played = -1
        self.eval_returns: list[float] = []
        self.eval_lengths: list[int] = []
        self.eval_side_returns: dict[str, list[float]] = {side: [] for side in self.side_returns}

    def add_episodes(self, message: Episodes) -> None:
        """Takes training episodes that have ended."""
        self.returns.extend(message.returns)
        self.lengths.extend(message.lengths)
        self.episodes += len(message.returns)
        actors = actors_of(message.worker)
        if actors in self.actor_returns:
            self.actor_returns[actors].extend(message.returns)
        if actors == MAIN_ACTORS or actors not in self.actor_returns:
            # In other actors a policy may play other agents.
            self._add_to_sides(message, self.side_returns)
        for name, values in message.metrics.items():
            window = self.metrics.get(name)
            if window is None:
                window = self.metrics[name] = deque(maxlen=self.returns.maxlen)
            window.extend(values)

    def add_update(self, message: Update) -> None:
        """Takes the numbers of a learner step."""
        self.totals = {
            "env_steps": message.env_steps,
            "agent_steps": message.agent_steps,
            "policy_version": message.policy_version,
            "policy_age_mean": message.policy_age_mean,
            "policy_age_max": message.policy_age_max,
            "update_seconds": message.seconds,
        }
        self.train.update(message.metrics)

    def add_evaluation(self, message: Evaluation) -> None:
        """Takes an evaluation; ignores it if newer versions have been evaluated."""
        if message.played < self.eval_played:
            return
        if message.played > self.eval_played:
            # Several evaluators share the episodes of the same versions. A newer version starts a
            # new result, also for the policies that play against it.
            self.eval_played, self.eval_returns, self.eval_lengths = message.played, [], []
            self.eval_side_returns = {side: [] for side in self.side_returns}
        self.eval_version = message.policy_version
        self.eval_returns.extend(message.returns)
        self.eval_lengths.extend(message.lengths)
        self._add_to_sides(message, self.eval_side_returns)

    def _add_to_sides(
        self,
        message: Episodes | Evaluation,
        sides: dict[str, deque[float]] | dict[str, list[float]],
    ) -> None:
        """Adds each return to the side that earned it, if there are several sides."""
        if sides:
            for agent, value in zip(message.agents, message.returns, strict=False):
                if side := self._names.side_of(self._policy, agent):
                    sides[side].append(value)

    def values(self) -> dict[str, Value]:
        """All metrics, by their keys in the run's snapshot."""
        names, policy = self._names, self._policy
        values = {names.key(name, policy): value for name, value in self._own_values().items()}
        for side, returns in self.side_returns.items():
            evaluated = self.eval_side_returns[side]
            own: dict[str, Value] = {"window_full": len(returns) == returns.maxlen}
            if returns:
                own["episode_return_mean"] = mean(returns)
            if evaluated:
                own["eval_return_mean"] = mean(evaluated)
            values |= {names.key(name, policy, side): value for name, value in own.items()}
        for actors, returns in self.actor_returns.items():
            if returns:
                key = names.key_of_actors("episode_return_mean", policy, actors)
                values[key] = mean(returns)
        return values

    def _own_values(self) -> dict[str, Value]:
        values: dict[str, Value] = {"episodes": self.episodes, **self.totals}
        values["window_full"] = len(self.returns) == self.returns.maxlen
        if self.returns:
            values["episode_return_mean"] = mean(self.returns)
            values["episode_length_mean"] = mean(self.lengths)
        values.update((f"episode.{name}", mean(v)) for name, v in self.metrics.items() if v)
        if self.eval_returns:
            values["eval_return_mean"] = mean(self.eval_returns)
            values["eval_length_mean"] = mean(self.eval_lengths)
            values["eval_policy_version"] = self.eval_version
        values.update((f"train.{name}", value) for name, value in self.train.items())
        return values

    @property
    def scores(self) -> dict[str, float]:
        """The scores that select the best checkpoint, by POLICY, or by POLICY/SIDE if it plays
        several.

        A score is the mean return of the evaluation, else that of a full window of training
        episodes.
        """
        trained = self.side_returns or {"": self.returns}
        evaluated = self.eval_side_returns or {"": self.eval_returns}
        found = {}
        for side, returns in trained.items():
            owner = f"{self._policy}/{side}" if side else self._policy
            if evaluated[side]:
                found[owner] = mean(evaluated[side])
            elif len(returns) == returns.maxlen:
                found[owner] = mean(returns)
        return found

    def state(self) -> dict[str, Any]:
        """The state for `restore`."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "sides": {side: list(returns) for side, returns in self.side_returns.items()},
            "actors": {name: list(returns) for name, returns in self.actor_returns.items()},
            "metrics": {name: list(values) for name, values in self.metrics.items()},
            "episodes": self.episodes,
            "train": dict(self.train),
            "totals": dict(self.totals),
            "eval": {
                "version": self.eval_version,
                "played": self.eval_played,
                "returns": list(self.eval_returns),
                "lengths": list(self.eval_lengths),
                "sides": {side: list(found) for side, found in self.eval_side_returns.items()},
            },
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from `state`."""
        self.returns.extend(state["returns"])
        self.lengths.extend(state["lengths"])
        window = self.returns.maxlen
        self.metrics = {k: deque(v, maxlen=window) for k, v in state["metrics"].items()}
        self.episodes = state["episodes"]
        self.train, self.totals = dict(state["train"]), dict(state["totals"])
        kept = state["eval"]
        self.eval_version, self.eval_played = kept["version"], kept["played"]
        self.eval_returns, self.eval_lengths = list(kept["returns"]), list(kept["lengths"])
        for name, returns in self.actor_returns.items():
            returns.extend(state["actors"].get(name, ()))
        # A side that is not in `state` starts empty: the run began without sides, or with other
        # ones.
        for side in self.side_returns:
            self.side_returns[side].extend(state.get("sides", {}).get(side, ()))
            self.eval_side_returns[side].extend(kept.get("sides", {}).get(side, ()))


def actors_of(worker: str) -> str:
    """The name of the group of actors that a worker belongs to."""
    _, _, name = worker.partition("/")[0].partition("-")
    return name or MAIN_ACTORS


def mean(values: Iterable[float]) -> float:
    """The mean of at least one number."""
    items = list(values)
    return sum(items) / len(items)
