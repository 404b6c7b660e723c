"""Mixing of values, and the ticks of teams: numbers worked by hand, and what must always hold."""

from __future__ import annotations

import itertools

import pytest
import torch

from srl.algorithms.ops.mixing import monotonic_mixing, sum_of_values
from srl.algorithms.ops.n_step import n_steps
from srl.algorithms.ops.team import TeamTicks, team_ticks


def test_a_sum_is_of_those_that_are_there() -> None:
    value = torch.tensor([[1.0, 2.0, 4.0], [1.0, float("nan"), 4.0]])
    present = torch.tensor([[True, True, True], [True, False, True]])
    assert sum_of_values(value, present).tolist() == [7.0, 5.0]


def test_mixing_by_hand() -> None:
    value = torch.tensor([[2.0, -1.0]])
    found = monotonic_mixing(
        value,
        torch.ones(1, 2, dtype=torch.bool),
        # Absolute: [[1, 0.5], [2, 3]]. Hidden: 2 * 1 - 1 * 2 + 0.5 = 0.5, and
        # 2 * 0.5 - 1 * 3 + 1 = -1, whose elu is exp(-1) - 1.
        weight_1=torch.tensor([[[1.0, -0.5], [-2.0, 3.0]]]),
        bias_1=torch.tensor([[0.5, 1.0]]),
        weight_2=torch.tensor([[-2.0, 4.0]]),
        bias_2=torch.tensor([10.0]),
    )
    expected = 2 * 0.5 + 4 * (torch.tensor(-1.0).exp() - 1) + 10
    torch.testing.assert_close(found, expected.unsqueeze(0))


def test_the_mixture_never_falls_when_a_value_rises() -> None:
    torch.manual_seed(0)
    for units in (1, 8):
        value = torch.randn(500, 4, requires_grad=True)
        weights = [torch.randn(500, *shape) for shape in ((4, units), (units,), (units,), ())]
        present = torch.rand(500, 4) < 0.7
        monotonic_mixing(value, present, *weights).sum().backward()  # type: ignore[no-untyped-call]
        assert value.grad is not None
        assert (value.grad >= 0).all()
        assert (value.grad[~present] == 0).all()
        assert value.grad[present].mean() > 0.1


def test_the_best_of_each_is_the_best_of_all() -> None:
    """Why agents may act alone: the joint action of the largest mixture is that of the largest
    values."""
    torch.manual_seed(1)
    weights = [torch.randn(shape) for shape in ((3, 5), (5,), (5,), ())]
    for _ in range(20):
        value = torch.randn(3, 4)

        def mixed(actions: tuple[int, ...], value: torch.Tensor = value) -> float:
            chosen = value[range(3), actions]
            return float(monotonic_mixing(chosen, chosen == chosen, *weights))

        best = max(itertools.product(range(4), repeat=3), key=mixed)
        assert mixed(best) == pytest.approx(mixed(tuple(value.argmax(1).tolist())))


def ticks(rows: list[str], reward: list[list[float]], join: str = "mean") -> TeamTicks:
    """One environment; for each agent a letter by tick: a acts, T and L are final (terminated, time
    limit), and . is absent."""
    letters = [list(tick) for tick in zip(*rows, strict=True)]

    def where(letter: str) -> torch.Tensor:
        return torch.tensor([[[x == letter for x in tick]] for tick in letters])

    return team_ticks(
        acted=where("a"),
        terminated=where("T"),
        truncated=where("L"),
        reward=torch.tensor([[list(tick)] for tick in zip(*reward, strict=True)]),
        join=join,  # type: ignore[arg-type]
    )


def test_a_team_goes_on_until_its_last_agent_is_done() -> None:
    found = ticks(["aT..aa", "aaaTaa"], [[1, 0, 0, 0, 3, 1], [2, 4, 5, 0, 1, 1]])
    assert found.acted[:, 0].tolist() == [True, True, True, False, True, True]
    assert found.terminated[:, 0].tolist() == [False, False, False, True, False, False]
    assert not found.truncated.any()
    # Of those that act: the mean does not fall when one is done.
    assert found.reward[:, 0].tolist() == [1.5, 4.0, 5.0, 0.0, 2.0, 1.0]


def test_a_time_limit_of_one_is_one_of_the_team() -> None:
    found = ticks(["aTa", "aLa"], [[1, 0, 0], [2, 0, 0]], "sum")
    assert found.truncated[:, 0].tolist() == [False, True, False]
    assert not found.terminated.any()
    assert found.reward[:, 0].tolist() == [3.0, 0.0, 0.0]
    # Who leaves early by a limit ends nothing.
    early = ticks(["aL.a", "aaTa"], [[0.0] * 4] * 2)
    assert early.terminated[:, 0].tolist() == [False, False, True, False]
    assert not early.truncated.any()


def test_returns_of_a_team_are_those_of_its_game() -> None:
    """Two steps ahead: across the death of one, and not across the end."""
    found = ticks(["aT..a", "aaaTa"], [[1, 0, 0, 0, 3], [3, 4, 8, 0, 1]])
    steps = n_steps(**found._asdict(), gamma=0.5, n=2)
    value = torch.full((5, 1), 100.0)
    assert steps.target(value)[:, 0].tolist() == [2 + 2 + 25, 4 + 4, 8, 0]
