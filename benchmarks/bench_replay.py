"""How fast replay workers are, and how much memory they take.

Measures: environment steps stored and windows drawn per second over 1, 2 and 4 replay workers, each
a process, between one process that plays 200 actors and one that plays the trainer; and the peak
memory (PSS) of a process that holds a million frames of Pong, beside the bytes of those frames.
Fragments are 8 ticks of one environment with frames of 84 x 84; batches are 32 windows of two
stacks of four frames, one for each 4 steps. Leaves out: environments, inference and learning; all
processes share the machine's cores, those that play actors and trainer too.

    python benchmarks/bench_replay.py [--seconds 10] [--frames 1000000] [--write]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from results import write_result

from srl.algorithms.off_policy_config import ReplayConfig
from srl.arena.arena import HeapArena
from srl.arena.shm import RunFolder, ShmArena, WakePipe
from srl.data.batching import BatchBuilder
from srl.data.replay import Replay
from srl.data.samplers import sampler_maker
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec, copy_trajectory
from srl.services.worker_stats import StatsTable
from srl.streams.sample import SampleSink, SampleSource, SampleSpec, create_sample
from srl.streams.sample_queue import FragmentInfo
from srl.workers.replay import ReplayWorker
from srl.workers.worker import DONE, Wait

ACTORS, LENGTH, WINDOWS, STEPS_PER_BATCH, STORED = 200, 8, 32, 4, 100_000
FRAME = 84 * 84
ROLES = ("shard", "actors", "memory")


def trajectory(length: int, envs: int) -> TrajectorySpec:
    obs = ArraySpec(shape=(84, 84), dtype="uint8", stack=4)
    agent = AgentSpec(obs=obs, action=Discrete(6))
    return TrajectorySpec(length=length, rows=envs, envs=envs, agent=agent)


def actors_stream(shard: int, shards: int) -> SampleSpec:
    return SampleSpec(
        name=f"actors@{shard}",
        record=trajectory(LENGTH, 1),
        slots=2 * ACTORS // shards,
        writers=("actors",) * (ACTORS // shards),
        readers=(f"shard-{shard}",),
    )


def batches_stream(shards: int) -> SampleSpec:
    return SampleSpec(
        name="batches",
        record=trajectory(1, WINDOWS),
        slots=16,
        writers=tuple(f"shard-{shard}" for shard in range(shards)),
        readers=("trainer",),
        fragments_per_batch=8,
    )


def keep(folder: Path, shard: int, shards: int) -> None:
    """A replay worker's process."""
    arena, wake_pipe = ShmArena(folder, f"shard-{shard}"), WakePipe(folder, f"shard-{shard}")
    worker = ReplayWorker(
        f"replay/{shard}",
        SampleSource(actors_stream(shard, shards), arena, 0),
        [SampleSink(batches_stream(shards), arena, shard)],
        ReplayConfig(capacity_steps=STORED, batches_per_step=1 / STEPS_PER_BATCH),
        share=1 / shards,
        seed=shard,
        shard=shard,
    )
    worker.stats = StatsTable(HeapArena(), (worker.name,)).rows[worker.name]
    print("ready", flush=True)
    while (result := worker.step()) is not DONE:
        if isinstance(result, Wait):
            wake_pipe.wait(result.timeout_seconds)
    print(worker.stats.get("count_inserted"), worker.stats.get("count_sampled"), flush=True)
    worker.close()


def act(folder: Path, shards: int) -> None:
    """The process that plays all actors: each writes its next fragment where there is room."""
    arena, wake_pipe = ShmArena(folder, "actors"), WakePipe(folder, "actors")
    written = fragment(np.random.default_rng(0), 1)
    sinks = [
        SampleSink(actors_stream(shard, shards), arena, number)
        for shard in range(shards)
        for number in range(ACTORS // shards)
    ]
    print("ready", flush=True)
    sequences = [0] * len(sinks)
    while not all(sink.closed for sink in sinks):
        wrote = False
        for number, sink in enumerate(sinks):
            slot = None if sink.closed else sink.claim(0)
            if slot is None:
                continue
            copy_trajectory(written, slot.trajectory)
            sequences[number] += 1
            slot.commit(FragmentInfo(LENGTH + 1, LENGTH, sink.origin(0), sequences[number]))
            wrote = True
        if not wrote:
            wake_pipe.wait(0.01)


def fragment(rng: np.random.Generator, envs: int):  # type: ignore[no-untyped-def]
    found = trajectory(LENGTH, envs).allocate()
    found.obs[...] = rng.integers(0, 255, found.obs.shape, np.uint8)
    for name in ("is_first", "terminated", "truncated"):
        getattr(found, name).fill(False)
    found.acted.fill(True)
    found.alive.fill(True)
    found.policy_version.fill(0)
    return found


def speed(shards: int, seconds: float) -> dict[str, float]:
    """Steps stored and windows drawn per second."""
    specs = [actors_stream(shard, shards) for shard in range(shards)]
    run = RunFolder()
    processes: list[subprocess.Popen[str]] = []
    try:
        arena, wake_pipe = ShmArena(run.path, "trainer"), WakePipe(run.path, "trainer")
        batches = batches_stream(shards)
        for spec in (*specs, batches):
            create_sample(spec, arena)
        there = [sys.executable, __file__, "--folder", str(run.path), "--shards", str(shards)]
        commands = [[*there, "--role", "shard", "--shard", str(shard)] for shard in range(shards)]
        processes += [
            subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            for command in [*commands, [*there, "--role", "actors"]]
        ]
        for process in processes:
            assert process.stdout is not None
            process.stdout.readline()
        source = SampleSource(batches, arena, 0)
        builder = BatchBuilder(batches.trajectory, batches.fragments_per_batch)
        windows = steps = 0
        begun = time.perf_counter()
        while (now := time.perf_counter()) < begun + seconds:
            item = source.take()
            if item is None:
                wake_pipe.wait(0.05)
                continue
            builder.add(item.trajectory, item.info.length, item.info.env_steps)
            steps += item.info.env_steps
            windows += WINDOWS
            item.release()
            source.acknowledge(1)
            if builder.full:
                builder.clear()
        source.close()
        for process in processes:
            process.wait(60)
    finally:
        for process in processes:
            process.kill()
            process.wait()
        run.remove()
    took = now - begun
    return {"shards": shards, "inserts": steps / took, "samples": windows / took}


def hold(frames: int) -> None:
    """The process that holds frames; it prints its peak memory over the bytes of the frames."""
    envs = 8
    stored, drawn = trajectory(LENGTH, envs), trajectory(1, WINDOWS)
    make = sampler_maker("uniform", seed=1, exponent=0.0, length=1, uses=1)
    replay = Replay(stored, drawn, frames, make)
    new, into = fragment(np.random.default_rng(0), envs), drawn.allocate()
    for sequence in range(replay.capacity + 10):
        replay.insert(new, stored.capacity, 0, sequence)
        if replay.can_draw:
            replay.draw(into)
    text = Path("/proc/self/smaps_rollup").read_text()
    pss = next(int(line.split()[1]) for line in text.splitlines() if line.startswith("Pss:"))
    print(json.dumps({"pss": 1024 * pss, "frames": replay.stored_steps * FRAME}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--write", action="store_true", help="write the table into results/")
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--shard", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--shards", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.role == "shard":
        return keep(given.folder, given.shard, given.shards)
    if given.role == "actors":
        return act(given.folder, given.shards)
    if given.role == "memory":
        return hold(given.frames)
    found = [speed(shards, given.seconds) for shards in (1, 2, 4)]
    command = [sys.executable, __file__, "--role", "memory", "--frames", str(given.frames)]
    held = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    ratio = held["pss"] / held["frames"]
    lines = ["| replay workers | steps stored /s | windows drawn /s |", "|---|---|---|"]
    lines += [f"| {x['shards']:.0f} | {x['inserts']:,.0f} | {x['samples']:,.0f} |" for x in found]
    lines += ["", f"{given.frames:,} frames: {held['pss']:,} bytes (PSS), {ratio:.3f} of theirs."]
    print("\n".join(lines))
    print(json.dumps({"replay": found, "pss_over_frames": round(ratio, 4)}))
    if given.write:
        print(write_result("replay", __doc__ or "", lines))
    return None


if __name__ == "__main__":
    main()
