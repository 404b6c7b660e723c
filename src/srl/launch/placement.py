"""Which host each process is placed on: as the `hosts` setting says, or elsewhere after a loss.

Processes that read samples stay where they went after a loss, because the samples lie there now;
others return when their host does.
"""

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


def spread(
    placed: Placed, hosts: Mapping[str, Collection[str]], *, apart: bool = False
) -> dict[str, str]:
    """The host of every process: each group evenly over the hosts that name it, or at home; with
    `apart` trainers of one policy may be on several."""
    _check(placed, hosts)
    counts: Counter[str] = Counter()
    where = {}
    for process, members in placed.items():
        group = group_of(members)
        able = [name for name, patterns in hosts.items() if holds(patterns, group)]
        where[process] = able[counts[group] % len(able)] if able else HOME
        counts[group] += 1
    _check_bonds(placed, where, apart)
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


def bonds(placed: Placed, apart: bool) -> dict[str, set[str]]:
    """Processes that are on one host: the readers of one stream, because they share its memory, and
    the trainers of one policy, if they may not be `apart`; by what joins them."""
    found: dict[str, set[str]] = {}
    for process, members in placed.items():
        for _, group, _ in members:
            names = [f"trainers of policy {policy!r}" for policy in group.trains if not apart]
            names += [f"readers of stream {stream!r}" for stream in group.reads]
            for name in names:
                found.setdefault(name, set()).add(process)
    return found


def _check_bonds(placed: Placed, where: Mapping[str, str], apart: bool) -> None:
    for what, processes in bonds(placed, apart).items():
        found = {where[process] for process in processes}
        if len(found) > 1:
            trust = (
                " Or say trainer.trust_network=true, if nobody else has access to the network "
                "between these hosts: what trainers sum up is neither encrypted nor authenticated "
                "there."
            )
            raise ConfigError(
                f"hosts: expected all {what} on one host, got {', '.join(sorted(found))}. Name "
                f"their group at one host only.{trust if what.startswith('trainers') else ''}"
            )


class Placement:
    """Where processes go while a run goes on and hosts come and leave."""

    def __init__(
        self, placed: Placed, hosts: Mapping[str, Collection[str]], *, apart: bool = False
    ) -> None:
        self.preferred = spread(placed, hosts, apart=apart)
        self._hosts = dict(hosts)
        self._groups = {process: group_of(members) for process, members in placed.items()}
        self._bonds = list(bonds(placed, apart).values())
        self._seen: set[str] = set()

    def is_bound(self, process: str) -> bool:
        """Whether a process goes where others are, and stays there: it reads what lies on one
        host."""
        return any(process in together for together in self._bonds)

    def choose(
        self,
        process: str,
        here: Mapping[str, Collection[str]],
        load: Mapping[str, int],
        awaited: Collection[str] = (),
    ) -> str | None:
        """The host on which to start a process; None to wait for the one that will come.

        `here` are the hosts that have joined, with the groups that each said it holds; `load` is
        how many processes each has; `awaited` hosts have left just now, and may be back at once.
        """
        self._seen.update(here)
        preferred = self.preferred[process]
        if preferred == HOME or preferred in here:
            return preferred
        if preferred not in self._seen:
            return None
        if not self.is_bound(process):
            return self._elsewhere(process, here, load)
        if preferred in awaited:
            return None
        chosen = self._elsewhere(process, here, load)
        self._bind(process, chosen)
        return chosen

    def _bind(self, process: str, host: str) -> None:
        """Has a process stay on a host, and all that are bound to it."""
        self.preferred[process] = host
        for together in self._bonds:
            if process in together:
                for other in together:
                    if self.preferred[other] != host:
                        self._bind(other, host)

    def _elsewhere(
        self, process: str, here: Mapping[str, Collection[str]], load: Mapping[str, int]
    ) -> str:
        """Another that names the group, a spare one, or this machine."""
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
        if self.is_bound(process):
            return self.preferred[process]
        group = self._groups[process]
        able = [
            name
            for name, said in here.items()
            if holds(self._hosts.get(name, ()), group) or (said and holds(said, group))
        ]
        if able:
            self.preferred[process] = min(able, key=lambda name: load.get(name, 0))
        return self.preferred[process]
