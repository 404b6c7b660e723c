"""Agents as Ray actors: Ray finds room for them, starts them again, and replaces lost nodes.

Hosts of one kind are the bundles of one placement group. An actor does nothing but run the agent in
its process; records travel by our own streams, and never through Ray.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from itertools import groupby
from pathlib import Path
from typing import Any

from srl.errors import RunError, SrlError
from srl.experiment import Experiment
from srl.launch.engines import HostRequest, Join
from srl.launch.ray_cluster import RayCluster, bundle, explain_missing
from srl.launch.ray_view import ClusterState, ClusterView
from srl.launch.restarts import AgentRestarts

LEAVE_SECONDS = 3.0
"""How long agents may take to leave after the head has told them to."""


class RayAgent:
    """The actor: it runs one agent, for as long as the run goes on."""

    def __init__(self, address: str, key: str, name: str) -> None:
        self._address = address
        self._key = key
        self._name = name

    def hello(self) -> str:
        """Answers once the actor runs: where it does."""
        node = import_module("ray").get_runtime_context().get_node_id()
        return f"{os.uname().nodename} (Ray node {node[:8]})"

    def run(self) -> str:
        """Runs the agent until it ends; how it did."""
        from srl.launch.agent import run_agent

        with tempfile.TemporaryDirectory(prefix="srl-key-") as folder:
            file = Path(folder) / "join.key"
            file.touch(mode=0o600)
            file.write_text(self._key)
            try:
                return f"exit code {run_agent(self._address, file, name=self._name)}"
            except SrlError as error:
                return str(error)


@dataclass
class _Group:
    """Hosts that need the same, and their placement group."""

    hosts: list[HostRequest]
    placement: Any
    begun: float

    def state(self, cluster: ClusterState) -> str:
        """Ray's word for whether there is room for them."""
        return cluster.groups.get(self.placement.id.hex(), "")


class _Host:
    """One actor. Ray starts it again when it is lost, but not what it did: that is asked anew."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.ask()

    def ask(self) -> None:
        """Asks the actor to answer once it runs, and to run the agent."""
        self.is_up = False
        self.hello = self.actor.hello.remote()
        self.ended = self.actor.run.remote()


class RayEngine:
    """Starts one agent for each host of the run on a Ray cluster."""

    def __init__(self, experiment: Experiment, run_dir: Path) -> None:
        self._config = experiment.ray
        self._cluster = RayCluster(self._config)
        self._ray = self._cluster.ray
        self._view = ClusterView(self._ray)
        self._join: Join | None = None
        self._key = ""
        self._groups: list[_Group] = []
        self._hosts: dict[str, _Host] = {}
        self._restarts = AgentRestarts()
        self._news: list[str] = []

    @property
    def bind(self) -> str:
        """The address of this machine in the cluster; loopback where the cluster is our own."""
        return self._cluster.bind

    def start(self, join: Join, hosts: Sequence[HostRequest]) -> None:
        """Asks Ray for room, and starts actors in it when it is there."""
        self._join = join
        self._key = join.key_file.read_text()
        ordered = sorted(hosts, key=lambda host: (host.kind, repr(host.resources)))
        for _, same in groupby(ordered, key=lambda host: (host.kind, host.resources)):
            members = list(same)
            placement = self._ray.util.placement_group(
                [bundle(host.resources) for host in members], strategy=self._config.spread
            )
            self._groups.append(_Group(members, placement, time.monotonic()))
            for index, host in enumerate(members):
                self._start(host, placement, index)

    def _start(self, host: HostRequest, placement: Any, index: int) -> None:
        """An actor that waits for its place, which Ray makes elsewhere if the node is lost."""
        assert self._join is not None
        strategies = import_module("ray.util.scheduling_strategies")
        needs = bundle(host.resources)
        actor = (
            self._ray.remote(RayAgent)
            .options(
                num_cpus=needs.get("CPU", 0),
                num_gpus=needs.get("GPU", 0),
                memory=needs.get("memory"),
                max_restarts=self._config.max_restarts,
                max_concurrency=1,
                scheduling_strategy=strategies.PlacementGroupSchedulingStrategy(
                    placement_group=placement, placement_group_bundle_index=index
                ),
            )
            .remote(self._join.address, self._key, host.name)
        )
        self._hosts[host.name] = _Host(actor)

    def poll(self) -> list[str]:
        """News of hosts that were started or lost; Ray sees to those that are lost."""
        for name, host in list(self._hosts.items()):
            if not host.is_up and self._is_ready(host.hello):
                where = self._result(name, host.hello)
                if where is None:
                    host.ask()
                    continue
                host.is_up = True
                self._news.append(f"host {name} runs on {where}")
            if not self._restarts.waits(name) and self._is_ready(host.ended):
                self._begin_again(name, host, self._result(name, host.ended))
        for name in self._restarts.due():
            self._hosts[name].ask()
        self._check_patience()
        news, self._news = self._news, []
        return news

    def _begin_again(self, name: str, host: _Host, words: str | None) -> None:
        """Has an agent run again that ended although the run goes on."""
        if words is None:
            self._news.append(f"host {name}: its actor was lost; Ray starts it again")
            host.ask()
        else:
            self._news.append(self._restarts.ended(name, words))

    def _is_ready(self, reference: Any) -> bool:
        ready, _ = self._ray.wait([reference], timeout=0)
        return bool(ready)

    def _result(self, name: str, reference: Any) -> str | None:
        """What an actor answered; None if it was lost and comes back."""
        errors = self._ray.exceptions
        try:
            return str(self._ray.get(reference))
        except errors.ActorUnavailableError:
            return None
        except errors.RuntimeEnvSetupError as error:
            raise RunError(
                f"host {name!r}: Ray could not set up its environment: {error}. Look at the "
                "settings ray.working_dir, ray.py_modules and ray.pip."
            ) from None
        except errors.RayError as error:
            raise RunError(f"host {name!r}: its Ray actor is gone: {error}") from None

    def _check_patience(self) -> None:
        limit = self._config.wait_seconds
        waiting = [group for group in self._groups if self._absent(group)]
        cluster = self._look() if waiting else None
        if cluster is None or not limit:
            return
        for group in waiting:
            if cluster.asked - group.begun > limit and group.state(cluster) == "PENDING":
                names = ", ".join(host.name for host in group.hosts)
                raise RunError(
                    f"{names}: expected room on the Ray cluster within {limit:g} s, got none: "
                    f"{_lack(group, cluster)}. Ask for less (`resources`), wait longer "
                    "(`ray.wait_seconds`), or add nodes."
                )

    def _absent(self, group: _Group) -> list[str]:
        """Hosts of a group whose actors do not run."""
        names = [host.name for host in group.hosts if host.name in self._hosts]
        return [name for name in names if not self._hosts[name].is_up]

    def _look(self) -> ClusterState | None:
        """What Ray has said last of the cluster; nobody waits for it."""
        return self._view.read([group.placement for group in self._groups])

    def waiting(self) -> dict[str, str]:
        """Hosts that Ray has no room for, with the resource that is missing, or that start."""
        found: dict[str, str] = {}
        for group in self._groups:
            absent = self._absent(group)
            if not absent:
                continue
            cluster = self._look()
            if cluster is None:
                why = "Ray has not said yet what it waits for"
            elif group.state(cluster) == "CREATED":
                why = "Ray is starting it"
            else:
                why = _lack(group, cluster)
            found |= dict.fromkeys(absent, why)
        return found

    def remove(self, name: str) -> None:
        """Ends one host's actor; its place is given back with the last one of its group."""
        self._restarts.forget(name)
        host = self._hosts.pop(name, None)
        if host is None:
            return
        self._end([host])
        for group in list(self._groups):
            if not any(member.name in self._hosts for member in group.hosts):
                self._groups.remove(group)
                self._ray.util.remove_placement_group(group.placement)

    def close(self) -> None:
        """Ends every actor, gives back every place, and leaves the cluster."""
        hosts, self._hosts = list(self._hosts.values()), {}
        groups, self._groups = self._groups, []
        self._view.close()
        try:
            self._end(hosts)
            for group in groups:
                self._ray.util.remove_placement_group(group.placement)
        finally:
            self._cluster.close()

    def _end(self, hosts: list[_Host]) -> None:
        up = [host.ended for host in hosts if host.is_up]
        if up:
            # Those that have heard of the end leave by themselves, and take everything with them.
            self._ray.wait(up, num_returns=len(up), timeout=LEAVE_SECONDS)
        for host in hosts:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(host.actor, no_restart=True)


def _lack(group: _Group, cluster: ClusterState) -> str:
    """Which resource the hosts of a group wait for."""
    wanted = bundle(group.hosts[0].resources)
    words = explain_missing(wanted, cluster.nodes, cluster.free)
    count = len(group.hosts)
    return words if count == 1 else f"each of {count} {words}"
