"""Callbacks: code of the user that the controller calls while a run goes on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from srl.errors import ConfigError, RunError, nearest
from srl.reporting.summary import Summary
from srl.resolve import resolve
from srl.services.checkpoints import Checkpoint
from srl.services.messages import Episodes, Evaluation, Message
from srl.services.tensorboard import Value
from srl.tracebacks import user_code

HOOKS = ("on_metrics", "on_episode", "on_evaluation", "on_checkpoint", "on_end")
Heard = Message | Mapping[str, Value] | Checkpoint
_KEPT = "The last checkpoint is kept: after the fix, `srl resume` goes on from it."


@dataclass(frozen=True, slots=True)
class FinishedEpisode:
    """One training episode of one agent."""

    policy: str
    episode_return: float
    length: int
    agent: int = 0
    """Index of the policy's agent that played it."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Further metrics of the episode that the environment declares."""


class Callback:
    """What the controller calls. A class of yours has those of these methods that it needs.

    The run waits for each call, so it should return soon. What it raises ends the run.
    """

    def on_metrics(self, metrics: Mapping[str, Value]) -> None:
        """Called for every line of metrics.jsonl, at most once per `logging.interval_seconds`."""

    def on_episode(self, episode: FinishedEpisode) -> None:
        """Called for every training episode that has ended, of every agent."""

    def on_evaluation(self, evaluation: Evaluation) -> None:
        """Called when an evaluator has played episodes with fixed weights."""

    def on_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Called for every checkpoint, when it is whole on the disk."""

    def on_end(self, summary: Summary) -> None:
        """Called once, after summary.json was written, however the run has ended."""


class Callbacks:
    """The callbacks of one run.

    `hear` only appends, because it is called while a worker works or a checkpoint is written.
    `call` is called where an error can end the run.
    """

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._all = list(callbacks)
        self._heard: deque[Heard] = deque()
        for one in self._all:
            _check(one)

    def hear(self, what: Heard) -> None:
        """Keeps a report until the next `call`."""
        if self._all:
            self._heard.append(what)

    def call(self) -> None:
        """Calls the callbacks for all that was heard. A callback that raises is not called again,
        and its exception is a RunError."""
        while self._heard:
            heard = self._heard.popleft()
            match heard:
                case Episodes():
                    self._episodes(heard)
                case Evaluation():
                    self._call("on_evaluation", heard)
                case Checkpoint():
                    self._call("on_checkpoint", heard)
                case Mapping():
                    self._call("on_metrics", heard)

    def end(self, summary: Summary) -> None:
        """Calls `on_end` of each callback, once."""
        self._heard.clear()
        left, self._all = self._all, []
        for one in left:
            _invoke(one, "on_end", summary)

    def _episodes(self, heard: Episodes) -> None:
        if not any(_method(one, "on_episode") for one in self._all):
            return
        for index, value in enumerate(heard.returns):
            episode = FinishedEpisode(
                policy=heard.policy,
                episode_return=value,
                length=heard.lengths[index],
                agent=heard.agents[index] if heard.agents else 0,
                metrics={
                    name: values[index]
                    for name, values in heard.metrics.items()
                    if index < len(values)
                },
            )
            self._call("on_episode", episode)

    def _call(self, hook: str, what: object) -> None:
        for one in list(self._all):
            try:
                _invoke(one, hook, what)
            except BaseException:
                # Those after it still learn how the run ends.
                self._all.remove(one)
                self._heard.clear()
                raise


def named_callbacks(paths: Sequence[str]) -> list[Any]:
    """Imports callbacks, and makes objects of those that are classes."""
    found = []
    for path in paths:
        one = resolve(path)
        if isinstance(one, type):
            with user_code(f"logging.callbacks: {path}"):
                one = one()
        found.append(one)
    return found


def _check(callback: Any) -> None:
    """Raises unless an object has hooks, and no method that looks like one."""
    name = type(callback).__name__
    if isinstance(callback, type):
        raise ConfigError(
            f"callbacks: expected objects, got the class {callback.__name__}. Write "
            f"{callback.__name__}()."
        )
    for odd in dir(callback):
        if odd.startswith("on_") and odd not in HOOKS and callable(getattr(callback, odd)):
            raise ConfigError(f"callbacks: {name} has {odd!r}: {nearest(odd, HOOKS)}")
    if not any(_method(callback, hook) for hook in HOOKS):
        raise ConfigError(
            f"callbacks: expected an object with some of {', '.join(HOOKS)}, got {name} without "
            "any of them."
        )


def _method(callback: Any, hook: str) -> Callable[[Any], object] | None:
    """A hook of a callback; None if it has none of its own."""
    if getattr(type(callback), hook, None) is getattr(Callback, hook):
        return None
    found: Callable[[Any], object] | None = getattr(callback, hook, None)
    return found


def _invoke(callback: Any, hook: str, what: object) -> None:
    method = _method(callback, hook)
    if method is not None:
        with user_code(f"callback {type(callback).__name__}: {hook}", RunError, _KEPT):
            method(what)
