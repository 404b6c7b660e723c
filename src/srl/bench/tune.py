"""Searching the settings that make a run fastest here, by short real runs.

One change after another is tried, keeping what was best so far, until a round changes nothing or
the time is over. One short run decides little, so in the end the best and the run as it was are
measured again by turns. Only where the parts run is searched: environments, horizon and everything
else that changes what is learned stays as it is.
"""

from __future__ import annotations

import shlex
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from srl.errors import ConfigError, RunError
from srl.experiment import Experiment
from srl.overrides import override
from srl.settings import show

BETTER = 1.03
"""A change is kept if it is at least so many times as fast: less than that is noise."""

TURNS = 2
"""How often the best and the run as it was are measured again."""

Settings = dict[str, Any]
Measure = Callable[[Experiment], float]


@dataclass(frozen=True)
class Attempt:
    """One short run."""

    settings: Settings
    """By the names that `--set` takes; what is not there has its default."""
    steps_per_second: float
    """0 where the run failed."""
    note: str = ""
    """Why it failed."""

    def __str__(self) -> str:
        return self.note or f"{self.steps_per_second:,.0f} steps/s"


@dataclass
class Search:
    """What was tried so far. The first attempt is the run without any change."""

    attempts: list[Attempt] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    """The fastest divided by the run without any change, in each turn at the end."""

    @property
    def fastest(self) -> Attempt:
        """One attempt after another had to be clearly faster than the best before."""
        best = self.attempts[0]
        for attempt in self.attempts[1:]:
            if attempt.steps_per_second >= BETTER * best.steps_per_second:
                best = attempt
        return best

    @property
    def best(self) -> Attempt:
        """The fastest, unless it was not when it was measured again."""
        if self.gains and statistics.median(self.gains) <= 1.0:
            return self.attempts[0]
        return self.fastest

    @property
    def gain(self) -> str:
        """What the best gains, in words."""
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
    """The changes that are tried, in this order; EnvPool's threads follow the number of actors.

    `fixed` has the settings that the user has decided.
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
    settle: Callable[[Experiment], Experiment],
    cores: int,
    seconds: float,
    fixed: set[str],
    say: Callable[[str], None],
    found: Search,
) -> bool:
    """Fills `found`, which is whole at any moment: whoever interrupts this has the best so far.

    Returns whether all was tried before the time was over; the turns at the end are part of it.
    `settle` says how an experiment runs here; two that run in the same way are not both tried.
    """
    end = time.monotonic() + seconds
    seen: list[Experiment] = []
    longest = 0.0

    def attempt(settings: Settings) -> bool:
        """Tries settings that are new and fit; False if there is no time left for it."""
        nonlocal longest
        try:
            ready = settle(override(experiment, settings))
        except ConfigError:
            # Environments cannot be spread in this way.
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

    def walk() -> bool:
        before: Settings | None = None
        while before != found.fastest.settings:
            before = found.fastest.settings
            for change in choices(experiment.env.id, cores, fixed):
                if not attempt({**found.fastest.settings, **change}):
                    return False
        return True

    attempt({})
    whole = walk()
    settings = found.fastest.settings
    if settings:
        as_it_is, best = settle(experiment), settle(override(experiment, settings))
        _measure_again(measure, as_it_is, best, say, found)
    return whole


def _measure_again(
    measure: Measure,
    as_it_is: Experiment,
    best: Experiment,
    say: Callable[[str], None],
    found: Search,
) -> None:
    """The best and the run as it was, by turns."""
    for turn in range(TURNS):
        head = f"again, turn {turn + 1} of {TURNS}"
        say(f"{head}: as it is, and {shown(found.fastest.settings)}")
        plain = measure(as_it_is)
        found.gains.append(measure(best) / plain)
        say(f"{head}: {found.gains[-1]:.2f} times as fast")


def _measured(
    measure: Measure, experiment: Experiment, settings: Settings, *, first: bool
) -> Attempt:
    """One attempt; only where the very first fails is there nothing to search."""
    try:
        return Attempt(settings, measure(experiment))
    except RunError as error:
        if first:
            raise
        return Attempt(settings, 0.0, str(error))


def shown(settings: Settings) -> str:
    """Settings as they are given on the command line."""
    words = [f"--layout {settings['layout']}"] if "layout" in settings else []
    words += [
        f"--set {shlex.quote(f'{key}={show(value)}')}"
        for key, value in settings.items()
        if key != "layout"
    ]
    return " ".join(words) or "as it is"


def table(found: Search) -> str:
    """Everything that was tried, fastest first."""
    first = found.attempts[0].steps_per_second
    ranked = sorted(found.attempts, key=lambda attempt: -attempt.steps_per_second)
    lines = [f"{'steps/s':>12}  {'ratio':>6}  settings"]
    for one in ranked:
        ratio = f"{one.steps_per_second / first:.2f}" if first else "-"
        rate = f"{one.steps_per_second:,.0f}" if one.steps_per_second else "failed"
        lines.append(f"{rate:>12}  {ratio:>6}  {shown(one.settings)}")
    return "\n".join(lines)


def command(verb: str, target: str, found: Search, given: Settings) -> str:
    """The one line to use: what the user gave, and what was found."""
    settings = {**given, **found.best.settings}
    words = "" if not settings else f" {shown(settings)}"
    return f"srl {verb} {target}{words}"


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
