"""Agents as Ray actors: Ray reserves resources, starts actors again, and replaces lost Ray nodes.

Hosts of one kind are the bundles of one placement group. A Ray actor only runs the agent in its
process. Data travels by our own streams, and never through Ray.
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
from srl.launch.backends.backend import RETURN_SECONDS, HostRequest, JoinAddress
from srl.launch.backends.ray_cluster import RayCluster, bundle, explain_missing
from srl.launch.backends.ray_view import ClusterState, ClusterView
from srl.launch.run.restarts import AgentRestarts

LEAVE_SECONDS = 3.0
"""How long agents may take to end by themselves before they are killed."""


class RayAgent:
    """The Ray actor that runs one agent while the run goes on."""

    def __init__(self, address: str, key: str, name: str) -> None:
        self._address = address
        self._key = key
        self._name = name

    def hello(self) -> str:
        """Answers once the actor runs; says on which machine."""
        node = import_module("ray").get_runtime_context().get_node_id()
        return f"{os.uname().nodename} (Ray node {node[:8]})"

    def run(self) -> str:
        """Runs the agent until it ends; returns how it ended."""
        from srl.launch.cluster.host_agent import run_agent

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
    """Hosts that need the same resources, and their placement group."""

    hosts: list[HostRequest]
    placement: Any
    begun: float

    def state(self, cluster: ClusterState) -> str:
        """The state of the placement group, as Ray names it; empty if unknown."""
        return cluster.groups.get(self.placement.id.hex(), "")


class _Host:
    """One Ray actor. Ray restarts a lost actor, but not its calls: `ask` makes them again."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.ask()

    def ask(self) -> None:
        """Calls the actor: to answer once it runs, and to run the agent."""
        self.is_up = False
        self.hello = self.actor.hello.remote()
        self.ended = self.actor.run.remote()


class RayBackend:
    """Starts one agent for each host of the run on a Ray cluster."""

    return_seconds = RETURN_SECONDS

    def __init__(self, experiment: Experiment, run_dir: Path) -> None:
        self._config = experiment.ray
        self._cluster = RayCluster(self._config)
        self._ray = self._cluster.ray
        self._view = ClusterView(self._ray)
        self._join: JoinAddress | None = None
        self._key = ""
        self._groups: list[_Group] = []
        self._hosts: dict[str, _Host] = {}
        self._restarts = AgentRestarts()
        self._news: list[str] = []

    @property
    def bind(self) -> str:
        """The address of this machine in the cluster; loopback if this run started the cluster."""
        return self._cluster.bind

    def start(self, join: JoinAddress, hosts: Sequence[HostRequest]) -> None:
        """Requests placement groups, and actors that start as soon as Ray has reserved them."""
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
        """Creates the actor of a host. It waits for its bundle of the placement group.

        If the Ray node is lost, Ray reserves the bundle on another one.
        """
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
        """Restarts ended agents and returns news of hosts. Ray itself restarts lost actors."""
        for name, host in list(self._hosts.items()):
            if not host.is_up and self._is_ready(host.hello):
                where = self._result(name, host.hello)
                if where is None:
                    host.ask()
                    continue
                host.is_up = True
                self._news.append(f"host {name} runs on {where}")
            if not self._restarts.waits(name) and self._is_ready(host.ended):
                self._restart_agent(name, host, self._result(name, host.ended))
        for name in self._restarts.due():
            self._hosts[name].ask()
        self._check_wait_limit()
        news, self._news = self._news, []
        return news

    def _restart_agent(self, name: str, host: _Host, words: str | None) -> None:
        """Starts an agent again that has ended while the run goes on."""
        if words is None:
            self._news.append(f"host {name}: its actor was lost; Ray starts it again")
            host.ask()
        else:
            self._news.append(self._restarts.ended(name, words))

    def _is_ready(self, reference: Any) -> bool:
        ready, _ = self._ray.wait([reference], timeout=0)
        return bool(ready)

    def _result(self, name: str, reference: Any) -> str | None:
        """The result of a call; None if the actor was lost and Ray restarts it."""
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

    def _check_wait_limit(self) -> None:
        limit = self._config.wait_seconds
        waiting = [group for group in self._groups if self._absent(group)]
        cluster = self._cluster_state() if waiting else None
        if cluster is None or not limit:
            return
        for group in waiting:
            if cluster.asked - group.begun > limit and group.state(cluster) == "PENDING":
                names = ", ".join(host.name for host in group.hosts)
                raise RunError(
                    f"{names}: expected resources on the Ray cluster within {limit:g} s, got none: "
                    f"{_missing_resources(group, cluster)}. Ask for less (`resources`), wait "
                    "longer (`ray.wait_seconds`), or add nodes."
                )

    def _absent(self, group: _Group) -> list[str]:
        """Hosts of a group whose actors do not run yet."""
        names = [host.name for host in group.hosts if host.name in self._hosts]
        return [name for name in names if not self._hosts[name].is_up]

    def _cluster_state(self) -> ClusterState | None:
        """The newest known state of the cluster; does not wait for Ray."""
        return self._view.read([group.placement for group in self._groups])

    def waiting(self) -> dict[str, str]:
        """Hosts whose actors do not run yet, each with the missing resource or its state."""
        found: dict[str, str] = {}
        for group in self._groups:
            absent = self._absent(group)
            if not absent:
                continue
            cluster = self._cluster_state()
            if cluster is None:
                why = "Ray has not reported yet what it waits for"
            elif group.state(cluster) == "CREATED":
                why = "Ray is starting it"
            else:
                why = _missing_resources(group, cluster)
            found |= dict.fromkeys(absent, why)
        return found

    def remove(self, name: str) -> None:
        """Ends one host's actor. The last one of a group also removes the placement group."""
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
        """Ends every actor, removes the placement groups, and disconnects from the cluster."""
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
            # Agents that the head has told to finish end by themselves, with all their processes.
            self._ray.wait(up, num_returns=len(up), timeout=LEAVE_SECONDS)
        for host in hosts:
            with suppress(self._ray.exceptions.RayError):
                self._ray.kill(host.actor, no_restart=True)


def _missing_resources(group: _Group, cluster: ClusterState) -> str:
    """The resources that the hosts of a group wait for, in words."""
    wanted = bundle(group.hosts[0].resources)
    words = explain_missing(wanted, cluster.nodes, cluster.free)
    count = len(group.hosts)
    return words if count == 1 else f"each of {count} {words}"
