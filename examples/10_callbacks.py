"""Call code of your own while a run goes on: a table of evaluations, and a note at its end.

    python examples/10_callbacks.py [FOLDER]

The controller calls the methods of a callback. For a run of the command line, name its class:
`srl train cartpole --set 'logging.callbacks=[examples/10_callbacks.py:Evaluations]'`. What a
callback raises ends the run with its traceback, and keeps the last checkpoint.
"""

import csv
import sys
from pathlib import Path

import srl


class Evaluations(srl.Callback):
    """Writes each evaluation into a table, and remembers the best one."""

    def __init__(self, file: Path = Path("evaluations.csv")) -> None:
        self.file = file
        self.rows = [("policy version", "mean return")]
        self.episodes = 0

    def on_episode(self, episode: srl.FinishedEpisode) -> None:
        self.episodes += 1

    def on_evaluation(self, evaluation) -> None:  # type: ignore[no-untyped-def]
        mean = sum(evaluation.returns) / len(evaluation.returns)
        self.rows.append((evaluation.policy_version, mean))

    def on_end(self, summary) -> None:  # type: ignore[no-untyped-def]
        self.file.parent.mkdir(parents=True, exist_ok=True)
        with self.file.open("w", newline="") as table:
            csv.writer(table).writerows(self.rows)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "runs/example_10")
    evaluations = Evaluations(folder / "evaluations.csv")
    srl.train(
        "cartpole",
        run_dir=folder,
        set={"evaluator.count": 1, "evaluator.every_seconds": 0.5},
        callbacks=[evaluations],
    )
    print(f"episodes: {evaluations.episodes}, evaluations: {len(evaluations.rows) - 1}")
    print(f"best evaluation: {max(mean for _, mean in evaluations.rows[1:]):.0f}")
    print("table:", evaluations.file)
