"""What the policy worker adds to the bare forward pass: the Nature CNN, 8 actors of 8 rows each.

Measures, by turns in one process: the policy's forward pass over 64 rows that lie ready, and the
policy worker's own time for each 64 rows while eight processes send 8 rows each over shared memory,
again as soon as they are answered. The worker's time is all of its steps: taking, gathering, the
forward pass, checking, answering, waking. Requests that come too late for a batch make it smaller,
and a smaller batch costs more for each row; the worker waits for 64 rows (`inference.min_rows`).
Leaves out: environments, and time in which the worker waits.

    python benchmarks/bench_policy_worker.py [--seconds 5] [--rounds 5] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from results import write_result

from srl.arena.shm import RunFolder, ShmArena, WakePipe
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.streams.inference import InferenceClient, InferenceSpec, create_inference

ACTORS, ROWS = 8, 8
SERVER = "server"
AGENT = AgentSpec(obs=ArraySpec(shape=(84, 84), dtype="uint8", stack=4), action=Discrete(6))
SPEC = InferenceSpec(
    name="pixels",
    agent=AGENT,
    extras={"log_prob": ArraySpec(), "value": ArraySpec()},
    rows=ROWS,
    slots_per_client=1,
    clients=tuple(f"actor-{i}" for i in range(ACTORS)),
    servers=(SERVER,),
)


def ask(folder: Path, index: int) -> None:
    """An actor's process: asks again as soon as it is answered, until standard input ends."""
    name = SPEC.clients[index]
    client, wake_pipe = InferenceClient(SPEC, ShmArena(folder, name), index), WakePipe(folder, name)
    client.request(0).obs[...] = np.random.default_rng(index).integers(
        0, 255, (ROWS, *AGENT.obs.seen_shape), np.uint8
    )
    client.request(0).explore.fill(1.0)
    print("ready", flush=True)
    for _ in sys.stdin:
        end = time.monotonic() + 3600.0
        while time.monotonic() < end:
            client.submit(0, ROWS)
            while not client.poll():
                wake_pipe.wait(1.0)
            client.take(0)


class Bench:
    """A policy worker in this process, and its actors in others."""

    def __init__(self, folder: Path) -> None:
        import torch

        from srl.data.records import Snapshot
        from srl.launch.process.allocator import keep_large_buffers
        from srl.policies.actor_critic import ActorCritic, ActorCriticConfig
        from srl.services.parameters import ParameterReader, ParameterSpec, ParameterWriter
        from srl.services.worker_stats import StatsTable
        from srl.streams.inference import InferenceServer
        from srl.workers.configs import InferenceConfig
        from srl.workers.policy import PolicyWorker, ServedPolicy

        torch.set_num_threads(1)
        keep_large_buffers()
        arena = ShmArena(folder, SERVER)
        create_inference(SPEC, arena)
        self.wake_pipe = WakePipe(folder, SERVER)
        policy = ActorCritic(AGENT, ActorCriticConfig(normalize_returns=False))
        weights = {name: t.numpy() for name, t in policy.state_dict().items()}
        shapes = {name: (array.shape, str(array.dtype)) for name, array in weights.items()}
        parameters = ParameterSpec(policy="pixels", shapes=shapes)
        ParameterWriter(parameters, arena).publish(Snapshot(0, weights))
        served = ServedPolicy(
            name="pixels",
            policy=policy,
            server=InferenceServer(SPEC, arena, 0),
            parameters=ParameterReader(parameters, arena),
            generator=torch.Generator(),
            device=torch.device("cpu"),
        )
        config = InferenceConfig(min_rows=ACTORS * ROWS, max_wait_microseconds=10_000)
        self.worker = PolicyWorker("policy/0", [served], config)
        self.worker.stats = StatsTable(arena, ("policy/0",)).rows["policy/0"]
        rows = ACTORS * ROWS
        self._obs = torch.randint(0, 255, (rows, *AGENT.obs.seen_shape), dtype=torch.uint8)
        self._rest = (torch.zeros(rows, dtype=torch.bool), torch.ones(rows), None)
        self._torch, self._policy = torch, policy

    def bare(self, seconds: float) -> float:
        """Seconds of one forward pass."""
        generator, count, start = self._torch.Generator(), 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            with self._torch.inference_mode():
                self._policy.act(self._obs, None, *self._rest, generator)
            count += 1
        return spent / count

    def served(self, seconds: float) -> tuple[float, float]:
        """Seconds of the worker for each 64 rows, and rows of a batch."""
        from srl.workers.worker import PROGRESS

        row = self.worker.stats
        rows, batches, busy = row.get("count_rows"), 0, 0.0
        start = end = time.perf_counter()
        while end - start < seconds:
            begun = time.perf_counter()
            result = self.worker.step()
            end = time.perf_counter()
            if result is PROGRESS:
                busy += end - begun
                batches += 1
            else:
                self.wake_pipe.wait(result.timeout_seconds)  # type: ignore[union-attr]
        answered = row.get("count_rows") - rows
        return busy / answered * ACTORS * ROWS, answered / batches


def measure(seconds: float, rounds: int) -> list[dict[str, float]]:
    folder = RunFolder()
    actors = []
    try:
        bench = Bench(folder.path)
        for index in range(ACTORS):
            command = [sys.executable, __file__, "--folder", str(folder.path), "--actor"]
            actors.append(
                subprocess.Popen(
                    [*command, str(index)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                )
            )
        for actor in actors:
            actor.stdout.readline()  # type: ignore[union-attr]
        for actor in actors:
            actor.stdin.write(b"go\n")  # type: ignore[union-attr]
            actor.stdin.flush()  # type: ignore[union-attr]
        bench.served(1.0)
        found = []
        for _ in range(rounds):
            # Unanswered, the actors sleep meanwhile.
            bare = bench.bare(seconds)
            worker, rows = bench.served(seconds)
            found.append({"bare_ms": bare * 1e3, "worker_ms": worker * 1e3, "rows": rows})
        return found
    finally:
        for actor in actors:
            actor.kill()
            actor.wait()
        folder.remove()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the table into results/")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--actor", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.actor is not None:
        return ask(options.folder, options.actor)
    found = measure(options.seconds, options.rounds)
    added = [each["worker_ms"] / each["bare_ms"] - 1 for each in found]
    lines = [
        "| round | forward pass, ms | policy worker, ms for 64 rows | rows of a batch | added |",
        "|---|---|---|---|---|",
        *(
            f"| {n} | {x['bare_ms']:.2f} | {x['worker_ms']:.2f} | {x['rows']:.0f} | {a:+.1%} |"
            for n, (x, a) in enumerate(zip(found, added, strict=True), 1)
        ),
        "",
        f"Added: median {statistics.median(added):+.1%}, {min(added):+.1%} to {max(added):+.1%}.",
    ]
    print("\n".join(lines))
    if options.write:
        print(write_result("policy_worker", __doc__, lines))
    print(json.dumps({"added": statistics.median(added), "rounds": len(found)}))


if __name__ == "__main__":
    main()
