"""A host's gate as a process: `python -m srl.launch.gate`, with its orders as JSON on standard
input.

It listens, says where in the host's folder, and follows the address book that the agent (at home:
the launcher) writes there. Standard input stays open for as long as that one lives: its end tells
the gate to finish by itself.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from pathlib import Path

import msgspec

from srl.arena.shm import CONTROLLER, GATE, Bell, ShmArena
from srl.errors import SrlError
from srl.gates.gate import Gate, message_limits
from srl.gates.post import GatePlan, Samples, Weights
from srl.launch.last_words import Failure, failure_path
from srl.launch.signals import leave_to_parent
from srl.net.links import Links
from srl.net.peers import GateUp, write_gate_up
from srl.net.sockets import LOOPBACK
from srl.workers.wiring import Plan


class GateOrders(msgspec.Struct, kw_only=True):
    """What a gate process is told, one line of JSON."""

    plan: GatePlan
    host: str
    incarnation: int = 0
    folder: str
    address: str = LOOPBACK
    """Where to listen: "tcp://10.0.0.2:*"; loopback unless other machines take part."""
    packs: bool = False
    """Packs pixels on their way to hosts that do so too: for slow networks."""


def gate_plan(plan: Plan) -> GatePlan:
    """What a gate needs of a run's plan."""
    trainers: dict[str, list[str]] = {}
    for worker in plan.workers:
        for policy in worker.trains:
            trainers.setdefault(policy, []).append(worker.process)
    return GatePlan(
        inference=tuple(one.spec for one in plan.inference.values() if one.carrier != "inline"),
        samples=tuple(
            Samples(spec=stream.spec, policy=stream.policy)
            for stream in plan.samples.values()
            if stream.carrier != "inline"
        ),
        weights=tuple(
            Weights(spec=policy.parameters, trainers=tuple(trainers.get(name, ())))
            for name, policy in plan.policies.items()
        ),
    )


def run_gate(orders: GateOrders, ended: threading.Event) -> None:
    """Listens, and joins the host to the others until told to end."""
    folder = Path(orders.folder)
    arena = ShmArena(folder, GATE, gated=True, lazy=True)
    bell = Bell(folder, GATE)
    limits = message_limits(orders.plan, arena)
    links = Links(orders.host, orders.address, limits=limits)
    gate = Gate(orders.plan, folder, arena, links, packs=orders.packs)
    try:
        up = GateUp(
            address=links.address, public_key=links.keys.public, incarnation=orders.incarnation
        )
        write_gate_up(folder, up)
        arena.ring(CONTROLLER)
        gate.run(bell, ended.is_set)
    finally:
        gate.close()
        bell.close()
        arena.close()


def main() -> int:
    """Runs the gate of one host and returns its exit code."""
    leave_to_parent()
    faulthandler.enable()
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", force=True
    )
    line = sys.stdin.buffer.readline()
    if not line:
        return 0
    orders = msgspec.json.decode(line, type=GateOrders)
    ended = threading.Event()
    threading.Thread(target=_outlive, args=(Path(orders.folder), ended), daemon=True).start()
    try:
        run_gate(orders, ended)
    except SrlError as error:
        logging.getLogger("srl").error("the gate of %s failed: %s", orders.host, error)
        failure = Failure(GATE, type(error).__name__, str(error), True)
        failure_path(Path(orders.folder), GATE).write_bytes(msgspec.json.encode(failure))
        return 3
    return 0


def _outlive(folder: Path, ended: threading.Event) -> None:
    """Waits for the parent's end, and wakes the gate to its own."""
    # Not through sys.stdin: a thread that waits in it keeps the interpreter from ending well.
    while os.read(0, 4096):
        pass
    ended.set()
    arena = ShmArena(folder, "")
    arena.ring(GATE)
    arena.close()


if __name__ == "__main__":
    sys.exit(main())
