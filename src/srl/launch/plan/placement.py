"""Places each process on a host: as the `hosts` setting says, or on another host after a loss.

After a loss, processes that read samples stay on their new host, because it now holds the samples.
Other processes move back when their host returns.
"""

from __future__ import annotations

import fnmatch
from collections import Counter
from collections.abc import Collection, Mapping

from srl.errors import ConfigError
from srl.graph import Graph, WorkerGroup
from srl.launch.cluster.node import HEAD_HOST

Placed = dict[str, list[tuple[str, WorkerGroup, int]]]
"""The workers of each process: (group name, group, index)."""


def default_hosts(graph: Graph) -> dict[str, tuple[str, ...]]:
    """The `hosts` of the `remote` layout if none are set: one host has the groups at which data
    begins (actors), another has the policy workers; all other groups run on the head's host."""
    begin = [name for name, group in graph.workers.items() if group.writes and not group.reads]
    serve = [name for name, group in graph.workers.items() if group.serves]
    found = {"host-1": tuple(begin), "host-2": tuple(serve)}
    return {host: groups for host, groups in found.items() if groups}


def group_of(members: list[tuple[str, WorkerGroup, int]]) -> str:
    """The group of a process: that of the workers after which the process is named."""
    name, group, _ = members[0]
    return group.beside or name


def holds(patterns: Collection[str], group: str) -> bool:
    """Whether one of a host's patterns matches a group, so that the host may hold its workers."""
    return any(fnmatch.fnmatchcase(group, pattern) for pattern in patterns)


def spread(
    placed: Placed, hosts: Mapping[str, Collection[str]], *, apart: bool = False
) -> dict[str, str]:
    """Returns the host of every process. Each group is divided evenly over the hosts that name it;
    a group that no host names runs on the head's host. With `apart`, trainers of one policy may be
    on several hosts."""
    _check(placed, hosts)
    counts: Counter[str] = Counter()
    where = {}
    for process, members in placed.items():
        group = group_of(members)
        able = [name for name, patterns in hosts.items() if holds(patterns, group)]
        where[process] = able[counts[group] % len(able)] if able else HEAD_HOST
        counts[group] += 1
    _check_bonds(placed, where, apart)
    return where


def _check(placed: Placed, hosts: Mapping[str, Collection[str]]) -> None:
    groups = sorted({group_of(members) for members in placed.values()})
    for name, patterns in hosts.items():
        if name == HEAD_HOST:
            raise ConfigError(
                f"hosts: expected names of other hosts, got {HEAD_HOST!r}: the head's host. "
                "Groups that no host names run there: remove this entry."
            )
        for pattern in patterns:
            if not fnmatch.filter(groups, pattern):
                raise ConfigError(
                    f"hosts.{name}: expected groups of workers ({', '.join(groups)}), got "
                    f"{pattern!r}."
                )


def colocated(placed: Placed, apart: bool) -> dict[str, set[str]]:
    """Sets of processes that must be on one host, by the reason why: the readers of one stream,
    because they share its memory, and the trainers of one policy unless they may be `apart`."""
    found: dict[str, set[str]] = {}
    for process, members in placed.items():
        for _, group, _ in members:
            names = [f"trainers of policy {policy!r}" for policy in group.trains if not apart]
            names += [f"readers of stream {stream!r}" for stream in group.reads]
            for name in names:
                found.setdefault(name, set()).add(process)
    return found


def _check_bonds(placed: Placed, where: Mapping[str, str], apart: bool) -> None:
    for what, processes in colocated(placed, apart).items():
        found = {where[process] for process in processes}
        if len(found) > 1:
            trust = (
                " Or set trainer.trust_network=true, if nobody else has access to the network "
                "between these hosts: the sums of trainers are neither encrypted nor authenticated "
                "there."
            )
            raise ConfigError(
                f"hosts: expected all {what} on one host, got {', '.join(sorted(found))}. Name "
                f"their group at one host only.{trust if what.startswith('trainers') else ''}"
            )


class Placement:
    """Chooses hosts for processes during a run, while hosts come and leave."""

    def __init__(
        self, placed: Placed, hosts: Mapping[str, Collection[str]], *, apart: bool = False
    ) -> None:
        self.preferred = spread(placed, hosts, apart=apart)
        self._hosts = dict(hosts)
        self._groups = {process: group_of(members) for process, members in placed.items()}
        self._bonds = list(colocated(placed, apart).values())
        self._seen: set[str] = set()

    def is_bound(self, process: str) -> bool:
        """Whether a process belongs to a set that must be on one host, such as the readers of a
        stream. Such processes move together, and stay on their new host."""
        return any(process in together for together in self._bonds)

    def choose(
        self,
        process: str,
        here: Mapping[str, Collection[str]],
        load: Mapping[str, int],
        awaited: Collection[str] = (),
    ) -> str | None:
        """Chooses the host on which to start a process; None means to wait for its host.

        `here` are the hosts that have joined, with the groups that each one offers to hold. `load`
        is the number of processes on each host. `awaited` hosts were lost just now, and may soon
        return.
        """
        self._seen.update(here)
        preferred = self.preferred[process]
        if preferred == HEAD_HOST or preferred in here:
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
        """Makes a host the preferred one of a process and of all processes bound to it."""
        self.preferred[process] = host
        for together in self._bonds:
            if process in together:
                for other in together:
                    if self.preferred[other] != host:
                        self._bind(other, host)

    def _elsewhere(
        self, process: str, here: Mapping[str, Collection[str]], load: Mapping[str, int]
    ) -> str:
        """Another host: one that names the group, else one without a `hosts` entry, else the head's
        host; of several the one with the fewest processes."""
        group = self._groups[process]
        named = [name for name in here if holds(self._hosts.get(name, ()), group)]
        spare = [
            name for name in here if name not in self._hosts and self._takes(here[name], group)
        ]
        able = named or spare
        return min(able, key=lambda name: load.get(name, 0)) if able else HEAD_HOST

    def _takes(self, offered: Collection[str], group: str) -> bool:
        return not offered or holds(offered, group)

    def add(
        self, process: str, here: Mapping[str, Collection[str]], load: Mapping[str, int]
    ) -> str:
        """Chooses the host of a process that joins a running experiment."""
        if self.is_bound(process):
            return self.preferred[process]
        group = self._groups[process]
        able = [
            name
            for name, offered in here.items()
            if holds(self._hosts.get(name, ()), group) or (offered and holds(offered, group))
        ]
        if able:
            self.preferred[process] = min(able, key=lambda name: load.get(name, 0))
        return self.preferred[process]
