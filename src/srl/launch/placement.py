"""Which host each process is placed on: as the `hosts` setting says, or elsewhere after a loss."""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Collection, Mapping

from srl.errors import ConfigError
from srl.experiment import WorkerGroup
from srl.launch.places import HOME

Placed = dict[str, list[tuple[str, WorkerGroup, int]]]
"""Processes, and the workers that each hosts: (group name, group, index)."""
DEFAULT_HOSTS: dict[str, tuple[str, ...]] = {"host-1": ("actor",), "host-2": ("policy",)}
"""Where the `remote` layout runs what, where nothing else is said; the rest runs at home."""


def group_of(members: list[tuple[str, WorkerGroup, int]]) -> str:
    """The group that a process belongs to: that of the workers it is named after."""
    name, group, _ = members[0]
    return group.beside or name


def holds(patterns: Collection[str], group: str) -> bool:
    """Whether a host that names these patterns may hold workers of a group."""
    return any(fnmatch.fnmatchcase(group, pattern) for pattern in patterns)


def spread(placed: Placed, hosts: Mapping[str, Collection[str]]) -> dict[str, str]:
    """The host of every process: each group evenly over the hosts that name it, or at home."""
    _check(placed, hosts)
    counts: Counter[str] = Counter()
    where = {}
    for process, members in placed.items():
        group = group_of(members)
        able = [name for name, patterns in hosts.items() if holds(patterns, group)]
        where[process] = able[counts[group] % len(able)] if able else HOME
        counts[group] += 1
    _check_trainers(placed, where)
    return where


def _check(placed: Placed, hosts: Mapping[str, Collection[str]]) -> None:
    groups = sorted({group_of(members) for members in placed.values()})
    for name, patterns in hosts.items():
        if name == HOME:
            raise ConfigError(
                f"hosts: expected names of other hosts, got {HOME!r}. What no host names runs at "
                "home."
            )
        for pattern in patterns:
            if not fnmatch.filter(groups, pattern):
                raise ConfigError(
                    f"hosts.{name}: expected groups of workers ({', '.join(groups)}), got "
                    f"{pattern!r}."
                )


def _check_trainers(placed: Placed, where: Mapping[str, str]) -> None:
    """Trainers of one policy share memory, so they are on one host."""
    homes: dict[str, set[str]] = {}
    for process, members in placed.items():
        for _, group, _ in members:
            for policy in group.trains:
                homes.setdefault(policy, set()).add(where[process])
    for policy, found in homes.items():
        if len(found) > 1:
            raise ConfigError(
                f"hosts: expected all trainers of policy {policy!r} on one host, got "
                f"{', '.join(sorted(found))}. Name its group at one host only."
            )


class Placement:
    """Where processes go while a run goes on and hosts come and leave."""

    def __init__(self, placed: Placed, hosts: Mapping[str, Collection[str]]) -> None:
        self.preferred = spread(placed, hosts)
        self._hosts = dict(hosts)
        self._groups = {process: group_of(members) for process, members in placed.items()}
        self._bound = {
            process for process, members in placed.items() if any(g.trains for _, g, _ in members)
        }
        self._seen: set[str] = set()

    def choose(
        self, process: str, here: Mapping[str, Collection[str]], load: Mapping[str, int]
    ) -> str | None:
        """The host on which to start a process; None to wait for the one that will come.

        `here` are the hosts that have joined, with the groups that each said it holds; `load` is
        how many processes each has.
        """
        self._seen.update(here)
        preferred = self.preferred[process]
        if preferred == HOME or preferred in here:
            return preferred
        if preferred not in self._seen:
            return None
        if process in self._bound:
            # A trainer's host holds the run's samples; it is waited for.
            return None
        group = self._groups[process]
        named = [name for name in here if holds(self._hosts.get(name, ()), group)]
        spare = [
            name for name in here if name not in self._hosts and self._takes(here[name], group)
        ]
        able = named or spare
        return min(able, key=lambda name: load.get(name, 0)) if able else HOME

    def _takes(self, said: Collection[str], group: str) -> bool:
        return not said or holds(said, group)

    def add(
        self, process: str, here: Mapping[str, Collection[str]], load: Mapping[str, int]
    ) -> str:
        """The host for a process that joins a running experiment."""
        group = self._groups[process]
        able = [
            name
            for name, said in here.items()
            if holds(self._hosts.get(name, ()), group) or (said and holds(said, group))
        ]
        if able:
            self.preferred[process] = min(able, key=lambda name: load.get(name, 0))
        return self.preferred[process]
