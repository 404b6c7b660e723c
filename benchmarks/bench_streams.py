"""How fast streams are: inference round trips and sample bandwidth, for each carrier.

Measures: the round trip of a small request (8 rows of float32[4]) to an echo server, beside a bare
blocking ping-pong between two processes in the same run, and beside one whose other end does the
work of a whole inline round trip before it answers; and pixel fragments written into slots and
gathered into a batch, beside `numpy.copyto` of the same bytes. `tcp` is two hosts on this machine,
a bridge process each, encrypted over loopback. Leaves out:
environments, policies, a real network, and any work that would overlap with the waiting.

    python benchmarks/bench_streams.py [--seconds 5] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from results import write_result
from two_hosts import TwoHosts

from srl.arena.arena import Arena, HeapArena
from srl.arena.shm import RunFolder, ShmArena, WakePipe
from srl.bridge.messenger import BridgePlan, SampleRoute
from srl.data.batching import BatchBuilder
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.streams.inference import InferenceClient, InferenceServer, InferenceSpec, create_inference
from srl.streams.sample import SampleSink, SampleSource, SampleSpec, create_sample
from srl.streams.sample_queue import FragmentInfo

ROWS = 8


def inference_spec(server: str) -> InferenceSpec:
    return InferenceSpec(
        name="echo",
        agent=AgentSpec(obs=ArraySpec(shape=(4,)), action=Discrete(2)),
        extras={"value": ArraySpec()},
        rows=ROWS,
        slots_per_client=1,
        clients=("client",),
        servers=(server,),
    )


ACTIONS = np.zeros(ROWS, np.int64)


def answer(server: InferenceServer) -> bool:
    """What a policy worker does with what has arrived, for a policy that only echoes."""
    policies = server.poll()
    if not policies:
        return False
    request, counts = server.gather(policies)
    server.answer_with(policies, counts, [ACTIONS, request.obs[:, 0]], 1)
    return True


def serve(folder: Path, bridged: bool) -> None:
    """The echo server's process."""
    arena, wake_pipe = ShmArena(folder, "server", bridged=bridged), WakePipe(folder, "server")
    server = InferenceServer(inference_spec("server"), arena, 0)
    print("ready", flush=True)
    while not server.closed:
        if not answer(server):
            wake_pipe.wait(1.0)


def pong(work: bool) -> None:
    """The other end of the bare ping-pong: one byte back for each byte."""
    call = inline_call() if work else None
    while byte := os.read(0, 1):
        if call is not None:
            call()
        os.write(1, byte)


def times_of(call: Callable[[], None], seconds: float) -> list[float]:
    found = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()
        found.append((time.perf_counter() - start) * 1e6)
    return found[len(found) // 10 :]


def bare_ping_pong(seconds: float, role: str = "pong") -> list[float]:
    command = [sys.executable, __file__, "--role", role]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        to, back = other.stdin.fileno(), other.stdout.fileno()  # type: ignore[union-attr]

        def call() -> None:
            os.write(to, b"x")
            os.read(back, 1)

        call()
        found = times_of(call, seconds)
        other.stdin.close()  # type: ignore[union-attr]
    return found


def working_ping_pong(seconds: float) -> list[float]:
    return bare_ping_pong(seconds, "work")


def shm_round_trip(seconds: float) -> list[float]:
    folder = RunFolder()
    try:
        arena = ShmArena(folder.path, "client")
        create_inference(inference_spec("server"), arena)
        return round_trip(arena, folder.path, [], seconds)
    finally:
        folder.remove()


def tcp_round_trip(seconds: float) -> list[float]:
    plan = BridgePlan(inference=(inference_spec("server"),))
    with TwoHosts(plan, near=("client",), far=("server",)) as hosts:
        arena = ShmArena(hosts.folders["near"], "client", bridged=True)
        return round_trip(arena, hosts.folders["far"], ["--bridged"], seconds)


def round_trip(arena: ShmArena, there: Path, options: list[str], seconds: float) -> list[float]:
    """Times of requests to an echo server in a process of its own."""
    wake_pipe = WakePipe(arena.folder, "client")
    client = InferenceClient(inference_spec("server"), arena, 0)
    client.request(0).explore.fill(1.0)
    command = [sys.executable, __file__, "--role", "serve", "--folder", str(there), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        other.stdout.readline()  # type: ignore[union-attr]
        obs = np.ones((ROWS, 4), np.float32)

        def call() -> None:
            client.request(0).obs[...] = obs
            client.submit(0, ROWS)
            while not client.poll():
                wake_pipe.wait(1.0)
            client.take(0)

        found = times_of(call, seconds)
        client.close()
    return found


def inline_call() -> Callable[[], None]:
    """One round trip within a process."""
    arena = HeapArena()
    spec = inference_spec("client")
    client, server = InferenceClient(spec, arena, 0), InferenceServer(spec, arena, 0)
    obs = np.ones((ROWS, 4), np.float32)

    def call() -> None:
        client.request(0).obs[...] = obs
        client.submit(0, ROWS)
        answer(server)
        client.poll()
        client.take(0)

    return call


def inline_round_trip(seconds: float) -> list[float]:
    return times_of(inline_call(), seconds)


def pixel_spec() -> SampleSpec:
    trajectory = TrajectorySpec(
        length=128,
        rows=ROWS,
        envs=ROWS,
        agent=AgentSpec(obs=ArraySpec(shape=(84, 84), dtype="uint8"), action=Discrete(6)),
        extras={"value": ArraySpec()},
    )
    return SampleSpec(
        name="pixels", record=trajectory, slots=4, writers=("client",), readers=("server",)
    )


def read(folder: Path) -> None:
    """The process that reads fragments from another host into batches."""
    spec = pixel_spec()
    arena, wake_pipe = ShmArena(folder, "server", bridged=True), WakePipe(folder, "server")
    source, builder = SampleSource(spec, arena, 0), BatchBuilder(spec.trajectory, 1)
    print("ready", flush=True)
    while not source.closed:
        item = source.take()
        if item is None:
            wake_pipe.wait(1.0)
            continue
        builder.clear()
        builder.add(item.trajectory, item.info.length, item.info.env_steps)
        item.release()
        source.acknowledge(1)


def tcp_bandwidth(seconds: float) -> float:
    """GB/s of pixel fragments from one host to another."""
    spec = pixel_spec()
    plan = BridgePlan(samples=(SampleRoute(spec=spec, policy=""),))
    ticks = spec.trajectory.capacity
    frame = np.random.default_rng(0).integers(0, 255, (ticks, ROWS, 84, 84), np.uint8)
    with TwoHosts(plan, near=("client",), far=("server",)) as hosts:
        folder = hosts.folders["near"]
        arena, wake_pipe = ShmArena(folder, "client", bridged=True), WakePipe(folder, "client")
        sink = SampleSink(spec, arena, 0)
        there = ["--folder", str(hosts.folders["far"])]
        command = [sys.executable, __file__, "--role", "read", *there]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            other.stdout.readline()  # type: ignore[union-attr]

            def write() -> None:
                while (slot := sink.claim(0)) is None:
                    wake_pipe.wait(1.0)
                slot.trajectory.acted.fill(False)
                slot.trajectory.obs[...] = frame
                slot.commit(FragmentInfo(ticks))

            for _ in range(2 * spec.slots):
                write()
            times = times_of(write, seconds)
            sink.close()
    return frame.nbytes / statistics.fmean(times) / 1e3


def sample_bandwidth(arena: Arena, seconds: float) -> tuple[float, float]:
    """GB/s of pixel fragments through the stream (one write, one gather), and of two copies."""
    spec = pixel_spec()
    trajectory = spec.trajectory
    create_sample(spec, arena)
    sink, source = SampleSink(spec, arena, 0), SampleSource(spec, arena, 0)
    builder = BatchBuilder(trajectory, 1)
    frame = np.random.default_rng(0).integers(0, 255, (ROWS, 84, 84), np.uint8)
    ticks = trajectory.capacity
    nbytes = ticks * frame.nbytes

    def through() -> None:
        slot = sink.claim(0)
        assert slot is not None
        pixels = slot.trajectory.obs
        slot.trajectory.acted.fill(False)
        for tick in range(ticks):
            pixels[tick] = frame
        slot.commit(FragmentInfo(ticks))
        item = source.take()
        assert item is not None
        builder.clear()
        builder.add(item.trajectory, item.info.length, item.info.env_steps)
        item.release()

    whole = np.empty((ticks, *frame.shape), np.uint8)
    other = np.empty_like(whole)

    def copies() -> None:
        for tick in range(ticks):
            np.copyto(whole[tick], frame)
        np.copyto(other, whole)

    stream = statistics.median(times_of(through, seconds))
    plain = statistics.median(times_of(copies, seconds))
    return nbytes / stream / 1e3, nbytes / plain / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--write", action="store_true", help="write the table into results/")
    parser.add_argument("--role", choices=("serve", "pong", "work", "read"))
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--bridged", action="store_true")
    args = parser.parse_args()
    if args.role == "serve":
        return serve(args.folder, args.bridged)
    if args.role == "read":
        return read(args.folder)
    if args.role in ("pong", "work"):
        return pong(args.role == "work")
    rows: dict[str, list[float]] = {}
    folder = RunFolder()
    try:
        for _ in range(args.rounds):
            share = args.seconds / args.rounds
            for name, measure in (
                ("bare ping-pong", bare_ping_pong),
                ("ping-pong with the work of an inline round trip", working_ping_pong),
                ("inference round trip, shared memory", shm_round_trip),
                ("inference round trip, inline", inline_round_trip),
                ("inference round trip, tcp", tcp_round_trip),
            ):
                rows.setdefault(f"{name} (us)", []).append(statistics.median(measure(share)))
            for name, arena in (
                ("inline", HeapArena()),
                ("shared memory", ShmArena(folder.path, "client")),
            ):
                stream, plain = sample_bandwidth(arena, share)
                rows.setdefault(f"pixel fragments, {name} (GB/s)", []).append(stream)
                rows.setdefault("the same bytes by numpy.copyto (GB/s)", []).append(plain)
            rows.setdefault("pixel fragments, tcp (GB/s)", []).append(tcp_bandwidth(share))
    finally:
        folder.remove()
    table = [
        f"| {name} | {statistics.median(v):.4g} | {min(v):.4g} - {max(v):.4g} |"
        for name, v in rows.items()
    ]
    lines = ["| what | median of rounds | spread |", "|---|---|---|", *table]
    print("\n".join(lines))
    print(json.dumps({name: statistics.median(v) for name, v in rows.items()}))
    if args.write:
        write_result("streams", __doc__ or "", lines)
    return None


if __name__ == "__main__":
    main()
