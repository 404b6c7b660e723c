"""Two hosts on this machine for benchmarks: a folder and a bridge process each, joined over
loopback."""

from __future__ import annotations

import subprocess
import sys
import time
from types import TracebackType

import msgspec

from srl.arena.shm import RunFolder, ShmArena, bump_placement, make_wake_pipe
from srl.bridge.messenger import BridgePlan
from srl.launch.process.bridge import BridgeOrders
from srl.net.peers import Peer, Peers, read_bridge_endpoint, write_peers
from srl.streams.inference import create_inference
from srl.streams.sample import create_sample


class TwoHosts:
    """The first host has the clients and the writers, the second one the servers and readers."""

    def __init__(self, plan: BridgePlan, near: tuple[str, ...], far: tuple[str, ...]) -> None:
        self._placed = {"near": near, "far": far}
        self._runs = {name: RunFolder() for name in self._placed}
        self.folders = {name: run.path for name, run in self._runs.items()}
        self._bridges = []
        for name, processes in self._placed.items():
            arena = ShmArena(self.folders[name], "agent", bridged=True)
            for process in processes:
                make_wake_pipe(self.folders[name], process)
            bump_placement(self.folders[name])
            for spec in plan.inference:
                create_inference(spec, arena)
            for stream in plan.samples:
                create_sample(stream.spec, arena, owned_elsewhere=name == "near")
            arena.close()
            bridge = subprocess.Popen(
                [sys.executable, "-m", "srl.launch.process.bridge"], stdin=subprocess.PIPE
            )
            self._bridges.append(bridge)
            orders = BridgeOrders(plan=plan, host=name, folder=str(self.folders[name]))
            assert bridge.stdin is not None
            bridge.stdin.write(msgspec.json.encode(orders) + b"\n")
            bridge.stdin.flush()
        self._introduce()

    def _introduce(self) -> None:
        peers = []
        for name, processes in self._placed.items():
            while (up := read_bridge_endpoint(self.folders[name])) is None:
                time.sleep(0.01)
            peers.append(
                Peer(host=name, address=up.address, public_key=up.public_key, processes=processes)
            )
        for name, folder in self.folders.items():
            write_peers(folder, Peers(own=name, peers=tuple(peers)))
            arena = ShmArena(folder, "agent")
            arena.wake("bridge")
            arena.close()

    def __enter__(self) -> TwoHosts:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for bridge in self._bridges:
            assert bridge.stdin is not None
            bridge.stdin.close()
            bridge.wait()
        for run in self._runs.values():
            run.remove()
