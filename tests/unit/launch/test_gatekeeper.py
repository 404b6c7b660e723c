"""What a host's gate is told."""

from __future__ import annotations

from typing import Any

import pytest

from srl.arena.shm import RunFolder, ShmArena
from srl.envs.registry import probe
from srl.launch.gate import GateOrders
from srl.launch.gatekeeper import GateKeeper
from srl.launch.plan import make_plan, settle
from srl.overrides import override
from srl.run import assemble


class Told:
    """In place of the host's processes: keeps what they are told."""

    def __init__(self) -> None:
        self.orders: list[GateOrders] = []

    def start(self, *arguments: Any) -> None:
        pass

    def tell(self, process: str, orders: GateOrders) -> None:
        self.orders.append(orders)


@pytest.mark.parametrize(("port", "address"), [(0, "*"), (5556, "5556")])
def test_a_gate_listens_at_the_port_that_it_is_told_and_so_does_its_successor(
    port: int, address: str
) -> None:
    wanted = assemble("CartPole-v1", layout="shared")
    plan, _ = make_plan(settle(wanted, 2, "cpu"), probe(wanted.env), "cpu")
    folder, told = RunFolder(), Told()
    try:
        keeper = GateKeeper(told, ShmArena(folder.path, "agent"), "a", 1)  # type: ignore[arg-type]
        keeper.start(plan, "10.0.0.2", port)
        keeper.replace("was killed")
    finally:
        folder.remove()
    assert [orders.address for orders in told.orders] == 2 * [f"tcp://10.0.0.2:{address}"]
    assert [orders.incarnation for orders in told.orders] == [1000, 1001]


@pytest.mark.parametrize("packs", [False, True])
def test_a_gate_packs_pixels_if_the_experiment_says_so(packs: bool) -> None:
    wanted = override(assemble("CartPole-v1", layout="shared"), {"pack_pixels": packs})
    plan, _ = make_plan(settle(wanted, 2, "cpu"), probe(wanted.env), "cpu")
    folder, told = RunFolder(), Told()
    try:
        keeper = GateKeeper(told, ShmArena(folder.path, "agent"), "a", 1)  # type: ignore[arg-type]
        keeper.start(plan, "127.0.0.1")
    finally:
        folder.remove()
    (orders,) = told.orders
    assert (orders.host, orders.packs) == ("a", packs)
    assert orders.address == "tcp://127.0.0.1:*"
