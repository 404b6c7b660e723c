"""Two policies in one game, each with a trainer of its own, both learn."""

from __future__ import annotations

from collections.abc import Callable

import srl


def test_chasers_and_runner_both_beat_random_play(train: Callable[..., srl.Run]) -> None:
    run = train("simple_tag", layout="inline", steps=60_000, until="none")

    def returns(**replaced: str) -> dict[str, float]:
        score = run.evaluate(episodes=100, explore=True, policies=replaced)
        return {name: row["mean"] for name, row in score.table().items()}

    random = returns(chaser="random", runner="random")
    # Each against an opponent that plays at random, where a random player gets `random`.
    assert returns(runner="random")["chaser"] > 2 * random["chaser"] + 5
    assert returns(chaser="random")["runner"] > random["runner"]
    versions = {name: row for name, row in run.summary.metrics.items() if "version" in name}
    print(versions)
