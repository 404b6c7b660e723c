"""How fast training is, three ways side by side: environment only, + inference, + training.

Measures environment steps per second in a steady window, after start-up. *Environment only* steps
the same groups with random actions in as many processes as there are actors. *+ inference* adds
policy workers, streams and fragments, with a reader that throws fragments away. *+ training* counts
the steps that went through a gradient update. Leaves out: start-up, evaluation, rendering.

    python benchmarks/bench_training.py cartpole --layout inline --seconds 15 [--write]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from results import write_result

from srl.data.tree import Tree
from srl.envs.check import random_actions
from srl.envs.protocol import EnvConfig
from srl.envs.registry import make_group, probe
from srl.experiment import Experiment, Graph, WorkerGroup, assign_agents
from srl.launch.launch import launch
from srl.launch.plan import available_cores, settle
from srl.overrides import parse_pairs
from srl.run import assemble
from srl.services.messages import Update
from srl.services.metrics import read_metrics
from srl.settings import convert, to_plain
from srl.workers.trainer import TrainerWorker
from srl.workers.wiring import Context
from srl.workers.worker import MADE, Progress, Wait, Worker

WARM_UP = 4.0


class Discard(Worker):
    """Stands where the trainer would, publishes the first weights, and throws fragments away."""

    def __init__(self, context: Context) -> None:
        self.name = context.name
        (self._policy,) = context.worker.trains
        (stream,) = context.worker.reads
        self._source = context.sample_source(stream)
        self._trainer = TrainerWorker.build(context)
        self._metrics = context.metrics
        self._env_steps = 0
        self._sent = 0.0
        self._published = False

    @classmethod
    def build(cls, context: Context) -> Discard:
        return cls(context)

    def step(self) -> Progress | Wait:
        if not self._published:
            self._published = True
            self._trainer.row = self.row
            return self._trainer.step()
        item = self._source.take()
        if item is None:
            return Wait("samples")
        self._env_steps += item.env_steps
        item.release()
        self._source.acknowledge(1)
        self.row.set("count_env_steps", self._env_steps)
        now = time.monotonic()
        if now - self._sent > 0.1:
            self._sent = now
            self._metrics.send(
                Update(self.name, self._policy, 0, self._env_steps, 0, 0.0, 0.0, 0.0, {})
            )
        return MADE

    def weights(self) -> dict[str, dict[str, np.ndarray]]:
        return self._trainer.weights()

    def state(self, exact: bool) -> Tree:
        return None


def without_training(graph: Graph) -> Graph:
    """The same graph with nobody learning, and no bound on policy age."""
    workers = {
        name: dataclasses.replace(group, kind=f"{Path(__file__).resolve()}:Discard")
        if group.trains
        else group
        for name, group in graph.workers.items()
    }
    streams = {
        name: dataclasses.replace(node, bounds_age=False) for name, node in graph.streams.items()
    }
    assert all(isinstance(group, WorkerGroup) for group in workers.values())
    return Graph(workers=workers, streams=streams)


def steady_rate(run_dir: Path) -> tuple[float, float]:
    """Steps per second and mean policy age, from the lines after warm-up."""
    lines = [line for line in read_metrics(run_dir) if line.get("env_steps", 0) > 0]
    start = lines[0]["seconds"] + WARM_UP
    window = [line for line in lines if line["seconds"] >= start]
    first, last = window[0], window[-1]
    rate = (last["env_steps"] - first["env_steps"]) / (last["seconds"] - first["seconds"])
    ages = [line["policy_age_mean"] for line in window if "policy_age_mean" in line]
    return rate, float(np.mean(ages)) if ages else 0.0


def measure(experiment: Experiment, seconds: float, dataflow: str = "") -> tuple[float, float]:
    with tempfile.TemporaryDirectory() as folder:
        changed = dataclasses.replace(
            experiment,
            steps=0,
            until="",
            seconds=seconds + WARM_UP + 3.0,
            dataflow=dataflow,
            logging=dataclasses.replace(experiment.logging, interval_seconds=0.25),
        )
        launch(changed, Path(folder) / "run", quiet=True)
        return steady_rate(Path(folder) / "run")


def step_only(config: EnvConfig, policies: dict, num_envs: int, seconds: float) -> None:
    """One process of the environment-only measurement."""
    spec = probe(config)
    lanes = assign_agents(policies, list(spec.agents))
    group = make_group(config, num_envs=num_envs, lanes=lanes, on_call=lambda call, index: None)
    rng = np.random.default_rng(0)
    steps = group.reset(0)
    actions = [random_actions(spec, steps, lanes, rng) for _ in range(64)]
    masked = any(agent.has_action_mask for agent in spec.agents.values())
    end, count = 0.0, 0
    start = time.perf_counter()
    while True:
        for choice in actions:
            steps = group.step(random_actions(spec, steps, lanes, rng) if masked else choice)
            count += num_envs
        now = time.perf_counter()
        if end == 0.0 and now - start > 1.0:
            start, count, end = now, 0, now + seconds
        elif end and now > end:
            break
    print(json.dumps({"rate": count / (now - start)}), flush=True)
    group.close()


def env_only(experiment: Experiment, seconds: float) -> float:
    settled = settle(experiment, available_cores(), "cpu")
    actors = settled.actor.count
    envs = settled.actor.envs // actors // settled.actor.groups
    order = {
        "env": to_plain(experiment.env),
        "policies": to_plain(experiment.policies),
        "envs": envs,
        "seconds": seconds,
    }
    children = [
        subprocess.Popen(
            [sys.executable, __file__, "env-only", "--order", json.dumps(order)],
            stdout=subprocess.PIPE,
        )
        for _ in range(actors)
    ]
    return sum(json.loads(child.communicate()[0].splitlines()[-1])["rate"] for child in children)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("recipe", nargs="?", default="cartpole")
    parser.add_argument("--layout", default="inline,shared,serial", help="one or more, by comma")
    parser.add_argument("--seconds", type=float, default=15.0, help="the steady window")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--write", action="store_true", help="write the table into results/")
    parser.add_argument("--order", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.order:
        order = json.loads(args.order)
        made = convert({"env": order["env"], "policies": order["policies"]}, Experiment, "")
        return step_only(made.env, made.policies, order["envs"], order["seconds"])
    table = ["| layout | environment only | + inference | + training | policy age |"]
    table.append("|---|---|---|---|---|")
    found: dict[str, list[tuple[float, float, float, float]]] = {}
    for _ in range(args.rounds):
        for layout in args.layout.split(","):
            experiment = assemble(args.recipe, layout=layout, set=parse_pairs(args.set, "--set"))
            alone = env_only(experiment, args.seconds / 3)
            hook = f"{Path(__file__).resolve()}:without_training"
            inferred, _ = measure(experiment, args.seconds, hook)
            trained, age = measure(experiment, args.seconds)
            found.setdefault(layout, []).append((alone, inferred, trained, age))
            print(layout, f"{alone:.0f} {inferred:.0f} {trained:.0f} age {age:.2f}", flush=True)
    for layout, rows in found.items():
        columns = np.array(rows)
        middle, low, high = (f(columns, axis=0) for f in (np.median, np.min, np.max))
        cells = [f"{middle[i]:,.0f} ({low[i]:,.0f} - {high[i]:,.0f})" for i in range(3)]
        table.append(f"| {layout} | {' | '.join(cells)} | {middle[3]:.2f} |")
    print("\n".join(table))
    print(json.dumps({layout: np.median(rows, axis=0).tolist() for layout, rows in found.items()}))
    if args.write:
        write_result(f"training_{args.recipe.replace('/', '-')}", __doc__ or "", table)
    return None


if __name__ == "__main__":
    main()
