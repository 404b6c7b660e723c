"""Whether an exported policy does what `policy.act` does, for every recipe.

Every policy of each recipe gets random weights, is exported to ONNX, and answers the recipe's own
environments beside `policy.act` for 1,000 steps, episode ends and recurrent state included. Greedy
actions must be equal (real numbers, values and log probabilities within 1e-4). Recipes whose
packages are not installed are listed and left out.

    python benchmarks/soak_export.py [--steps 1000] [--recipes cartpole memory_r2d2]
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from srl.acting import ActingPolicy
from srl.casting import assign_agents
from srl.data.tree import flatten
from srl.envs.registry import make_group, probe_both
from srl.envs.spaces import obs_starts
from srl.errors import MissingDependency
from srl.export.files import export_policy
from srl.launch.plan.build import filled_in, plan_policies
from srl.policies.protocol import Policy, PolicyOutput
from srl.policies.random import RandomPolicy
from srl.recipes import RECIPES, find_recipe
from srl.workers.wiring import build_policy

TOLERANCE = 1e-4
ENVS = 2
_DTYPES = {"tensor(float)": np.float32, "tensor(uint8)": np.uint8, "tensor(int8)": np.int8}


class Checked:
    """One policy of a recipe, beside its export."""

    def __init__(self, acting: ActingPolicy, file: Path) -> None:
        self.acting = acting
        self.session = onnxruntime.InferenceSession(export_policy(acting, file))
        self.names = [port.name for port in self.session.get_outputs()]
        self.state: dict[str, np.ndarray] = {}
        self.worst = 0.0
        self.differing = 0
        starts = flatten(obs_starts(acting.spaces.observation))
        self.extras: dict[str, np.ndarray] = {}
        self._note_extras(acting.module)
        self.starts = {path: start for path, start in starts.items() if start.any()}

    def act(self, step: Any) -> np.ndarray:
        """Compares the answers to one tick, and returns the actions of the policy as stored."""
        acting, rows = self.acting, len(step.is_first)
        if acting._runner is None:
            acting._start(rows)
        runner = acting._runner
        assert runner is not None
        mask = step.action_mask
        stored = runner.act(step.obs, step.is_first, mask, np.ones(rows, bool))
        expected = acting._actions.batch(stored)
        given = {"is_first": step.is_first}
        for path, leaf in flatten(step.obs).items():
            # A group stores categories from 0 on; an export takes them as the environment does.
            shown = leaf + self.starts[path].astype(leaf.dtype) if path in self.starts else leaf
            given[f"obs.{path}" if path else "obs"] = np.ascontiguousarray(shown)
        if mask is not None:
            given["action_mask"] = mask
        for port in self.session.get_inputs():
            if port.name.startswith("state."):
                zeros = np.zeros((rows, *port.shape[1:]), _DTYPES[port.type])
                given[port.name] = self.state.get(port.name, zeros)
        found = dict(zip(self.names, self.session.run(self.names, given), strict=True))
        self.state = {
            name.removeprefix("next_"): value
            for name, value in found.items()
            if name.startswith("next_state.")
        }
        for path, kept in flatten(runner._state or {}).items():
            self.compare(found[f"next_state.memory.{path}"], kept)
        for name, value in self.extras.items():
            self.compare(found[name], value)
        if expected.dtype.kind == "f":
            self.compare(found["action"], expected)
        else:
            self.differing += int((found["action"] != expected).sum())
        return stored

    def _note_extras(self, policy: Policy) -> None:
        """Keeps what the policy reports beside each action: log probability and value."""
        usual = policy.act

        def act(*args: Any) -> PolicyOutput:
            found = usual(*args)
            self.extras = {key: x.numpy().copy() for key, x in flatten(found.extras).items()}
            return found

        policy.act = act  # type: ignore[method-assign]

    def compare(self, found: np.ndarray, expected: np.ndarray) -> None:
        """Keeps the largest difference, relative to numbers that are larger than 1."""
        difference = np.abs(found - expected) / np.maximum(1.0, np.abs(expected))
        self.worst = max(self.worst, float(difference.max()))


def check(name: str, steps: int, folder: Path) -> tuple[float, int]:
    """The largest difference of numbers, and how many choices differ."""
    experiment = filled_in(find_recipe(name)())
    spec, spaces = probe_both(experiment.env)
    agents = assign_agents(experiment.policies, list(spec.agents))
    found = {}
    for policy_name, plan in plan_policies(experiment, spec).items():
        torch.manual_seed(1)
        policy = build_policy(plan, 1)
        if isinstance(policy, RandomPolicy):
            continue
        with torch.no_grad():
            for parameter in policy.parameters():
                parameter.add_(torch.randn_like(parameter) * 0.02)
        policy.pack()
        acting = ActingPolicy(policy, policy_name, spaces[agents[policy_name][0]])
        found[policy_name] = Checked(acting, folder / f"{name}-{policy_name}.onnx")
    env = dataclasses.replace(experiment.env, threads=1)
    group = make_group(
        env,
        num_envs=ENVS,
        policy_agents={policy: agents[policy] for policy in found},
        on_call=lambda call, index: None,
    )
    try:
        seen = group.reset(0)
        for _ in range(steps):
            seen = group.step({policy: found[policy].act(seen[policy]) for policy in found})
    finally:
        group.close()
    worst = max(checked.worst for checked in found.values())
    return worst, sum(checked.differing for checked in found.values())


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--recipes", nargs="*", default=list(RECIPES))
    args = parser.parse_args()
    torch.set_num_threads(1)
    failed = []
    for name in args.recipes:
        begun = time.monotonic()
        with tempfile.TemporaryDirectory() as folder:
            try:
                worst, differing = check(name, args.steps, Path(folder))
            except MissingDependency as error:
                print(f"{name:28} left out: {error}", flush=True)
                continue
        good = worst <= TOLERANCE and not differing
        seconds = time.monotonic() - begun
        print(
            f"{name:28} {'same' if good else 'DIFFERS'}  largest difference {worst:.1e}, "
            f"{differing} other choices, {args.steps} steps, {seconds:.0f} s",
            flush=True,
        )
        if not good:
            failed.append(name)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
