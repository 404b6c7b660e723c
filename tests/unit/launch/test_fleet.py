"""Who is scaled away and wanted again before it has gone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from test_placement import placed

from srl.launch.fleet import Fleet
from srl.launch.placement import Placement
from srl.launch.places import HOME


class Place:
    """In place of this host: keeps who runs here, and who was told to leave."""

    name = HOME

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
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    processes = placed(actor=2)
    modules: dict[str, tuple[str, ...]] = dict.fromkeys(processes, ())
    made = Fleet(modules, Placement(processes, {}), (), tmp_path, None)
    home, made.home = made.home, Place()  # type: ignore[assignment]
    made.add("actor-1")
    made._start_waiting()
    yield made
    made.home = home
    made.close()


def end(fleet: Fleet) -> bool:
    """The process has finished; whether it will be started again."""
    fleet.home.living.remove("actor-1")  # type: ignore[attr-defined]
    again = fleet.left("actor-1")
    fleet._start_waiting()
    return again


def test_who_is_scaled_away_is_gone(fleet: Fleet) -> None:
    fleet.remove("actor-1")
    assert fleet.home.told == ["actor-1"]  # type: ignore[attr-defined]
    assert not end(fleet)
    assert not fleet.is_alive("actor-1")


def test_who_is_wanted_again_before_it_has_gone_comes_back(fleet: Fleet) -> None:
    fleet.remove("actor-1")
    fleet.add("actor-1")
    fleet.add("actor-1")
    assert end(fleet)
    assert fleet.is_alive("actor-1")
    fleet.remove("actor-1")
    assert not end(fleet), "it has come back once"


def test_who_is_scaled_away_twice_does_not_come_back(fleet: Fleet) -> None:
    fleet.remove("actor-1")
    fleet.add("actor-1")
    fleet.remove("actor-1")
    assert not end(fleet)
    assert not fleet.is_alive("actor-1")


def test_who_dies_on_its_way_out_is_started_once(fleet: Fleet) -> None:
    fleet.remove("actor-1")
    fleet.add("actor-1")
    fleet.home.living.remove("actor-1")  # type: ignore[attr-defined]
    fleet.request("actor-1")
    fleet._start_waiting()
    assert fleet.is_alive("actor-1")
    fleet.remove("actor-1")
    assert not end(fleet)
