"""Searches the settings that make a run fastest on this machine, by short real runs.

The search tries one change after another and keeps the best settings so far. It ends when a round
changes nothing, or when the time is over. One short run proves little. So in the end the best
settings and the unchanged run are measured again in turns. The search changes only where the parts
run. It leaves the environments, the rollout length and all else that changes learning.
"""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from srl.errors import ConfigError, RunError
from srl.experiment import Experiment
from srl.overrides import override
from srl.settings import show

MIN_GAIN = 1.03
"""A change is kept if it is at least this many times as fast; a smaller gain may be noise."""

TURNS = 2
"""How often the best settings and the unchanged run are measured again."""

Settings = dict[str, Any]
Measure = Callable[[Experiment], float]


@dataclass(frozen=True)
class Attempt:
    """One short run, and its speed."""

    settings: Settings
    """By the names that `--set` takes; all other settings are those of the unchanged run."""
    steps_per_second: float
    """0 where the run failed."""
    note: str = ""
    """Why it failed."""

    def __str__(self) -> str:
        return self.note or f"{self.steps_per_second:,.0f} steps/s"


@dataclass
class Search:
    """The attempts so far. The first one is the unchanged run."""

    attempts: list[Attempt] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    """The speed of the fastest divided by that of the unchanged run, in each turn at the end."""

    @property
    def fastest(self) -> Attempt:
        """The last attempt that was clearly faster than the fastest before it."""
        best = self.attempts[0]
        for attempt in self.attempts[1:]:
            if attempt.steps_per_second >= MIN_GAIN * best.steps_per_second:
                best = attempt
        return best

    @property
    def best(self) -> Attempt:
        """The fastest, unless it was not faster than the unchanged run when measured again."""
        if self.gains and statistics.median(self.gains) <= 1.0:
            return self.attempts[0]
        return self.fastest

    @property
    def gain(self) -> str:
        """The gain of the best, in words."""
        if self.fastest is self.attempts[0]:
            return "nothing was clearly faster than the run as it is"
        if not self.gains:
            return "not measured again: one short run each says that it is faster"
        turns = f"({min(self.gains):.2f}-{max(self.gains):.2f} in {len(self.gains)} turns)"
        ratio = f"{statistics.median(self.gains):.2f} times as fast as the run as it is {turns}"
        if self.best is self.attempts[0]:
            return f"the run as it is stays: {shown(self.fastest.settings)} was {ratio}"
        return ratio


def choices(env_id: str, cores: int, fixed: set[str]) -> Iterator[Settings]:
    """The changes that the search tries, in this order.

    The default of EnvPool's threads follows `actor.count`. `fixed` has the settings that the user
    gave; the search does not change these.
    """
    pool = env_id.startswith("envpool:")
    found: list[Settings] = [{"layout": name} for name in ("inline", "shared", "serial")]
    found += [{"actor.count": count} for count in sorted({1, cores, 2 * cores})]
    found += [{"actor.groups": groups} for groups in (1, 2)]
    found += [{"inference.count": count} for count in (1, cores)]
    threads = ["trainer.threads", *(["env.threads"] if pool else []), "inference.threads"]
    found += [{key: count} for key in threads for count in (1, cores)]
    for change in found:
        if not fixed & set(change):
            yield change


def search(
    experiment: Experiment,
    measure: Measure,
    *,
    resolve_settings: Callable[[Experiment], Experiment],
    cores: int,
    seconds: float,
    fixed: set[str],
    say: Callable[[str], None],
    found: Search,
) -> bool:
    """Fills `found`, which is valid at any moment: after an interrupt it has the best so far.

    Returns whether the search was finished before the time was over. The time includes the turns at
    the end. `resolve_settings` decides the open settings of an experiment; of two that then are
    equal only the first is tried.
    """
    end = time.monotonic() + seconds
    seen: list[Experiment] = []
    longest = 0.0

    def attempt(settings: Settings) -> bool:
        """Tries settings that are new and fit; False if there is no time left for it."""
        nonlocal longest
        try:
            ready = resolve_settings(override(experiment, settings))
        except ConfigError:
            # The environments cannot be divided in this way.
            if not seen:
                raise
            return True
        if ready in seen:
            return True
        begun = time.monotonic()
        if seen and begun + (1 + 2 * TURNS) * longest > end:
            return False
        seen.append(ready)
        say(f"{len(seen)}: {shown(settings)}")
        found.attempts.append(_measured(measure, ready, settings, first=len(seen) == 1))
        say(f"{len(seen)}: {found.attempts[-1]}")
        longest = max(longest, time.monotonic() - begun)
        return True

    def search_all() -> bool:
        """Repeats rounds over all changes until one finds nothing; False if time is over."""
        before: Settings | None = None
        while before != found.fastest.settings:
            before = found.fastest.settings
            for change in choices(experiment.env.id, cores, fixed):
                if not attempt({**found.fastest.settings, **change}):
                    return False
        return True

    attempt({})
    is_complete = search_all()
    if settings := found.fastest.settings:
        best = resolve_settings(override(experiment, settings))
        _measure_again(measure, resolve_settings(experiment), best, say, found)
    return is_complete


def _measure_again(
    measure: Measure,
    unchanged: Experiment,
    best: Experiment,
    say: Callable[[str], None],
    found: Search,
) -> None:
    """Measures the unchanged run and the best settings in turns."""
    for turn in range(TURNS):
        head = f"again, turn {turn + 1} of {TURNS}"
        say(f"{head}: as it is, and {shown(found.fastest.settings)}")
        plain = measure(unchanged)
        found.gains.append(measure(best) / plain)
        say(f"{head}: {found.gains[-1]:.2f} times as fast")


def _measured(
    measure: Measure, experiment: Experiment, settings: Settings, *, first: bool
) -> Attempt:
    """Measures one attempt. Raises only if the first one fails: then there is nothing to search."""
    try:
        return Attempt(settings, measure(experiment))
    except RunError as error:
        if first:
            raise
        return Attempt(settings, 0.0, str(error))


def shown(settings: Settings) -> str:
    """Settings in the form of the command line."""
    words = [f"--layout {settings['layout']}"] if "layout" in settings else []
    words += [
        f"--set {shlex.quote(f'{key}={show(value)}')}"
        for key, value in settings.items()
        if key != "layout"
    ]
    return " ".join(words) or "as it is"


def table(found: Search) -> str:
    """A table of all attempts, the fastest first."""
    first = found.attempts[0].steps_per_second
    ranked = sorted(found.attempts, key=lambda attempt: -attempt.steps_per_second)
    lines = [f"{'steps/s':>12}  {'ratio':>6}  settings"]
    for one in ranked:
        ratio = f"{one.steps_per_second / first:.2f}" if first else "-"
        rate = f"{one.steps_per_second:,.0f}" if one.steps_per_second else "failed"
        lines.append(f"{rate:>12}  {ratio:>6}  {shown(one.settings)}")
    return "\n".join(lines)


def command(
    verb: str, target: str, found: Search, given: Settings, env_args: Sequence[str] = ()
) -> str:
    """The command to use, with the settings that the user gave and those that were found."""
    settings = {**given, **found.best.settings}
    words = [f"--env-arg {shlex.quote(pair)}" for pair in env_args]
    words += [shown(settings)] if settings else []
    return " ".join([f"srl {verb} {target}", *words])


def as_record(target: str, line: str, found: Search) -> dict[str, Any]:
    """The search as one JSON object."""
    return {
        "target": target,
        "command": line,
        "settings": found.best.settings,
        "steps_per_second": round(found.best.steps_per_second, 1),
        "steps_per_second_before": round(found.attempts[0].steps_per_second, 1),
        "gains": [round(gain, 3) for gain in found.gains],
        "tried": [
            {
                "settings": one.settings,
                "steps_per_second": round(one.steps_per_second, 1),
                "failed": one.note,
            }
            for one in found.attempts
        ],
    }
