"""Scale in the small: a thousand actors' worth of clients on one machine, and what all of it costs.

Four hosts (a folder of shared memory and a bridge each) hold the clients, a fifth the server of
inference, the reader of fragments and the weights. A client waits for a set time where an
environment would step, without using a core, asks for actions of its rows, and writes fragments of
16 ticks, so every message that a thousand actors would send is sent. The clients of a host live in
one process.

Then the head of a run, as `srl train` has it, holds a thousand and three thousand workers on hosts
of a hundred (`scale_head.py`): their agents are real on the wire, and the workers rows of their
beats.

Measures: processor time of the bridges for each message, fragment and weight update, from their
own counters; how long a request takes; how many bytes a weight update sends; and of the head the
time to start all workers, its share of a core and what that goes to, what a worker's heartbeat
costs, and what it takes until all hosts know that one has moved. Leaves out: environments,
networks, encryption hardware, and real network cards.

    python benchmarks/bench_scale.py [--clients 1000] [--latency 1.0] [--workers 1000 3000]
        [--write]
"""

from __future__ import annotations

import argparse
import copy
import heapq
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import psutil
from results import write_result
from scale_head import PER_HOST, head_costs

from srl.arena.shm import BRIDGE, RunFolder, ShmArena, WakePipe, bump_placement, make_wake_pipe
from srl.bridge.counters import BridgeCounters
from srl.bridge.messenger import BridgePlan, SampleRoute, WeightsRoute
from srl.data.records import InferenceReply, Snapshot
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.launch.process.bridge import BridgeOrders
from srl.net.peers import Peer, Peers, read_bridge_endpoint, write_peers
from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
from srl.streams.inference import InferenceClient, InferenceServer, InferenceSpec, create_inference
from srl.streams.sample import SampleSink, SampleSource, SampleSpec, create_sample
from srl.streams.sample_queue import FragmentInfo

HOSTS, ROWS, TICKS = 4, 2, 16
HUB = "hub"
AGENT = AgentSpec(obs=ArraySpec(shape=(16,)), action=Discrete(4))
EXTRAS = {"log_prob": ArraySpec(), "value": ArraySpec()}
SMALL, LARGE = 250_000, 25_000_000
"""Numbers of the two policies: 1 MB and 100 MB."""


def plan_of(clients: int) -> BridgePlan:
    """Streams of all clients, and the weights of two policies."""
    actors = tuple(f"actors-{client * HOSTS // clients}" for client in range(clients))
    everyone = tuple(f"actors-{host}" for host in range(HOSTS))
    inference = InferenceSpec(
        name="policy",
        agent=AGENT,
        extras=EXTRAS,
        rows=ROWS,
        slots_per_client=1,
        clients=actors,
        servers=(HUB,),
    )
    samples = SampleSpec(
        name="samples",
        record=TrajectorySpec(length=TICKS, rows=ROWS, envs=ROWS, agent=AGENT, extras=EXTRAS),
        slots=2 * clients,
        writers=actors,
        readers=(HUB,),
    )
    weights = {
        "small": ParameterSpec(policy="small", shapes={"w": ((SMALL,), "float32")}),
        "large": ParameterSpec(policy="large", shapes={"w": ((LARGE,), "float32")}),
    }
    return BridgePlan(
        inference=(inference,),
        samples=(SampleRoute(spec=samples, policy="small"),),
        weights=tuple(
            WeightsRoute(spec=msgspec.structs.replace(spec, readers=everyone), trainers=(HUB,))
            for spec in weights.values()
        ),
    )


# -- the clients of one host -------------------------------------------------------------------


class Client:
    """What an actor does, with nothing in between."""

    def __init__(self, plan: BridgePlan, arena: ShmArena, index: int, first: SampleSink) -> None:
        self.asks = InferenceClient(plan.inference[0], arena, index)
        self.asks.request(0).obs.fill(1.0)
        self.asks.request(0).explore.fill(1.0)
        # An actor's process looks at the slots' memory once; here hundreds of them share one.
        self.writes = copy.copy(first)
        self.writes._writer = index
        self.writes._queue.open_writers[index] = 1
        self.slot = None
        self.tick = 0
        self.asked = 0.0

    def answered(self, newest: int) -> bool:
        """Takes the reply and notes it; False while there is no slot to write into."""
        if self.slot is None:
            self.slot = self.writes.claim(newest)
            if self.slot is None:
                return False
            self.tick = 0
        version = self.asks.take(0).policy_version
        trajectory = self.slot.trajectory
        trajectory.obs[self.tick] = 1.0
        trajectory.policy_version[self.tick] = version
        self.tick += 1
        if self.tick == TICKS + 1:
            self.slot.commit(FragmentInfo(self.tick, TICKS * ROWS))
            self.slot = None
        return True


def play(folder: Path, host: int, clients: int, latency: float) -> None:
    """The clients' process: each waits, asks, notes, and waits again. Prints what requests took."""
    plan, name = plan_of(clients), f"actors-{host}"
    arena, wake_pipe = ShmArena(folder, name, bridged=True, lazy=True), WakePipe(folder, name)
    mine = [i for i, actor in enumerate(plan.inference[0].clients) if actor == name]
    first = SampleSink(plan.samples[0].spec, arena, mine[0])
    players = [Client(plan, arena, index, first) for index in mine]
    newest = ParameterReader(plan.weights[0].spec, arena)
    rng = np.random.default_rng(host)
    due = [(time.monotonic() + latency * rng.random(), n) for n in range(len(players))]
    heapq.heapify(due)
    waiting: set[int] = set()
    took: list[float] = []
    print("ready", flush=True)
    report = time.monotonic() + 1.0
    while True:
        now = time.monotonic()
        while due and due[0][0] <= now:
            _, number = heapq.heappop(due)
            players[number].asked = now
            players[number].asks.submit(0, ROWS)
            waiting.add(number)
        for number in list(waiting):
            player = players[number]
            if player.asks.poll() and player.answered(newest.version):
                waiting.discard(number)
                took.append(time.monotonic() - player.asked)
                heapq.heappush(due, (time.monotonic() + latency, number))
        if now > report and took:
            print(json.dumps([statistics.median(took), max(took), len(took)]), flush=True)
            took, report = [], now + 1.0
        wake_pipe.wait(max(0.0, min(due[0][0] - time.monotonic(), 0.5)) if due else 0.5)


def serve(folder: Path, clients: int) -> None:
    """The hub's process: echoes, and throws fragments away."""
    plan = plan_of(clients)
    arena, wake_pipe = ShmArena(folder, HUB, bridged=True), WakePipe(folder, HUB)
    server = InferenceServer(plan.inference[0], arena, 0)
    source = SampleSource(plan.samples[0].spec, arena, 0)
    print("ready", flush=True)
    while True:
        policies = server.poll()
        if policies:
            request, counts = server.gather(policies)
            rows = len(request.is_first)
            zeros = np.zeros(rows, np.float32)
            extras = {"log_prob": zeros, "value": zeros}
            reply = InferenceReply(np.zeros(rows, np.int64), None, extras, 0)
            server.answer(policies, counts, reply)
        while (item := source.take()) is not None:
            item.release()
            source.acknowledge(1)
        if not policies:
            wake_pipe.wait(0.5)


# -- the hosts ---------------------------------------------------------------------------------


class Host:
    """A folder, a bridge, and one process of ours."""

    def __init__(self, name: str, process: str, plan: BridgePlan) -> None:
        self.name, self.process = name, process
        self._run = RunFolder()
        self.folder = self._run.path
        self.arena = ShmArena(self.folder, "agent", lazy=name != HUB)
        create_inference(plan.inference[0], self.arena)
        create_sample(plan.samples[0].spec, self.arena, owned_elsewhere=name != HUB)
        for known in (process, "agent"):
            make_wake_pipe(self.folder, known)
        bump_placement(self.folder)
        self.counters = BridgeCounters(self.arena)
        orders = BridgeOrders(plan=plan, host=name, folder=str(self.folder))
        self.bridge = subprocess.Popen(
            [sys.executable, "-m", "srl.launch.process.bridge"], stdin=subprocess.PIPE
        )
        assert self.bridge.stdin is not None
        self.bridge.stdin.write(msgspec.json.encode(orders) + b"\n")
        self.bridge.stdin.flush()
        self.player: subprocess.Popen[str] | None = None

    def peer(self) -> Peer:
        """Its entry in the address book, once its bridge listens."""
        while (up := read_bridge_endpoint(self.folder)) is None:
            time.sleep(0.02)
        return Peer(
            host=self.name,
            address=up.address,
            public_key=up.public_key,
            processes=(self.process,),
        )

    def follow(self, peers: tuple[Peer, ...]) -> None:
        write_peers(self.folder, Peers(own=self.name, epoch=1, peers=peers))
        self.arena.wake(BRIDGE)

    def start(self, *arguments: str) -> None:
        self.player = subprocess.Popen(
            [sys.executable, __file__, "--folder", str(self.folder), *arguments],
            stdout=subprocess.PIPE,
            text=True,
        )
        self.player.stdout.readline()  # type: ignore[union-attr]

    def check(self) -> None:
        assert self.bridge.poll() is None, "the bridge has ended"

    def cpu_seconds(self) -> float:
        spent = psutil.Process(self.bridge.pid).cpu_times()
        return float(spent.user + spent.system)

    def close(self) -> None:
        for process in (self.player, self.bridge):
            if process is not None:
                process.kill()
                process.wait()
        self.arena.close()
        self._run.remove()


class Change:
    """What a host's bridge did, and what it took, between two looks."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._before = (host.cpu_seconds(), host.counters.all())

    def so_far(self) -> tuple[float, dict[str, int]]:
        cpu, counts = self._before
        now = self._host.counters.all()
        return self._host.cpu_seconds() - cpu, {name: now[name] - counts[name] for name in now}


def messages(hub: Host, others: list[Host], seconds: float) -> dict[str, float]:
    """Costs of the messages of all clients."""
    changes = [Change(host) for host in (hub, *others)]
    began = time.monotonic()
    time.sleep(seconds)
    spent = time.monotonic() - began
    (hub_cpu, hub_counts), *rest = [change.so_far() for change in changes]
    requests, fragments = hub_counts["requests"], hub_counts["fragments"]
    sent = hub_counts["sent_messages"] + hub_counts["received_messages"]
    other = sum(c["sent_messages"] + c["received_messages"] for _, c in rest)
    return {
        "requests per second": requests / spent,
        "fragments per second": fragments / spent,
        "hub's bridge: share of a core": hub_cpu / spent,
        "hub's bridge: us for a message": hub_cpu / max(sent, 1) * 1e6,
        "other bridges: us for a message": sum(cpu for cpu, _ in rest) / max(other, 1) * 1e6,
        "messages for a request": sent / max(requests, 1),
        "sent again": float(sum(c["resent"] for _, c in rest) + hub_counts["resent"]),
    }


def update(
    hub: Host, others: list[Host], plan: BridgePlan, which: int, times: int
) -> dict[str, float]:
    """Costs of weight updates to all hosts."""
    spec = plan.weights[which].spec
    writer = ParameterWriter(spec, ShmArena(hub.folder, HUB, bridged=True))
    readers = [ParameterReader(spec, host.arena) for host in others]
    (size,) = spec.shapes["w"][0]
    change, took = Change(hub), []
    for version in range(times):
        began = time.monotonic()
        writer.publish(Snapshot(version, {"w": np.full(size, version, np.float32)}))
        while any(reader.version < version for reader in readers):
            hub.check()
            time.sleep(0.001)
        took.append(time.monotonic() - began)
    cpu, counts = change.so_far()
    megabytes = size * 4 / 1e6
    return {
        f"{megabytes:.0f} MB: ms until every host has it": statistics.median(took) * 1e3,
        f"{megabytes:.0f} MB: ms of the hub's bridge, each host": cpu / times / HOSTS * 1e3,
        f"{megabytes:.0f} MB: sent, in units of its size": counts["sent_bytes"]
        / times
        / (size * 4),
    }


def measure(options: argparse.Namespace) -> dict[str, float]:
    plan = plan_of(options.clients)
    hosts: list[Host] = []
    try:
        hub = Host(HUB, HUB, plan)
        hosts.append(hub)
        for number in range(HOSTS):
            hosts.append(Host(f"host-{number}", f"actors-{number}", plan))
        peers = tuple(host.peer() for host in hosts)
        for host in hosts:
            host.follow(peers)
        found = update(hub, hosts[1:], plan, 0, 10) | update(hub, hosts[1:], plan, 1, 2)
        clients = str(options.clients)
        hub.start("--role", "serve", "--clients", clients)
        for number, host in enumerate(hosts[1:]):
            latency = f"{options.latency:g}"
            host.start(
                *("--role", "play", "--clients", clients, "--latency", latency),
                *("--host", str(number)),
            )
        time.sleep(options.latency + 3.0)
        found |= messages(hub, hosts[1:], options.seconds)
        lines = [host.player.stdout.readline() for host in hosts[1:]]  # type: ignore[union-attr]
        found["ms for a request, median"] = 1e3 * max(json.loads(line)[0] for line in lines)
        return found
    finally:
        for host in hosts:
            host.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--latency", type=float, default=1.0, help="seconds of a step")
    # So long that every client writes one fragment: they all do at about the same time.
    parser.add_argument("--seconds", type=float, default=TICKS + 1.0)
    parser.add_argument("--workers", type=int, nargs="+", default=[1000, 3000])
    parser.add_argument("--write", action="store_true", help="write the table into results/")
    parser.add_argument("--role", choices=("play", "serve"), help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--host", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.role == "play":
        return play(options.folder, options.host, options.clients, options.latency)
    if options.role == "serve":
        return serve(options.folder, options.clients)
    found = measure(options)
    heads = {workers: head_costs(workers, options.seconds) for workers in options.workers}
    lines = [
        f"{options.clients} clients of {ROWS} rows on {HOSTS} hosts, a step of "
        f"{options.latency:g} s, fragments of {TICKS} ticks.",
        "",
        "| what | measured |",
        "|---|---|",
        *(f"| {name} | {value:,.4g} |" for name, value in found.items()),
        "",
        f"The head, with hosts of {PER_HOST} workers and one for trainer and policy worker.",
        "",
        *_table(heads),
    ]
    print("\n".join(lines))
    if options.write:
        print(write_result("scale", __doc__, lines))
    print(json.dumps({**found, "heads": heads}))


def _table(heads: dict[int, dict[str, float]]) -> list[str]:
    """A column for each number of workers."""
    rows = [
        "| " + " | ".join([name, *(f"{found[name]:,.3g}" for found in heads.values())]) + " |"
        for name in next(iter(heads.values()))
    ]
    names = " | ".join(f"{workers:,} workers" for workers in heads)
    return [f"| what | {names} |", "|---" * (len(heads) + 1) + "|", *rows]


if __name__ == "__main__":
    main()
