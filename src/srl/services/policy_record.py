"""What is known of one policy of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

from srl.services.events import Value
from srl.services.messages import Episodes, Evaluation, Update


class PolicyRecord:
    """What is known of one policy: its last episodes, its last update, its last evaluation."""

    def __init__(self, window: int) -> None:
        self.returns: deque[float] = deque(maxlen=window)
        self.lengths: deque[int] = deque(maxlen=window)
        self.metrics: dict[str, deque[float]] = {}
        self.episodes = 0
        self.train: dict[str, float] = {}
        self.totals: dict[str, Value] = {}
        self.eval_version = -1
        self.eval_played = -1
        self.eval_returns: list[float] = []
        self.eval_lengths: list[int] = []

    def add_episodes(self, message: Episodes) -> None:
        """Takes episodes that ended in training."""
        self.returns.extend(message.returns)
        self.lengths.extend(message.lengths)
        self.episodes += len(message.returns)
        for name, values in message.metrics.items():
            window = self.metrics.get(name)
            if window is None:
                window = self.metrics[name] = deque(maxlen=self.returns.maxlen)
            window.extend(values)

    def add_update(self, message: Update) -> None:
        """Takes what a learner step was like."""
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
        """Takes an evaluation, unless newer versions have been evaluated."""
        if message.played < self.eval_played:
            return
        if message.played > self.eval_played:
            # Several evaluators share what the same versions play; a newer one starts afresh, also
            # for those who play against it.
            self.eval_played, self.eval_returns, self.eval_lengths = message.played, [], []
        self.eval_version = message.policy_version
        self.eval_returns.extend(message.returns)
        self.eval_lengths.extend(message.lengths)

    def values(self) -> dict[str, Value]:
        """All of it by the names of the metrics."""
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

    def state(self) -> dict[str, Any]:
        """What `restored` needs."""
        return {
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "metrics": {name: list(values) for name, values in self.metrics.items()},
            "episodes": self.episodes,
            "train": dict(self.train),
            "totals": dict(self.totals),
            "eval": {
                "version": self.eval_version,
                "played": self.eval_played,
                "returns": list(self.eval_returns),
                "lengths": list(self.eval_lengths),
            },
        }

    @classmethod
    def restored(cls, window: int, state: dict[str, Any]) -> PolicyRecord:
        """The record that `state` was of."""
        record = cls(window)
        record.returns.extend(state["returns"])
        record.lengths.extend(state["lengths"])
        record.metrics = {k: deque(v, maxlen=window) for k, v in state["metrics"].items()}
        record.episodes = state["episodes"]
        record.train, record.totals = dict(state["train"]), dict(state["totals"])
        kept = state["eval"]
        record.eval_version, record.eval_played = kept["version"], kept["played"]
        record.eval_returns, record.eval_lengths = list(kept["returns"]), list(kept["lengths"])
        return record


def mean(values: Iterable[float]) -> float:
    """Of at least one number."""
    items = list(values)
    return sum(items) / len(items)
