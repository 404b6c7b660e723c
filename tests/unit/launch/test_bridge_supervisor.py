"""What a host's bridge is told."""

from __future__ import annotations

from typing import Any

import pytest

from srl.arena.shm import RunFolder, ShmArena
from srl.arguments import assemble
from srl.envs.registry import probe
from srl.launch.cluster.bridge_supervisor import BridgeSupervisor
from srl.launch.plan.build import make_plan, resolve_settings
from srl.launch.process.bridge import BridgeOrders
from srl.overrides import override


class Told:
    """In place of the host's processes: keeps what they are told."""

    def __init__(self) -> None:
        self.orders: list[BridgeOrders] = []

    def start(self, *arguments: Any) -> None:
        pass

    def tell(self, process: str, orders: BridgeOrders) -> None:
        self.orders.append(orders)


@pytest.mark.parametrize(("port", "address"), [(0, "*"), (5556, "5556")])
def test_a_bridge_listens_at_the_port_that_it_is_told_and_so_does_its_successor(
    port: int, address: str
) -> None:
    wanted = assemble("CartPole-v1", layout="shared")
    plan, _ = make_plan(resolve_settings(wanted, 2, "cpu"), probe(wanted.env), "cpu")
    folder, told = RunFolder(), Told()
    try:
        supervisor = BridgeSupervisor(told, ShmArena(folder.path, "agent"), "a", 1)  # type: ignore[arg-type]
        supervisor.start(plan, "10.0.0.2", port)
        supervisor.replace("was killed")
    finally:
        folder.remove()
    assert [orders.address for orders in told.orders] == 2 * [f"tcp://10.0.0.2:{address}"]
    assert [orders.incarnation for orders in told.orders] == [1000, 1001]


@pytest.mark.parametrize("packs", [False, True])
def test_a_bridge_packs_pixels_if_the_experiment_says_so(packs: bool) -> None:
    wanted = override(assemble("CartPole-v1", layout="shared"), {"pack_pixels": packs})
    plan, _ = make_plan(resolve_settings(wanted, 2, "cpu"), probe(wanted.env), "cpu")
    folder, told = RunFolder(), Told()
    try:
        supervisor = BridgeSupervisor(told, ShmArena(folder.path, "agent"), "a", 1)  # type: ignore[arg-type]
        supervisor.start(plan, "127.0.0.1")
    finally:
        folder.remove()
    (orders,) = told.orders
    assert (orders.host, orders.packs) == ("a", packs)
    assert orders.address == "tcp://127.0.0.1:*"
