"""Targets and losses of action values: by hand, a slow reference, and rlax's numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from test_ops import Row, tables, tensors

from srl.algorithms.ops.n_step import NSteps, n_steps
from srl.algorithms.ops.quantile import quantile_huber
from srl.algorithms.ops.rescaling import rescale, unscale

RLAX = json.loads(Path(__file__).with_name("rlax_values.json").read_text())
"""Written by rlax_values.py."""


def found_in(rows: list[Row], gamma: float, n: int) -> tuple[NSteps, torch.Tensor]:
    """What n steps find, and the targets."""
    ticks = tensors(rows)
    value = ticks.pop("value")
    found = n_steps(**ticks, gamma=gamma, n=n)
    return found, found.target(value)


def slow_target(row: Row, start: int, gamma: float, n: int) -> float | None:
    """The rules for one action, tick by tick; None where it is not valid."""
    if row[start][0] != "acted":
        return None
    later = [t for t in range(start + 1, len(row)) if row[t][0] != "inert"]
    total, discount, at = 0.0, 1.0, start
    for _ in range(n):
        total += discount * row[at][2]
        discount *= gamma
        if not later:
            return None
        at = later.pop(0)
        kind, value, _ = row[at]
        if kind == "terminated":
            return total
        if kind == "truncated" or at == len(row) - 1:
            return total + discount * value
    return total + discount * row[at][1]


def test_two_steps_by_hand() -> None:
    row: Row = [("acted", 1.0, 1.0), ("acted", 2.0, 3.0), ("acted", 4.0, 7.0), ("acted", 8.0, 9.0)]
    found, target = found_in([row], gamma=0.5, n=2)
    # 1 + .5 * 3 + .25 * 4; 3 + .5 * 7 + .25 * 8; the last one has a single step: 7 + .5 * 8.
    assert target[:, 0].tolist() == [3.5, 8.5, 11.0]
    assert found.bootstrap_t[:, 0].tolist() == [2, 3, 3]
    assert found.valid_t.all()


def test_steps_end_with_the_episode() -> None:
    ends: Row = [("acted", 1.0, 2.0), ("terminated", 9.0, 0.0), ("acted", 5.0, 0.0)]
    cut: Row = [("acted", 1.0, 2.0), ("truncated", 4.0, 0.0), ("acted", 5.0, 0.0)]
    found, target = found_in([ends, cut], gamma=0.5, n=5)
    assert target[0].tolist() == [2.0, 4.0]
    assert found.valid_t.tolist() == [[True, True], [False, False]]


def test_an_action_whose_outcome_is_not_seen_is_not_valid() -> None:
    row: Row = [("acted", 1.0, 2.0), ("inert", 0.0, 0.0), ("inert", 0.0, 0.0)]
    assert not found_in([row], gamma=0.5, n=1)[0].valid_t.any()


@settings(max_examples=80, deadline=None)
@given(tables(), st.integers(1, 5))
def test_targets_equal_the_slow_reference(rows: list[Row], n: int) -> None:
    found, target = found_in(rows, gamma=0.9, n=n)
    for b, row in enumerate(rows):
        for t in range(len(row) - 1):
            expected = slow_target(row, t, 0.9, n)
            assert bool(found.valid_t[t, b]) == (expected is not None)
            if expected is not None:
                assert float(target[t, b]) == pytest.approx(expected, abs=1e-9)


def test_targets_of_several_values_at_once() -> None:
    rows: list[Row] = [[("acted", 1.0, 1.0), ("acted", 2.0, 3.0), ("acted", 4.0, 7.0)]]
    ticks = tensors(rows)
    value = ticks.pop("value")
    several = n_steps(**ticks, gamma=0.5, n=1).target(torch.stack([value, 2 * value], -1))
    assert several[:, 0].tolist() == [[2.0, 3.0], [5.0, 7.0]]


@pytest.mark.parametrize("case", RLAX["n_steps"])
def test_targets_equal_rlax(case: dict[str, list[list[float]]]) -> None:
    """rlax has a discount of 0 where an episode ends; we have a tick of its final observation."""
    value, reward, ends = (np.array(case[name]) for name in ("value", "reward", "ends"))
    for b in range(value.shape[1]):
        row: Row = []
        actions = []
        for t in range(len(reward)):
            actions.append(len(row))
            row.append(("acted", value[t, b], reward[t, b]))
            if ends[t, b]:
                row.append(("terminated", 99.0, 0.0))
        # An episode's end, or the last tick, bootstraps.
        row.append(("acted", value[-1, b], 0.0))
        target = found_in([row], case["gamma"], case["n"])[1]  # type: ignore[arg-type]
        np.testing.assert_allclose(target[actions, 0], case["targets"][b], atol=1e-9)


def test_rescaling_equals_rlax_and_has_an_inverse() -> None:
    case = RLAX["rescaling"]
    x = torch.tensor(case["x"], dtype=torch.float64)
    np.testing.assert_allclose(rescale(x), case["rescaled"], rtol=1e-9)
    np.testing.assert_allclose(unscale(x), case["unscaled"], rtol=1e-6)
    np.testing.assert_allclose(unscale(rescale(x)), x, rtol=1e-6, atol=1e-9)
    assert unscale(rescale(torch.tensor(1e4))).item() == pytest.approx(1e4, rel=1e-3), "float32"


@pytest.mark.parametrize("case", RLAX["quantiles"])
def test_quantile_loss_equals_rlax(case: dict[str, list[float]]) -> None:
    predicted, target = (
        torch.tensor(case[name], dtype=torch.float64) for name in ("predicted", "target")
    )
    found = quantile_huber(predicted, target, case["kappa"])  # type: ignore[arg-type]
    # rlax leaves out the division by kappa of the paper's equation 10.
    np.testing.assert_allclose(found, np.array(case["losses"]) / case["kappa"], atol=1e-9)


def test_quantiles_that_minimise_the_loss_are_those_of_the_target() -> None:
    samples = torch.tensor([0.0, 1.0, 10.0, 11.0]).expand(1, -1)
    predicted = torch.zeros(1, 2, requires_grad=True)
    for _ in range(4000):
        (gradient,) = torch.autograd.grad(quantile_huber(predicted, samples, 0.01).sum(), predicted)
        predicted = (predicted - 0.02 * gradient).detach().requires_grad_()
    low, high = predicted[0].tolist()
    assert -0.2 <= low <= 1.2
    assert 9.8 <= high <= 11.2
