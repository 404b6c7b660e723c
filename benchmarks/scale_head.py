"""A real head with thousands of workers: hosts whose agents are real on the wire, and whose workers
are rows only.

The head is the one of `srl train`: control socket with its keys, process table, address book,
controller, status file. The agents live in one process of their own: each joins, takes the plan,
tells that its workers run, and sends a heartbeat four times a second, with a row for each worker.
The head's time is its processor time, that of its network thread included.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import os
import select
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec
import zmq

from srl.arena.arena import HeapArena
from srl.launch.cluster.agent_session import BEAT_SECONDS
from srl.launch.cluster.head import HEAD_FILE, HeadFile
from srl.launch.cluster.protocol import (
    PACKET_LIMITS,
    PROTOCOL,
    BridgeAddress,
    Brief,
    Channel,
    GiveOrders,
    Heartbeat,
    JoinRequest,
    Packet,
    PeerList,
    Ready,
    Start,
    Started,
    StatsRow,
    Welcome,
    decode,
    encode,
)
from srl.launch.directory.run_dir import RunDir
from srl.launch.process.signal_pipe import SignalPipe
from srl.launch.run.launch import _Launch
from srl.launch.run.processes import ProcessRun
from srl.launch.run.signals import StopSignals
from srl.net.keys import load_join_key
from srl.net.peers import read_peers, write_peers
from srl.net.sockets import Wire
from srl.plan import Plan
from srl.recipes.classic import cartpole
from srl.services.worker_stats import StatsTable
from srl.streams.admission import open_queue

PER_HOST = 100
"""Workers on a host."""
HUB = "hub"
"""The host of the trainer and of the policy worker."""
LIMIT_SECONDS = 120.0


# -- the agents ------------------------------------------------------------------------------------


class Agent:
    """One host on the wire."""

    def __init__(self, name: str, wire: Wire, run_dir: Path) -> None:
        head = msgspec.json.decode((run_dir / HEAD_FILE).read_bytes(), type=HeadFile)
        key = load_join_key(Path(head.key_file))
        address = f"tcp://{head.address}"
        self.socket = wire.dial(address, key.pair, key.head, limits=PACKET_LIMITS)
        self.channel = Channel("")
        self.rows: dict[str, int] = {}
        """Its workers' names, and the incarnations of their processes."""
        self.epoch = 0
        self.book_bytes = 0
        self.plan_bytes = 0
        self.beat_bytes = 0
        self.bridges = 0
        self.next_beat = 0.0
        self._name = name
        self._members: dict[str, list[str]] = {}
        join = JoinRequest(
            token=name, name=name, machine="m", pid=1, cores=1, address="127.0.0.1",
            version=PROTOCOL,
        )  # fmt: skip
        self.socket.send(encode(Packet("", 0, 0, join)))

    def hear(self, members: Callable[[bytes], dict[str, list[str]]]) -> None:
        """Takes what has come and does what is asked for."""
        while self.socket.poll(0):
            data = self.socket.recv()
            packet = decode(data)
            if isinstance(packet.message, Welcome):
                self.channel = Channel(packet.session)
                continue
            match self.channel.receive(packet):
                case Brief() as brief:
                    self.plan_bytes = len(data)
                    self._members = members(brief.plan)
                    self.channel.post(Ready(sees_run_dir=True))
                    self.move_bridge()
                case Start() as start:
                    started = Started(process=start.process, incarnation=start.incarnation, pid=1)
                    self.channel.post(started)
                case GiveOrders() as order:
                    for worker in self._members[order.process]:
                        self.rows[worker] = order.incarnation
                case PeerList() as book:
                    self.epoch = book.epoch
                    self.book_bytes += len(data)

    def move_bridge(self) -> None:
        """Says that its bridge listens, and is another one than before."""
        key = "k" * 40
        address = "tcp://127.0.0.1:1"
        self.channel.post(BridgeAddress(address=address, public_key=key, incarnation=self.bridges))
        self.bridges += 1

    def speak(self, now: float, stats_table: StatsTable | None) -> None:
        """Sends what is due."""
        if not self.channel.session:
            return
        for packet in self.channel.packets(now):
            self.socket.send(encode(packet))
        if now < self.next_beat or stats_table is None:
            return
        self.next_beat = max(self.next_beat + BEAT_SECONDS, now)
        rows = []
        for worker, incarnation in self.rows.items():
            row = stats_table.rows[worker]
            row.enter("running")
            rows.append(StatsRow(worker, incarnation, row.dump()))
        beat = Heartbeat(now_ns=time.monotonic_ns(), rows=tuple(rows))
        data = encode(self.channel.state(beat))
        self.beat_bytes = len(data)
        self.socket.send(data)


def play_agents(run_dir: Path, hosts: list[str]) -> None:
    """The agents' process: a line of JSON each time that all have a newer book."""
    wire = Wire()
    plans: list[Plan] = []
    boards: list[StatsTable] = []

    def members(data: bytes) -> dict[str, list[str]]:
        # They are all told the same, and are one process here.
        if not plans:
            plans.append(msgspec.json.decode(zlib.decompress(data), type=Plan))
            names = tuple(worker.name for worker in plans[0].workers)
            boards.append(StatsTable(HeapArena(), names))
        return {name: [w.name for w in own] for name, own in plans[0].processes.items()}

    agents = [Agent(name, wire, run_dir) for name in hosts]
    poller = zmq.Poller()
    for number, agent in enumerate(agents):
        poller.register(agent.socket, zmq.POLLIN)
        agent.next_beat = time.monotonic() + BEAT_SECONDS * number / len(agents)
    poller.register(0, zmq.POLLIN)
    told = 0
    while True:
        ready = dict(poller.poll(5))
        if 0 in ready:
            if not os.read(0, 1):
                break
            agents[-1].move_bridge()
        for agent in agents:
            if agent.socket in ready:
                agent.hear(members)
            agent.speak(time.monotonic(), boards[0] if boards else None)
        epoch = min(agent.epoch for agent in agents)
        if epoch > told:
            told = epoch
            line = {
                "epoch": epoch,
                "accounts": sum(agent.book_bytes for agent in agents),
                "plan": agents[0].plan_bytes,
                "beat": max(agent.beat_bytes for agent in agents),
            }
            print(json.dumps(line), flush=True)
    wire.close()


# -- the head --------------------------------------------------------------------------------------


class Part:
    """Adds up the processor time of one part of a turn."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self._call = call
        self.seconds = 0.0
        self.longest = 0.0

    def __call__(self) -> Any:
        began = time.thread_time()
        try:
            return self._call()
        finally:
            spent = time.thread_time() - began
            self.seconds += spent
            self.longest = max(self.longest, spent)

    def clear(self) -> None:
        self.seconds = self.longest = 0.0


class Crowd:
    """The head, its agents, and all workers running as far as the head knows."""

    def __init__(self, workers: int, folder: Path, ends: ExitStack) -> None:
        hosts = [f"host-{number}" for number in range(max(1, workers // PER_HOST))]
        experiment = _experiment(workers, hosts)
        directory = RunDir(folder / f"run-{workers}")
        ends.enter_context(directory.locked())
        launch = _Launch(experiment, directory, StopSignals(), True, time.monotonic())
        self.controller, run = launch._start(ends)
        assert isinstance(run, ProcessRun)
        self.run, self.process_table = run, run.process_table
        assert self.process_table.head is not None
        ends.callback(self.controller.close)
        # That bridges move is what is measured.
        logging.getLogger("srl").setLevel(logging.ERROR)
        self.wake = ends.enter_context(SignalPipe())
        self.agents = subprocess.Popen(
            [sys.executable, __file__, str(directory.path), HUB, *hosts],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
        )
        ends.callback(self._end_agents)
        # From here on it is as `ProcessRun.run` has it.
        for row in self.controller.stats_table.rows.values():
            row.enter("starting")
        self.process_table.give_orders()
        self.heard: dict[str, float] = {}
        self.turns = Part(lambda: run._turn(self.wake))

    def _end_agents(self) -> None:
        assert self.agents.stdin is not None
        self.agents.stdin.close()
        self.agents.wait()

    def until(self, done: Callable[[], bool]) -> None:
        """Turns until something is so."""
        end = time.monotonic() + LIMIT_SECONDS
        while not done():
            assert time.monotonic() < end, "waited in vain"
            self.turns()
            self._hear()

    def _hear(self) -> None:
        assert self.agents.stdout is not None
        while select.select([self.agents.stdout], [], [], 0)[0]:
            line = self.agents.stdout.readline()
            assert line, "the agents have ended"
            self.heard = json.loads(line)

    def is_complete(self) -> bool:
        """Whether every worker runs, and all hosts have the book that says so."""
        rows = self.controller.stats_table.rows.values()
        return self.heard.get("epoch") == self.process_table._epoch and all(
            row.activity == "running" for row in rows
        )

    def change(self) -> tuple[float, float, int]:
        """One host's bridge is replaced: the head's and all seconds until everyone knows, and the
        bytes of it."""
        epoch, sent = self.process_table._epoch, self.heard["accounts"]
        began, spent = time.monotonic(), time.process_time()
        assert self.agents.stdin is not None
        self.agents.stdin.write(b"g")
        self.until(lambda: self.heard["epoch"] > epoch)
        took = time.process_time() - spent
        return took, time.monotonic() - began, int(self.heard["accounts"] - sent)


def _experiment(workers: int, hosts: list[str]) -> Any:
    experiment = cartpole()
    return dataclasses.replace(
        experiment,
        layout="remote",
        launcher="manual",
        hosts={HUB: ("trainer", "policy"), **{name: ("actor",) for name in hosts}},
        actor=dataclasses.replace(experiment.actor, count=workers, envs=workers, groups=1),
        algorithm={**experiment.algorithm, "rollout_length": 8},
    )


def head_costs(workers: int, seconds: float) -> dict[str, float]:
    """What so many workers cost the head, by what it is."""
    with ExitStack() as ends:
        folder = Path(ends.enter_context(tempfile.TemporaryDirectory()))
        crowd = Crowd(workers, folder, ends)
        began, spent = time.monotonic(), time.process_time()
        crowd.until(crowd.is_complete)
        found = {
            "start: s until all workers run": time.monotonic() - began,
            "start: s of a core at the head": time.process_time() - spent,
            "start: address accounts, MB to all hosts": crowd.heard["accounts"] / 1e6,
            "start: plan, MB to each host": crowd.heard["plan"] / 1e6,
        }
        found |= _steady(crowd, seconds) | _each(crowd, workers)
        changes = [crowd.change() for _ in range(20)]
        found |= {
            "a host's bridge moves: ms of a core at the head": 1e3 * min(c[0] for c in changes),
            "a host's bridge moves: ms until all hosts know": 1e3 * min(c[1] for c in changes),
            "a host's bridge moves: kB to all hosts": min(c[2] for c in changes) / 1e3,
            "a beat of 100 workers, kB": crowd.heard["beat"] / 1e3,
        }
        return found | _elsewhere(crowd)


def _steady(crowd: Crowd, seconds: float) -> dict[str, float]:
    """Shares of a core while nothing comes but beats."""
    run, process_table = crowd.run, crowd.process_table
    parts = {
        "beats": (process_table.head, "poll"),
        "address book": (process_table, "_publish"),
        "silent processes": (run, "_kill_silent"),
        "the controller's look": (run._controller, "poll"),
        "status file": (run._status, "step"),
    }
    meters = {name: Part(getattr(owner, what)) for name, (owner, what) in parts.items()}
    with ExitStack() as patches:
        for name, (owner, what) in parts.items():
            patches.enter_context(mock.patch.object(owner, what, meters[name]))
        crowd.turns.clear()
        began, spent = time.monotonic(), time.process_time()
        while time.monotonic() < began + seconds:
            crowd.turns()
        took, used = time.monotonic() - began, time.process_time() - spent
    found = {
        "share of a core: the head, all in all": used / took,
        **{f"share of a core: {name}": meter.seconds / took for name, meter in meters.items()},
    }
    return found | {"longest turn, ms of a core": 1e3 * crowd.turns.longest}


def _each(crowd: Crowd, workers: int) -> dict[str, float]:
    """Costs of one worker, each the least of many times."""
    run, hosts = crowd.run, crowd.process_table.head.hosts  # type: ignore[union-attr]
    name, place = next(item for item in hosts.places.items() if item[0] != HUB)
    own = [
        worker
        for worker, process in hosts._slots.items()
        if crowd.process_table.where[process] == name
    ]
    rows = tuple(
        StatsRow(worker, 0, crowd.controller.stats_table.rows[worker].dump()) for worker in own
    )
    data = encode(Packet("", 0, 0, Heartbeat(now_ns=0, rows=rows)))

    def take() -> None:
        beat = decode(data).message
        assert isinstance(beat, Heartbeat)
        hosts._beats[place] = (beat, 0)
        hosts._take_rows(place)

    return {
        "us for a worker: a beat, at the head": least(take, 50) / len(own) * 1e6,
        "us for a worker: a look for silence": least(run._kill_silent, 20) / workers * 1e6,
        "us for a worker: the controller's look": least(run._controller._look, 20) / workers * 1e6,
        "us for a worker: its line of the status": least(run._status._write, 10) / workers * 1e6,
    }


def _elsewhere(crowd: Crowd) -> dict[str, float]:
    """What other hosts keep, and what a worker's process there is told."""
    plan, folder = crowd.controller.plan, crowd.process_table.folder.path
    book = read_peers(folder)
    assert book is not None
    stream = next(iter(plan.samples.values())).spec
    whole = msgspec.json.encode(plan)
    part = msgspec.json.encode(plan.part("actor-0"))
    return {
        "address book of a host: kB": len(msgspec.json.encode(book)) / 1e3,
        "address book of a host: ms to write": 1e3 * least(lambda: write_peers(folder, book), 10),
        "address book of a host: ms to read": 1e3 * least(lambda: read_peers(folder), 10),
        "a worker's sample stream, ms to open": 1e3
        * least(lambda: open_queue(stream, crowd.process_table.arena), 3),
        "a worker's part of the plan, kB": len(part) / 1e3,
        "a worker's part of the plan, ms to read": 1e3 * least(_reader(part), 5),
        "all of the plan, kB": len(whole) / 1e3,
        "all of the plan, ms to read": 1e3 * least(_reader(whole), 5),
    }


def _reader(data: bytes) -> Callable[[], object]:
    return lambda: msgspec.json.decode(data, type=Plan)


def least(call: Callable[[], object], times: int) -> float:
    """The least processor time of a call."""
    spent = []
    for _ in range(times):
        began = time.thread_time()
        call()
        spent.append(time.thread_time() - began)
    return min(spent)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", type=Path)
    parser.add_argument("hosts", nargs="+")
    options = parser.parse_args()
    play_agents(options.run_dir, options.hosts)


if __name__ == "__main__":
    main()
