"""Whether a run is solved whatever is killed: CartPole with 4 actors, 2 policy workers and 2
trainers, each a process of which one is killed (-9) or stopped (-STOP) every few seconds.

Each run has its own seed for what is done to whom. It must reach a return of 475, every fragment
must be accounted for, no reader may see a version go backwards, and no process and no shared memory
may be left. The longest standstill is the time in which no newer weights were published, start-up
included; mostly it is the time until a trainer is started again. In the layout `remote` actors and
policy workers are on hosts of their own (folders of this machine), and bridges and agents are
killed, too, at half the pace: with an agent all of its workers go. Leaves out: the death of the
command itself, and several machines.

    python benchmarks/soak_chaos.py [--runs 20] [--remote 5] [--seed 1] [--seconds 2 5]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from results import write_result

from srl.arena.shm import ROOT_VARIABLE, shm_root

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from chaos import REMOTE, SETTINGS, Chaos, Versions, accounts, problems
from harness import Training, read_summary
from test_trainer_hosts import Versions as Everywhere

LIMIT_SECONDS = 600.0
ROOT = shm_root()


@dataclass(frozen=True)
class Outcome:
    """One run."""

    layout: str
    seed: int
    seconds: float
    standstill: float
    strikes: list[str]
    env_steps: int
    dropped: int
    lost_updates: int
    problems: list[str]

    def row(self) -> str:
        """Its line in the table."""
        kills = sum("KILL" in strike for strike in self.strikes)
        trainers = sum("trainer" in strike for strike in self.strikes)
        hosts = sum("bridge-" in strike or "agent-" in strike for strike in self.strikes)
        return (
            f"| {self.layout} | {self.seed} | {self.seconds:.0f} | {self.standstill:.0f} | "
            f"{kills} | {len(self.strikes) - kills} | {trainers} | {hosts} | {self.env_steps:,} | "
            f"{self.dropped} | {self.lost_updates} | {'; '.join(self.problems) or 'none'} |"
        )


def run(layout: str, seed: int, pauses: tuple[float, float]) -> Outcome:
    """One run to its end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        tempfile.TemporaryDirectory(prefix="srl-soak-", dir=ROOT) as shm,
    ):
        os.environ[ROOT_VARIABLE] = shm
        run_dir = Path(folder) / "run"
        remote = layout == "remote"
        versions, everywhere = Versions(Path(shm)), Everywhere(Path(shm))
        begun = time.monotonic()
        arguments = ("train", "cartpole", "--run-dir", str(run_dir), "--quiet")
        arguments += REMOTE if remote else SETTINGS
        training = Training(run_dir, arguments)
        chaos = Chaos(training, seed, pauses, hosts=remote)
        try:
            ended = chaos.run(LIMIT_SECONDS)
            seconds = time.monotonic() - begun
            seen = versions.stop()
            if not ended or training.process.returncode:
                print(training.printed, file=sys.stderr)
                for log in (run_dir / "logs").glob("controller.log"):
                    print(log.read_text(), file=sys.stderr)
                wrong = ["it failed" if ended else f"it did not end, at version {seen[-1:]}"]
                return Outcome(
                    layout, seed, seconds, versions.standstill, chaos.done, 0, 0, 0, wrong
                )
            wrong = problems(training, chaos, seen, Path(shm))
            wrong += [f"a version went backwards: {s}" for s in everywhere.stop() if s != sorted(s)]
            summary = read_summary(run_dir)
            kept = accounts(summary)
            dropped = sum(int(n) for name, n in kept.items() if name.startswith("dropped."))
            lost = int(summary["metrics"]["updates.default.lost"])
            steps = summary["env_steps"]
            return Outcome(
                layout, seed, seconds, versions.standstill, chaos.done, steps, dropped, lost, wrong
            )
        finally:
            training.kill()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--runs", type=int, default=20, help="in the layout shared")
    parser.add_argument("--remote", type=int, default=5, help="runs in the layout remote")
    parser.add_argument("--seed", type=int, default=1, help="of the first run; the others follow")
    parser.add_argument(
        "--seconds", type=float, nargs=2, default=(2.0, 5.0), help="least and most between strikes"
    )
    options = parser.parse_args()
    outcomes = []
    planned = [("shared", n) for n in range(options.runs)]
    planned += [("remote", n) for n in range(options.remote)]
    for layout, number in planned:
        throttle = 2.0 if layout == "remote" else 1.0
        least, most = (throttle * seconds for seconds in options.seconds)
        outcomes.append(run(layout, options.seed + number, (least, most)))
        print(outcomes[-1].row(), ", ".join(outcomes[-1].strikes), file=sys.stderr, flush=True)
    failed = [outcome for outcome in outcomes if outcome.problems]
    lines = [
        f"{len(outcomes)} runs, {sum(len(o.strikes) for o in outcomes)} strikes, "
        f"{len(failed)} runs with a problem.",
        "",
        "| layout | seed | seconds | longest standstill | killed | stopped | of them trainers | "
        "of them bridges and agents | env steps | fragments dropped | updates lost | problems |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
        *(outcome.row() for outcome in outcomes),
    ]
    print(write_result("soak_chaos", __doc__, lines), file=sys.stderr)
    print(json.dumps({"soak": "soak_chaos", "runs": len(outcomes), "failed": len(failed)}))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
