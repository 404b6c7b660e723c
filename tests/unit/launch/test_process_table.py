"""Who is scaled away and wanted again before it has gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_placement import placed

from srl.launch.cluster.node import HEAD_HOST
from srl.launch.plan.placement import Placement
from srl.launch.run.process_table import ProcessTable


class Node:
    """In place of this host: keeps who runs here, and who was told to leave."""

    name = HEAD_HOST

    def __init__(self) -> None:
        self.living: list[str] = []
        self.told: list[str] = []

    @property
    def processes(self) -> list[str]:
        return self.living

    def start(self, process: str, incarnation: int, modules: tuple[str, ...]) -> None:
        assert process not in self.living
        self.living.append(process)

    def order(self, process: str, checkpoint: str) -> None:
        pass

    def leave(self, process: str) -> None:
        self.told.append(process)

    def is_alive(self, process: str) -> bool:
        return process in self.living


@pytest.fixture
def process_table(tmp_path: Path) -> Iterator[ProcessTable]:
    processes = placed(actor=2)
    modules: dict[str, tuple[str, ...]] = dict.fromkeys(processes, ())
    made = ProcessTable(modules, Placement(processes, {}), (), tmp_path, None)
    local_node, made.local_node = made.local_node, Node()  # type: ignore[assignment]
    made.add("actor-1")
    made._start_waiting()
    yield made
    made.local_node = local_node
    made.close()


def end(process_table: ProcessTable) -> bool:
    """The process has finished; whether it will be started again."""
    process_table.local_node.living.remove("actor-1")  # type: ignore[attr-defined]
    again = process_table.left("actor-1")
    process_table._start_waiting()
    return again


def test_who_is_scaled_away_is_gone(process_table: ProcessTable) -> None:
    process_table.remove("actor-1")
    assert process_table.local_node.told == ["actor-1"]  # type: ignore[attr-defined]
    assert not end(process_table)
    assert not process_table.is_alive("actor-1")


def test_who_is_wanted_again_before_it_has_gone_comes_back(process_table: ProcessTable) -> None:
    process_table.remove("actor-1")
    process_table.add("actor-1")
    process_table.add("actor-1")
    assert end(process_table)
    assert process_table.is_alive("actor-1")
    process_table.remove("actor-1")
    assert not end(process_table), "it has come back once"


def test_who_is_scaled_away_twice_does_not_come_back(process_table: ProcessTable) -> None:
    process_table.remove("actor-1")
    process_table.add("actor-1")
    process_table.remove("actor-1")
    assert not end(process_table)
    assert not process_table.is_alive("actor-1")


def test_who_dies_on_its_way_out_is_started_once(process_table: ProcessTable) -> None:
    process_table.remove("actor-1")
    process_table.add("actor-1")
    process_table.local_node.living.remove("actor-1")  # type: ignore[attr-defined]
    process_table.request("actor-1")
    process_table._start_waiting()
    assert process_table.is_alive("actor-1")
    process_table.remove("actor-1")
    assert not end(process_table)
