"""How fast streams are: inference round trips and sample bandwidth, for each carrier.

Measures: the round trip of a small request (8 rows of float32[4]) to an echo server, beside a bare
blocking ping-pong between two processes in the same run; and pixel fragments written into slots and
gathered into a batch, beside `numpy.copyto` of the same bytes. Leaves out: environments, networks,
and any work that would overlap with the waiting.

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
from pathlib import Path

import numpy as np
from results import write_result

from srl.arena.arena import Arena, HeapArena
from srl.arena.shm import Bell, RunFolder, ShmArena
from srl.data.batching import BatchBuilder
from srl.data.records import InferenceReply
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.streams.inference import InferenceClient, InferenceServer, InferenceSpec, create_inference
from srl.streams.sample import SampleSink, SampleSource, SampleSpec, create_sample

ROWS = 8


def inference_spec(server: str) -> InferenceSpec:
    return InferenceSpec(
        name="echo",
        agent=AgentSpec(obs=ArraySpec(shape=(4,)), action=Discrete(2)),
        extras={"value": ArraySpec()},
        rows=ROWS,
        lanes_per_client=1,
        clients=("client",),
        servers=(server,),
    )


def answer(server: InferenceServer) -> bool:
    lanes = server.poll()
    if not len(lanes):
        return False
    request, counts = server.gather(lanes)
    reply = InferenceReply(
        action=np.zeros(len(request.is_first), np.int64),
        state=None,
        extras={"value": request.obs[:, 0]},
        policy_version=1,
    )
    server.answer(lanes, counts, reply)
    return True


def serve(folder: Path) -> None:
    """The echo server's process."""
    arena, bell = ShmArena(folder, "server"), Bell(folder, "server")
    server = InferenceServer(inference_spec("server"), arena, 0)
    print("ready", flush=True)
    while not server.closed:
        if not answer(server):
            bell.wait(1.0)


def pong() -> None:
    """The other end of the bare ping-pong: one byte back for each byte."""
    while byte := os.read(0, 1):
        os.write(1, byte)


def times_of(call: object, seconds: float) -> list[float]:
    found = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        call()  # type: ignore[operator]
        found.append((time.perf_counter() - start) * 1e6)
    return found[len(found) // 10 :]


def bare_ping_pong(seconds: float) -> list[float]:
    with subprocess.Popen(
        [sys.executable, __file__, "--role", "pong"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        to, back = other.stdin.fileno(), other.stdout.fileno()  # type: ignore[union-attr]

        def call() -> None:
            os.write(to, b"x")
            os.read(back, 1)

        call()
        found = times_of(call, seconds)
        other.stdin.close()  # type: ignore[union-attr]
    return found


def shm_round_trip(seconds: float) -> list[float]:
    folder = RunFolder()
    try:
        arena = ShmArena(folder.path, "client")
        create_inference(inference_spec("server"), arena)
        bell = Bell(folder.path, "client")
        client = InferenceClient(inference_spec("server"), arena, 0)
        client.request(0).explore.fill(1.0)
        command = [sys.executable, __file__, "--role", "serve", "--folder", str(folder.path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
            other.stdout.readline()  # type: ignore[union-attr]
            obs = np.ones((ROWS, 4), np.float32)

            def call() -> None:
                client.request(0).obs[...] = obs
                client.submit(0, ROWS)
                while not client.poll():
                    bell.wait(1.0)
                client.take(0)

            found = times_of(call, seconds)
            client.close()
        return found
    finally:
        folder.remove()


def inline_round_trip(seconds: float) -> list[float]:
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

    return times_of(call, seconds)


def sample_bandwidth(arena: Arena, seconds: float) -> tuple[float, float]:
    """GB/s of pixel fragments through the stream (one write, one gather), and of two copies."""
    trajectory = TrajectorySpec(
        length=128,
        rows=ROWS,
        envs=ROWS,
        agent=AgentSpec(obs=ArraySpec(shape=(84, 84), dtype="uint8"), action=Discrete(6)),
        extras={"value": ArraySpec()},
    )
    spec = SampleSpec(
        name="pixels", trajectory=trajectory, slots=4, writers=("client",), readers=("client",)
    )
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
        slot.commit(ticks, 0)
        item = source.take()
        assert item is not None
        builder.clear()
        builder.add(item.item_id, item.trajectory, item.length, item.env_steps)
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
    parser.add_argument("--role", choices=("serve", "pong"))
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    if args.role == "serve":
        return serve(args.folder)
    if args.role == "pong":
        return pong()
    rows: dict[str, list[float]] = {}
    folder = RunFolder()
    try:
        for _ in range(args.rounds):
            share = args.seconds / args.rounds
            for name, measure in (
                ("bare ping-pong", bare_ping_pong),
                ("inference round trip, shared memory", shm_round_trip),
                ("inference round trip, inline", inline_round_trip),
            ):
                rows.setdefault(f"{name} (us)", []).append(statistics.median(measure(share)))
            for name, arena in (
                ("inline", HeapArena()),
                ("shared memory", ShmArena(folder.path, "client")),
            ):
                stream, plain = sample_bandwidth(arena, share)
                rows.setdefault(f"pixel fragments, {name} (GB/s)", []).append(stream)
                rows.setdefault("the same bytes by numpy.copyto (GB/s)", []).append(plain)
    finally:
        folder.remove()
    table = [
        f"| {name} | {statistics.median(v):.1f} | {min(v):.1f} - {max(v):.1f} |"
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
