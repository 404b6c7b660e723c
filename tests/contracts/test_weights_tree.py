"""Weights to many hosts: passed on from host to host, whatever becomes of those in between."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from hosts import Side

from srl.arena.shm import RunFolder
from srl.bridge.messages import WeightsChunk
from srl.bridge.messenger import BridgePlan, WeightsRoute
from srl.bridge.parameters import PART_BYTES, QUIET_SECONDS, SILENT_SECONDS, STUCK_SECONDS
from srl.data.records import Snapshot
from srl.net.framing import Body
from srl.net.links import Links
from srl.net.peers import Peers
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter

HOSTS = tuple(f"h{number}" for number in range(8))
SIZE = 300_000
"""Numbers; five parts."""
DEADLINE_SECONDS = 120.0
SLACK_SECONDS = 60.0
"""Until everyone has spoken again, also where cores have much else to do."""


class Mute(Links):
    """Links that lose every part of weights while they are told to."""

    mute = False

    def send(self, host: str, frames: Any) -> bool:
        if self.mute and b"WeightsChunk" in bytes(frames[0]):
            return True
        return super().send(host, frames)


class Run:
    """The trainer at home and a reader on each of eight hosts, who pass weights on to two others:
    home to h0 and h1, h0 to h2 and h3, h1 to h4 and h5, h2 to h6 and h7."""

    def __init__(self) -> None:
        self.offset = 0.0
        processes = {"home": ("trainer",), **{name: (f"on-{name}",) for name in HOSTS}}
        readers = tuple(f"on-{name}" for name in HOSTS)
        spec = ParameterSpec(policy="p", shapes={"w": ((SIZE,), "float32")}, readers=readers)
        plan = BridgePlan(weights=(WeightsRoute(spec=spec, trainers=("trainer",)),), fan_out=2)
        self.folders = {name: RunFolder() for name in processes}
        self.sides = {
            name: Side(name, plan, self.folders[name].path, placed, self.clock, Mute)
            for name, placed in processes.items()
        }
        self.readers = {name: ParameterReader(spec, self.sides[name].arena) for name in HOSTS}
        self.writer = ParameterWriter(spec, self.sides["home"].arena)
        self.seen: dict[str, list[int]] = {name: [] for name in HOSTS}

    def clock(self) -> float:
        return time.monotonic() + self.offset

    def tell(self, *without: str) -> None:
        """Gives every living host the address book."""
        self.peers = tuple(s.peer() for name, s in self.sides.items() if name not in without)
        for name, side in self.sides.items():
            side.bridge.follow(Peers(own=name, peers=self.peers))

    def publish(self, version: int) -> None:
        weights = {"w": np.full(SIZE, version, np.float32)}
        self.writer.publish(Snapshot(version, weights))

    def kill(self, name: str) -> None:
        """Its bridge is gone; the address book does not say so yet."""
        self.sides.pop(name).close()
        del self.readers[name]

    def until(self, condition: Callable[[], bool], jump: float = 0.0) -> None:
        """Lets the bridges take turns; `jump` seconds pass for them whenever nothing comes."""
        end = time.monotonic() + DEADLINE_SECONDS
        while not condition():
            assert time.monotonic() < end, f"waited in vain: {self.versions()}"
            came = sum([side.bridge.turn() for side in self.sides.values()])
            for name, version in self.versions().items():
                if version not in self.seen[name][-1:]:
                    self.seen[name].append(version)
            if not came:
                self.offset += jump
                side = self.sides["home"]
                side.bridge.wait(side.wake_pipe, 0.002)

    def versions(self) -> dict[str, int]:
        return {name: reader.version for name, reader in self.readers.items()}

    def all_have(self, version: int) -> bool:
        return set(self.versions().values()) == {version}

    def sent_by(self, name: str) -> int:
        """How often a host has sent weights as a whole."""
        return self.sides[name].bridge.counters.get("weights")

    def settled(self) -> bool:
        """Every transfer is over, on both sides."""
        return not any(part.busy for s in self.sides.values() for part in s.bridge._weights_sender)

    def close(self) -> None:
        for side in self.sides.values():
            side.close()
        for folder in self.folders.values():
            folder.remove()


@pytest.fixture
def run() -> Iterator[Run]:
    made = Run()
    yield made
    made.close()
    for name, seen in made.seen.items():
        assert seen == sorted(seen), f"{name} saw versions go backwards: {seen}"


def test_no_host_sends_weights_to_more_than_its_share(run: Run) -> None:
    run.tell()
    for version in (1, 2, 3):
        run.publish(version)
        run.until(lambda version=version: run.all_have(version) and run.settled())  # type: ignore[misc]
        for reader in run.readers.values():
            assert (reader.snapshot().weights["w"] == version).all()
    sent = {name: run.sent_by(name) for name in run.sides}
    assert sent == {
        "home": 6, "h0": 6, "h1": 6, "h2": 6, "h3": 0, "h4": 0, "h5": 0, "h6": 0, "h7": 0,
    }  # fmt: skip
    assert run.sides["home"].links.sent_bytes < 3 * 2 * 4 * SIZE * 1.05
    assert sum(side.bridge.counters.get("rejected") for side in run.sides.values()) == 0


def test_hosts_below_one_that_dies_get_theirs_before_and_after_the_book_says_so(run: Run) -> None:
    run.tell()
    run.publish(1)
    run.until(lambda: run.all_have(1) and run.settled())
    run.kill("h0")
    before, begun = run.sent_by("home"), run.clock()

    run.publish(2)
    # Home sends to h1, and to h2 and h3 in h0's place; h2 still passes on to h6 and h7.
    sent = [("home", before + 3), ("h1", 4), ("h2", 4), ("h3", 0)]
    run.until(
        lambda: run.all_have(2) and all(run.sent_by(name) == count for name, count in sent),
        jump=0.05,
    )
    assert run.clock() - begun < SILENT_SECONDS + SLACK_SECONDS
    run.tell("h0")
    before = run.sent_by("home")
    run.publish(3)
    run.until(lambda: run.all_have(3) and run.settled())
    assert run.sent_by("home") == before + 2, "home to h1 and h2: the tree is another one"


def test_a_host_that_passes_nothing_on_starves_nobody_for_long(run: Run) -> None:
    """It hears everyone and is heard, but its weights never arrive."""
    run.tell()
    run.publish(1)
    run.until(lambda: run.all_have(1) and run.settled())
    links = run.sides["h0"].links
    assert isinstance(links, Mute)
    links.mute = True
    begun = run.clock()

    run.publish(2)
    run.until(lambda: run.all_have(2), jump=0.05)

    assert run.clock() - begun < STUCK_SECONDS + SLACK_SECONDS
    assert run.sent_by("home") <= 2 + 2 + 2, "only those right below it get theirs from home"


def test_who_joins_late_has_the_newest_at_once(run: Run) -> None:
    late = ("h3", "h6")
    run.tell(*late)
    run.publish(7)
    run.until(lambda: all(v == 7 for name, v in run.versions().items() if name not in late))
    assert [run.versions()[name] for name in late] == [-1, -1]

    run.tell()
    run.until(lambda: run.all_have(7) and run.settled())

    assert run.sent_by("home") == 2, "others passed them on"


def test_a_host_whose_bridge_is_not_up_is_nobodys_way(run: Run) -> None:
    run.tell()
    bare = tuple(
        peer if peer.host != "h0" else type(peer)(host="h0", processes=peer.processes)
        for peer in run.peers
    )
    run.kill("h0")
    for name, side in run.sides.items():
        side.bridge.follow(Peers(own=name, peers=bare))
    run.publish(1)
    run.until(lambda: run.all_have(1) and run.settled())
    assert run.sent_by("home") == 2


def test_parts_of_one_version_come_from_one_host(run: Run) -> None:
    """Two send the same version: one is waited for, the other one when that falls silent."""
    run.tell()
    run.publish(1)
    run.until(lambda: run.all_have(1) and run.settled())
    weights_receiver = run.sides["h2"].bridge._weights_receiver[0]
    size = 4 * SIZE
    parts = [min(PART_BYTES, size - start) for start in range(0, size, PART_BYTES)]

    def come(host: str, part: int, fill: int) -> None:
        body = Body([memoryview(bytes([fill]) * parts[part])], [0])
        weights_receiver.on_weights_chunk(host, WeightsChunk(0, 2, part), body)

    come("h0", 0, 1)
    for part in range(len(parts)):
        come("home", part, 2)
    assert weights_receiver.version == 1, "all of it has come from home, but h0 is at it"
    run.offset += QUIET_SECONDS + 0.1
    for part in range(len(parts)):
        come("home", part, 2)
    assert weights_receiver.version == 2
    weights = run.readers["h2"].snapshot().weights["w"]
    assert (weights.view(np.uint8) == 2).all(), "nothing of h0's is among it"
