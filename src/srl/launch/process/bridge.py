"""The bridge process of a host: `python -m srl.launch.process.bridge`.

It reads its orders as JSON from standard input. It listens, writes its address into the host's
folder, and follows the address book that its parent (the head or an agent) writes there. Standard
input stays open for as long as the parent lives. When standard input ends, the bridge finishes.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from pathlib import Path

import msgspec

from srl.arena.shm import BRIDGE, CONTROLLER, ShmArena, WakePipe
from srl.bridge.bridge import Bridge, message_limits
from srl.bridge.messenger import BridgePlan, SampleRoute, WeightsRoute
from srl.errors import SrlError
from srl.launch.process.failure_report import Failure, failure_path
from srl.launch.process.interpreter import log_to_stderr
from srl.launch.run.signals import leave_to_parent
from srl.net.links import Links
from srl.net.peers import BridgeEndpoint, write_bridge_endpoint
from srl.net.sockets import LOOPBACK
from srl.plan import Plan


class BridgeOrders(msgspec.Struct, kw_only=True):
    """The orders of a bridge process, one line of JSON."""

    plan: BridgePlan
    host: str
    incarnation: int = 0
    folder: str
    address: str = LOOPBACK
    """The address to listen at ("tcp://10.0.0.2:*"); loopback if there are no other machines."""
    packs: bool = False
    """Compresses pixels that are sent to hosts that also do so. Useful on slow networks."""


def bridge_plan(plan: Plan) -> BridgePlan:
    """The part of a run's plan that a bridge needs."""
    trainers: dict[str, list[str]] = {}
    for worker in plan.workers:
        for policy in worker.trains:
            trainers.setdefault(policy, []).append(worker.process)
    return BridgePlan(
        inference=tuple(one.spec for one in plan.inference.values() if one.carrier != "inline"),
        samples=tuple(
            SampleRoute(spec=stream.spec, policy=stream.policy) for stream in plan.samples.values()
        ),
        weights=tuple(
            WeightsRoute(spec=policy.parameters, trainers=tuple(trainers.get(name, ())))
            for name, policy in plan.policies.items()
        ),
    )


def run_bridge(orders: BridgeOrders, ended: threading.Event) -> None:
    """Listens, and carries data to and from other hosts until `ended` is set."""
    folder = Path(orders.folder)
    arena = ShmArena(folder, BRIDGE, bridged=True, lazy=True)
    wake_pipe = WakePipe(folder, BRIDGE)
    limits = message_limits(orders.plan, arena)
    links = Links(orders.host, orders.address, limits=limits)
    bridge = Bridge(orders.plan, folder, arena, links, packs=orders.packs)
    try:
        endpoint = BridgeEndpoint(
            address=links.address, public_key=links.keys.public, incarnation=orders.incarnation
        )
        write_bridge_endpoint(folder, endpoint)
        arena.wake(CONTROLLER)
        bridge.run(wake_pipe, ended.is_set)
    finally:
        bridge.close()
        wake_pipe.close()
        arena.close()


def main() -> int:
    """Runs the bridge of one host and returns its exit code."""
    leave_to_parent()
    faulthandler.enable()
    log_to_stderr()
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    orders = msgspec.json.decode(line, type=BridgeOrders)
    ended = threading.Event()
    threading.Thread(
        target=_end_with_parent, args=(Path(orders.folder), ended), daemon=True
    ).start()
    try:
        run_bridge(orders, ended)
    except SrlError as error:
        logging.getLogger("srl").error("the bridge of %s failed: %s", orders.host, error)
        failure = Failure(BRIDGE, type(error).__name__, str(error), True)
        failure_path(Path(orders.folder), BRIDGE).write_bytes(msgspec.json.encode(failure))
        return 3
    return 0


def _end_with_parent(folder: Path, ended: threading.Event) -> None:
    """Waits until the parent has ended, then tells the bridge to end and wakes it."""
    # Not through sys.stdin: a thread that waits in it prevents a clean end of the interpreter.
    while os.read(0, 4096):
        pass
    ended.set()
    arena = ShmArena(folder, "")
    arena.wake(BRIDGE)
    arena.close()


if __name__ == "__main__":
    sys.exit(main())
