"""Hosts with real bridge processes between them, and puppets on both sides."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import msgspec
from carriers import Puppet, _create

from srl.arena.shm import RunFolder, ShmArena, WakePipe, bump_placement, make_wake_pipe
from srl.bridge.counters import BridgeCounters
from srl.bridge.messenger import BridgePlan
from srl.launch.process.bridge import BridgeOrders
from srl.net.peers import BridgeEndpoint, Peer, Peers, read_bridge_endpoint, write_peers

START_SECONDS = 120.0


class Host:
    """One host: a folder, a bridge process, and the processes that a test puts there."""

    def __init__(
        self, name: str, plan: BridgePlan, processes: tuple[str, ...], owner: bool
    ) -> None:
        self.name = name
        self.processes = processes
        self.plan = plan
        self.incarnation = 0
        self.run = RunFolder()
        self.folder = self.run.path
        self.arena = ShmArena(self.folder, "agent", bridged=True, lazy=True)
        self.wake_pipe = WakePipe(self.folder, "controller")
        for process in processes:
            make_wake_pipe(self.folder, process)
        bump_placement(self.folder)
        for spec in (*plan.inference, *(stream.spec for stream in plan.samples)):
            _create(spec, self.arena, owned_elsewhere=not owner)
        self.puppets: list[Puppet] = []
        self.start()

    def start(self, **options: Any) -> None:
        """Starts the bridge; `up` says when it listens."""
        (self.folder / "bridge.json").unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "srl.launch.process.bridge"], stdin=subprocess.PIPE
        )
        orders = BridgeOrders(
            plan=self.plan,
            host=self.name,
            incarnation=self.incarnation,
            folder=str(self.folder),
            **options,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(orders) + b"\n")
        self.process.stdin.flush()

    def up(self) -> BridgeEndpoint:
        end = time.monotonic() + START_SECONDS
        while (found := read_bridge_endpoint(self.folder)) is None:
            assert self.process.poll() is None, "the bridge ended"
            assert time.monotonic() < end, "the bridge does not come up"
            self.wake_pipe.wait(0.1)
        return found

    def peer(self) -> Peer:
        up = self.up()
        return Peer(
            host=self.name,
            incarnation=self.incarnation,
            address=up.address,
            public_key=up.public_key,
            processes=self.processes,
        )

    def puppet(self, process: str) -> Puppet:
        self.puppets.append(Puppet(self.folder, process, bridged=True))
        return self.puppets[-1]

    def counters(self) -> dict[str, int]:
        return BridgeCounters(self.arena).all()

    def finish(self) -> int:
        """Lets the bridge end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(START_SECONDS)

    def close(self) -> None:
        for puppet in self.puppets:
            puppet.end()
        if self.process.poll() is None:
            # It may have been stopped.
            self.process.send_signal(signal.SIGCONT)
            self.finish()
        elif self.process.stdin is not None:
            self.process.stdin.close()
        self.wake_pipe.close()
        self.arena.close()
        self.run.remove()


class Hosts:
    """All hosts of a run; the first one owns every stream."""

    def __init__(self, plan: BridgePlan, **processes: tuple[str, ...]) -> None:
        self.epoch = 0
        self.hosts: dict[str, Host] = {}
        try:
            for number, (name, placed) in enumerate(processes.items()):
                self.hosts[name] = Host(name, plan, placed, owner=number == 0)
            self.tell()
        except BaseException:
            self.close()
            raise

    def __getitem__(self, name: str) -> Host:
        return self.hosts[name]

    def tell(self, *without: str) -> None:
        """Gives every host the address book, without those that are gone."""
        self.epoch += 1
        peers = tuple(host.peer() for name, host in self.hosts.items() if name not in without)
        for name, host in self.hosts.items():
            write_peers(host.folder, Peers(own=name, epoch=self.epoch, peers=peers))
            host.arena.wake("bridge")

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
