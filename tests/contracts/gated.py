"""Hosts with real gate processes between them, and puppets on both sides."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from typing import Any

import msgspec
from carriers import Puppet, _create

from srl.arena.shm import Bell, RunFolder, ShmArena, bump_placement, make_bell
from srl.gates.counters import GateCounters
from srl.gates.post import GatePlan
from srl.launch.gate import GateOrders
from srl.net.peers import GateUp, Peer, Peers, read_gate_up, write_peers

START_SECONDS = 30.0


class Host:
    """One host: a folder, a gate process, and the processes that a test puts there."""

    def __init__(self, name: str, plan: GatePlan, processes: tuple[str, ...], owner: bool) -> None:
        self.name = name
        self.processes = processes
        self.plan = plan
        self.incarnation = 0
        self.run = RunFolder()
        self.folder = self.run.path
        self.arena = ShmArena(self.folder, "agent", gated=True, lazy=True)
        self.bell = Bell(self.folder, "controller")
        for process in processes:
            make_bell(self.folder, process)
        bump_placement(self.folder)
        for spec in (*plan.inference, *(stream.spec for stream in plan.samples)):
            _create(spec, self.arena, granted=not owner)
        self.puppets: list[Puppet] = []
        self.start()

    def start(self, **options: Any) -> None:
        """Starts the gate; `up` says when it listens."""
        (self.folder / "gate.json").unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "srl.launch.gate"], stdin=subprocess.PIPE
        )
        orders = GateOrders(
            plan=self.plan,
            host=self.name,
            incarnation=self.incarnation,
            folder=str(self.folder),
            **options,
        )
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(orders) + b"\n")
        self.process.stdin.flush()

    def up(self) -> GateUp:
        end = time.monotonic() + START_SECONDS
        while (found := read_gate_up(self.folder)) is None:
            assert self.process.poll() is None, "the gate ended"
            assert time.monotonic() < end, "the gate does not come up"
            self.bell.wait(0.1)
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
        self.puppets.append(Puppet(self.folder, process, gated=True))
        return self.puppets[-1]

    def counters(self) -> dict[str, int]:
        return GateCounters(self.arena).all()

    def finish(self) -> int:
        """Lets the gate end by itself."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(10)

    def close(self) -> None:
        for puppet in self.puppets:
            puppet.end()
        if self.process.poll() is None:
            # It may have been stopped.
            self.process.send_signal(signal.SIGCONT)
            self.finish()
        elif self.process.stdin is not None:
            self.process.stdin.close()
        self.bell.close()
        self.arena.close()
        self.run.remove()


class Hosts:
    """All hosts of a run; the first one owns every stream."""

    def __init__(self, plan: GatePlan, **processes: tuple[str, ...]) -> None:
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
            host.arena.ring("gate")

    def close(self) -> None:
        for host in self.hosts.values():
            host.close()
