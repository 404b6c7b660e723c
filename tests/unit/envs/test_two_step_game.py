"""The two-step game pays as the paper's tables say, and keeps PettingZoo's rules."""

from __future__ import annotations

import numpy as np
import pytest
from pettingzoo.test import parallel_api_test

from srl.envs.tasks.two_step_game import TwoStepGame


def test_it_keeps_the_rules() -> None:
    parallel_api_test(TwoStepGame(), num_cycles=20)


@pytest.mark.parametrize(
    ("first", "second", "paid"),
    [
        ((0, 1), (1, 0), 7.0),
        ((0, 0), (0, 0), 7.0),
        ((1, 0), (0, 0), 0.0),
        ((1, 0), (0, 1), 1.0),
        ((1, 0), (1, 0), 1.0),
        ((1, 1), (1, 1), 8.0),
    ],
)
def test_the_first_agent_chooses_what_is_played(
    first: tuple[int, int], second: tuple[int, int], paid: float
) -> None:
    game = TwoStepGame()
    seen, _ = game.reset()
    assert game.state().tolist() == [1, 0, 0]
    seen, rewards, over, _, _ = game.step(dict(zip(game.agents, first, strict=True)))
    assert (set(rewards.values()), set(over.values())) == ({0.0}, {False})
    assert int(np.argmax(game.state())) == 1 + first[0]
    assert [obs[3:].tolist() for obs in seen.values()] == [[1, 0], [0, 1]]
    assert all((obs[:3] == game.state()).all() for obs in seen.values())
    _, rewards, over, _, _ = game.step(dict(zip(game.agents, second, strict=True)))
    assert (set(rewards.values()), set(over.values())) == ({paid}, {True})
    assert game.agents == []
