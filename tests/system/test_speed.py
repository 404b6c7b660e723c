"""A guard against lost speed: the whole system beside a plain loop over the same parts.

The loop steps the environments, asks the policy and learns, in one thread without workers and
streams. Both are measured in turn in one test, so a slow or busy machine slows both. The committed
ratios are in `benchmarks/guard.json`; only less than half of one fails, in the best of three.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from srl.bench.bench import settled
from srl.bench.costs import plain_loop
from srl.bench.trial import run_trial
from srl.bench.workloads import find_target

pytestmark = pytest.mark.guard

GUARD = json.loads((Path(__file__).parents[2] / "benchmarks" / "guard.json").read_text())
ATTEMPTS = 3
SECONDS = 3.0


@pytest.mark.parametrize("workload", GUARD["ratios"])
def test_training_is_not_much_slower_than_its_parts(workload: str, shm: Path) -> None:
    experiment, device = settled(find_target(workload, "auto", {}))
    wanted = GUARD["ratios"][workload]
    ratios = []
    for _ in range(ATTEMPTS):
        bare = plain_loop(experiment, device, SECONDS)
        whole = run_trial(experiment, seconds=SECONDS, warmup=0.5).steps_per_second
        ratios.append(whole / bare)
        print(f"{workload}: {whole:,.0f} steps/s, the plain loop {bare:,.0f}: {ratios[-1]:.2f}")
        if ratios[-1] >= wanted / 2:
            return
    pytest.fail(f"{workload}: {ratios} times the plain loop; {wanted} is committed")
