"""How fast the networks are: the Nature CNN as we run it, beside the same network as torch's
tutorials write it.

Measures, each contender in a process of its own, by turns: one optimizer step of PPO from the
rollout's bytes to moved weights (gather, forward, objective, backward, clipping, Adam), and one
forward pass that chooses actions. Leaves out: environments, streams, and the rollout itself. The
plain contender has the same layers, the same objective and batch, in torch's default memory format
and with the default allocator.

    python benchmarks/bench_kernels.py [--rounds 5] [--threads 1] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

import numpy as np
import torch
from plain_torch import EPS, Call, PlainNature
from results import write_result

from srl.algorithms.ppo.config import PPOConfig
from srl.algorithms.ppo.learner import PPO
from srl.data.records import SampleBatch
from srl.data.spec import AgentSpec, ArraySpec, Discrete
from srl.data.trajectory import TrajectorySpec
from srl.launch.process.allocator import keep_large_buffers
from srl.policies.actor_critic import ActorCritic, ActorCriticConfig

ROWS, TICKS = 8, 128
TRAIN_BATCHES, ACT_BATCHES = (256, 1024), (8, 64)


class Ours:
    """The policy and the learner of SRL."""

    agent = AgentSpec(obs=ArraySpec(shape=(84, 84), dtype="uint8", stack=4), action=Discrete(6))
    rows = ROWS

    def __init__(self) -> None:
        keep_large_buffers()
        self.policy = ActorCritic(self.agent, ActorCriticConfig(normalize_returns=False))
        self.generator = torch.Generator().manual_seed(0)

    def training(self, size: int, total: int) -> Call:
        """One epoch over `total` samples in minibatches of `size`."""
        ticks, actions = total // self.rows, self.agent.action.n
        config = PPOConfig(rollout_length=ticks, epochs=1, minibatches=total // size, adam_eps=EPS)
        learner = PPO(self.policy, config)
        extras = self.policy.extras_spec
        spec = TrajectorySpec(
            length=ticks, rows=self.rows, envs=self.rows, agent=self.agent, extras=extras
        )
        data, rng = spec.allocate(), np.random.default_rng(0)
        data.obs[...] = self.observations(*data.obs.shape).numpy()
        data.action[...] = rng.integers(0, actions, data.action.shape)
        data.reward[...] = rng.normal(size=data.reward.shape)
        data.acted[...] = data.alive[...] = True
        data.extras["log_prob"][...] = -np.log(actions)
        batch = SampleBatch(data=data)
        return lambda: list(learner.update(batch, 0.0))

    def observations(self, *shape: int) -> torch.Tensor:
        """Random ones."""
        return torch.randint(0, 256, shape, dtype=torch.uint8)

    def acting(self, size: int) -> Call:
        """Actions, their log probabilities and values for `size` rows."""
        obs = self.observations(size, *self.agent.obs.seen_shape)
        first, explore = torch.zeros(size, dtype=torch.bool), torch.ones(size)
        with torch.inference_mode():
            self.policy.pack()

        def call() -> object:
            with torch.inference_mode():
                return self.policy.act(obs, None, first, explore, None, self.generator)

        return call


class OurTowers(Ours):
    """Two towers of 64x64 over four numbers."""

    agent = AgentSpec(obs=ArraySpec(shape=(4,)), action=Discrete(2))
    rows = 64

    def observations(self, *shape: int) -> torch.Tensor:
        """Random ones."""
        return torch.randn(shape)


def rate(call: Call, per_call: int, seconds: float) -> float:
    """Samples per second, after two calls that do not count."""
    call(), call()
    calls, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        call()
        calls += 1
    return per_call * calls / passed


def measure(name: str, threads: int) -> dict[str, float]:
    """What one contender reaches in this process: samples per second by what is done."""
    torch.set_num_threads(threads)
    torch.manual_seed(0)
    contender = {"ours": Ours, "plain": PlainNature}[name]()
    found = {}
    for size in TRAIN_BATCHES:
        found[f"training {size}"] = rate(contender.training(size, ROWS * TICKS), ROWS * TICKS, 3.0)
    for size in ACT_BATCHES:
        found[f"acting {size}"] = rate(contender.acting(size), size, 1.5)
    return found


def main() -> None:
    """Runs the contenders by turns and prints ratios."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--write", action="store_true", help="write benchmarks/results/")
    parser.add_argument("--contender", choices=["ours", "plain"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.contender:
        print(json.dumps(measure(options.contender, options.threads)))
        return
    rounds: list[dict[str, dict[str, float]]] = []
    for number in range(options.rounds):
        rounds.append({})
        for name in ("ours", "plain"):
            print(f"round {number + 1} of {options.rounds}: {name}", file=sys.stderr)
            command = [sys.executable, __file__, "--contender", name]
            command += ["--threads", str(options.threads)]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            rounds[-1][name] = json.loads(done.stdout)
    lines = [
        f"{options.threads} thread(s), {options.rounds} rounds. Samples per second, median;",
        "the ratio is that of each round: median (least to most).",
        "",
        "| what | ours | plain torch | ratio |",
        "|---|---|---|---|",
    ]
    summary: dict[str, float] = {}
    for what in rounds[0]["ours"]:
        ours, plain = ([r[name][what] for r in rounds] for name in ("ours", "plain"))
        ratios = sorted(a / b for a, b in zip(ours, plain, strict=True))
        summary[what] = round(statistics.median(ratios), 3)
        lines.append(
            f"| {what} | {statistics.median(ours):,.0f} | {statistics.median(plain):,.0f} | "
            f"{summary[what]:.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        )
    print("\n".join(lines), file=sys.stderr)
    print(json.dumps({"benchmark": "kernels", "threads": options.threads, "ratios": summary}))
    if options.write:
        print(write_result(f"kernels_{options.threads}thread", __doc__, lines), file=sys.stderr)


if __name__ == "__main__":
    main()
