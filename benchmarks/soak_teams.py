"""Whether teams learn: simple_spread by MAPPO, VDN and QMIX, with memory and without, by seed.

Three agents have to cover three landmarks. Each recipe is trained to its end, and then plays
greedily. Its mean return must be above a bound that is far above that of random actions. The
two-step game of the QMIX paper must end at 7 by VDN and at 8 by QMIX. Leaves out: how fast it
learns.

    python benchmarks/soak_teams.py [--cases mappo qmix] [--seeds 5] [--layout inline] [--write]
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from results import write_result

import srl

EPISODES = 100


@dataclass(frozen=True)
class Case:
    """One recipe with some settings changed, and what it must reach."""

    recipe: str
    bound: float
    settings: dict[str, Any] = field(default_factory=dict)


_WINDOWS = {"network.recurrent": "gru", "algorithm.sequence_length": 8, "algorithm.burn_in": 4}
CASES = {
    "two_step_vdn": Case("two_step_vdn", 7.0),
    "two_step_qmix": Case("two_step_qmix", 8.0),
    "mappo": Case("simple_spread_mappo", -22.0),
    "mappo_memory": Case("simple_spread_mappo", -22.0, {"network.recurrent": "lstm"}),
    "mappo_observations": Case(
        "simple_spread_mappo", -22.0, {"algorithm.critic_input": "observations"}
    ),
    "vdn": Case("simple_spread_vdn", -22.0),
    "vdn_memory": Case("simple_spread_vdn", -22.0, _WINDOWS),
    "qmix": Case("simple_spread_qmix", -22.0),
    "qmix_memory": Case("simple_spread_qmix", -22.0, _WINDOWS),
}


@dataclass(frozen=True)
class Outcome:
    """One seed of a case."""

    case: str
    seed: int
    env_steps: int
    seconds: float
    score: float
    random: float

    @property
    def reached(self) -> bool:
        """Whether it is as good as it must be; the two-step game has one right return."""
        bound = CASES[self.case].bound
        return self.score == bound if bound > 0 else self.score > bound

    def row(self) -> str:
        """Its line in the table."""
        return (
            f"| {self.case} | {self.seed} | {self.env_steps:,} | {self.seconds:.0f} | "
            f"{self.score:.1f} | {self.random:.1f} | {'yes' if self.reached else 'no'} |"
        )


def run(name: str, seed: int, layout: str) -> Outcome:
    """Trains one seed of a case to its end, and evaluates it."""
    case = CASES[name]
    with tempfile.TemporaryDirectory() as folder:
        trained = srl.train(
            case.recipe,
            run_dir=Path(folder) / "run",
            layout=layout,
            seed=seed,
            quiet=True,
            set=case.settings,
        )
        score = trained.evaluate(EPISODES).mean
        random = trained.evaluate(EPISODES, policies={"default": "random"}).mean
        summary = trained.summary
        return Outcome(name, seed, summary.env_steps, summary.seconds, score, random)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=CASES)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--layout", default="inline")
    parser.add_argument("--write", action="store_true", help="write into benchmarks/results")
    options = parser.parse_args()
    outcomes = []
    for name in options.cases:
        for seed in range(1, options.seeds + 1):
            outcomes.append(run(name, seed, options.layout))
            print(outcomes[-1].row(), file=sys.stderr, flush=True)
    failed = [outcome for outcome in outcomes if not outcome.reached]
    lines = [
        f"{len(outcomes)} runs, {len(failed)} below their bound.",
        "",
        "| case | seed | environment steps | seconds | return | at random | reached |",
        "|---|--:|--:|--:|--:|--:|---|",
        *(outcome.row() for outcome in outcomes),
    ]
    if options.write:
        print(write_result("soak_teams", __doc__, lines), file=sys.stderr)
    print("\n".join(lines), file=sys.stderr)
    print(json.dumps({"soak": "soak_teams", "runs": [asdict(o) for o in outcomes]}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
