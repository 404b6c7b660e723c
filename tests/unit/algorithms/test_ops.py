"""GAE and V-trace: numbers by hand, a slow reference, and what the episode rules imply."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from srl.algorithms.ops.gae import gae
from srl.algorithms.ops.idle_ticks import backward_sum
from srl.algorithms.ops.masking import (
    explained_variance,
    masked_mean,
    normalized,
)
from srl.algorithms.ops.vtrace import vtrace

torch.set_num_threads(1)

RLAX = Path(__file__).with_name("rlax_vtrace.json")
"""Written by rlax_vtrace.py."""

Row = list[tuple[str, float, float]]
"""(kind, value, reward) of each tick; kinds are acted, terminated, truncated, inert."""


def tensors(rows: list[Row]) -> dict[str, torch.Tensor]:
    def table(pick: Any) -> torch.Tensor:
        return torch.tensor(
            [[pick(row[t]) for row in rows] for t in range(len(rows[0]))], dtype=torch.float64
        )

    return {
        "value": table(lambda x: x[1]),
        "reward": table(lambda x: x[2]),
        "acted": table(lambda x: x[0] == "acted").bool(),
        "terminated": table(lambda x: x[0] == "terminated").bool(),
        "truncated": table(lambda x: x[0] == "truncated").bool(),
    }


def slow_gae(row: Row, gamma: float, lam: float) -> list[float]:
    """The rules, tick by tick, backwards."""
    kind, value, _ = row[-1]
    next_value = value if kind in ("acted", "truncated") else 0.0
    next_advantage, out = 0.0, [0.0] * (len(row) - 1)
    for t in range(len(row) - 2, -1, -1):
        kind, value, reward = row[t]
        if kind == "terminated":
            next_value, next_advantage = 0.0, 0.0
        elif kind == "truncated":
            next_value, next_advantage = value, 0.0
        elif kind == "acted":
            delta = reward + gamma * next_value - value
            out[t] = delta + gamma * lam * next_advantage
            next_value, next_advantage = value, out[t]
    return out


numbers = st.floats(-5, 5, width=32)
ticks = st.tuples(
    st.sampled_from(["acted", "acted", "terminated", "truncated", "inert"]), numbers, numbers
)


@st.composite
def tables(draw: Any) -> list[Row]:
    length = draw(st.integers(2, 12))
    return draw(st.lists(st.lists(ticks, min_size=length, max_size=length), min_size=1, max_size=3))


def test_gae_by_hand() -> None:
    row: Row = [("acted", 1.0, 1.0), ("acted", 2.0, 0.0), ("acted", 4.0, 7.0)]
    result = gae(**tensors([row]), gamma=0.5, lam=0.5)
    # delta_1 = 0 + .5 * 4 - 2 = 0; delta_0 = 1 + .5 * 2 - 1 = 1; advantage_0 = 1 + .25 * 0.
    assert result.advantage_t[:, 0].tolist() == [1.0, 0.0]
    assert result.return_t[:, 0].tolist() == [2.0, 2.0]


def test_gae_at_episode_ends_by_hand() -> None:
    terminated: Row = [("acted", 1.0, 2.0), ("terminated", 99.0, 0.0), ("acted", 5.0, 0.0)]
    truncated: Row = [("acted", 1.0, 2.0), ("truncated", 4.0, 0.0), ("acted", 5.0, 0.0)]
    result = gae(**tensors([terminated, truncated]), gamma=0.5, lam=0.9)
    assert result.advantage_t[0].tolist() == [1.0, 3.0]
    assert result.advantage_t[1].tolist() == [0.0, 0.0]
    assert result.return_t[1].tolist() == [0.0, 0.0]


@settings(max_examples=60, deadline=None)
@given(tables())
def test_gae_equals_the_slow_reference(rows: list[Row]) -> None:
    found = gae(**tensors(rows), gamma=0.9, lam=0.8).advantage_t
    for b, row in enumerate(rows):
        np.testing.assert_allclose(found[:, b], slow_gae(row, 0.9, 0.8), atol=1e-9)


@settings(max_examples=60, deadline=None)
@given(tables(), st.data())
def test_inert_ticks_change_nothing(rows: list[Row], data: st.DataObject) -> None:
    row = [tick for tick in rows[0] if tick[0] != "inert"]
    if len(row) < 2:
        return
    stretched: Row = []
    for tick in row:
        stretched += [("inert", float("nan"), float("nan"))] * data.draw(st.integers(0, 2))
        stretched.append(tick)
    for op in (gae, _vtrace_advantage):
        compact = op(**tensors([row]), gamma=0.9, lam=0.8).advantage_t[:, 0]
        found = op(**tensors([stretched]), gamma=0.9, lam=0.8).advantage_t[:, 0]
        at = [t for t, tick in enumerate(stretched[:-1]) if tick[0] != "inert"]
        np.testing.assert_allclose(found[at], compact, atol=1e-9)
        others = [t for t in range(len(stretched) - 1) if t not in at]
        assert not found[others].any()


@settings(max_examples=40, deadline=None)
@given(
    st.lists(numbers, min_size=1, max_size=5),
    st.lists(numbers, min_size=2, max_size=5),
    st.sampled_from(["terminated", "truncated"]),
)
def test_two_episodes_in_one_trace_equal_each_alone(
    first: list[float], second: list[float], end: str
) -> None:
    one: Row = [*(("acted", x, 2 * x) for x in first), (end, 3.0, 0.0)]
    two: Row = [("acted", x, x - 1) for x in second]
    for op in (gae, _vtrace_advantage):
        together = op(**tensors([one + two]), gamma=0.9, lam=0.8).advantage_t[:, 0]
        alone_one = op(**tensors([one]), gamma=0.9, lam=0.8).advantage_t[:, 0]
        alone_two = op(**tensors([two]), gamma=0.9, lam=0.8).advantage_t[:, 0]
        np.testing.assert_allclose(together[: len(first)], alone_one, atol=1e-9)
        np.testing.assert_allclose(together[len(one) :], alone_two, atol=1e-9)


def test_what_is_never_asked_may_be_nan() -> None:
    nan = float("nan")
    row: Row = [
        ("acted", 1.0, 1.0),
        ("terminated", nan, nan),
        ("inert", nan, nan),
        ("inert", nan, nan),
    ]
    result = gae(**tensors([row]), gamma=0.9, lam=0.8)
    assert torch.isfinite(result.advantage_t).all()
    assert torch.isfinite(result.return_t).all()


def test_a_row_that_ends_on_inert_ticks_is_worth_nothing_after() -> None:
    row: Row = [("acted", 1.0, 2.0), ("inert", 9.0, 0.0), ("inert", 9.0, 0.0)]
    assert gae(**tensors([row]), gamma=0.9, lam=0.8).advantage_t[:, 0].tolist() == [1.0, 0.0]


@settings(max_examples=40, deadline=None)
@given(tables())
def test_vtrace_on_policy_equals_gae(rows: list[Row]) -> None:
    given_ = tensors(rows)
    traced = vtrace(log_ratio=torch.zeros_like(given_["value"]), **given_, gamma=0.9, lam=0.8)
    expected = gae(**given_, gamma=0.9, lam=0.8)
    np.testing.assert_allclose(traced.target_t, expected.return_t, atol=1e-9)
    np.testing.assert_allclose(traced.advantage_t, expected.advantage_t, atol=1e-9)


@pytest.mark.parametrize(
    "case", json.loads(RLAX.read_text()), ids=lambda case: f"lam={case['lam']}"
)
def test_vtrace_equals_rlax(case: dict[str, Any]) -> None:
    """rlax has a discount of 0 where an episode ends; we have a tick of its final observation."""
    value, log_ratio, ends = np.array(case["value"]), case["log_ratio"], case["ends"]
    for row in range(value.shape[1]):
        ticks: Row = []
        ratios: list[float] = []
        acted: list[int] = []
        for t, ended in enumerate(end[row] for end in ends):
            acted.append(len(ticks))
            ticks.append(("acted", value[t, row], case["reward"][t][row]))
            ratios.append(log_ratio[t][row])
            if ended:
                ticks.append(("terminated", 9.0, 0.0))
                ratios.append(0.0)
        ticks.append(("acted", value[-1, row], 0.0))
        found = vtrace(
            **tensors([ticks]),
            log_ratio=torch.tensor([*ratios, 0.0], dtype=torch.float64).unsqueeze(1),
            gamma=case["gamma"],
            lam=case["lam"],
            rho_clip=case["clip"],
        )
        weighted = (found.rho_t * found.advantage_t)[acted, 0]
        np.testing.assert_allclose(found.target_t[acted, 0], np.array(case["target"])[:, row])
        np.testing.assert_allclose(weighted, np.array(case["weighted_advantage"])[:, row])


def test_vtrace_by_hand() -> None:
    row: Row = [("acted", 1.0, 1.0), ("acted", 2.0, 0.0), ("acted", 4.0, 0.0)]
    log_ratio = torch.tensor([[0.5], [2.0], [1.0]], dtype=torch.float64).log()
    result = vtrace(**tensors([row]), log_ratio=log_ratio, gamma=0.5, rho_clip=1.5, c_clip=1.0)
    # delta_1 = 1.5 * (0 + 2 - 2) = 0, so v_1 = 2; delta_0 = .5 * (1 + 1 - 1), so v_0 = 1 + .5.
    assert result.target_t[:, 0].tolist() == pytest.approx([1.5, 2.0])
    assert result.rho_t[:, 0].tolist() == pytest.approx([0.5, 1.5])
    assert result.advantage_t[:, 0].tolist() == pytest.approx([1.0, 0.0])


def test_shapes_are_checked_first() -> None:
    given_ = tensors([[("acted", 1.0, 1.0), ("acted", 1.0, 1.0)]])
    with pytest.raises(
        ValueError, match=r"reward: expected the shape of value, \[2, 1\], got \[1, 1\]"
    ):
        gae(**{**given_, "reward": given_["reward"][:1]}, gamma=1.0, lam=1.0)
    with pytest.raises(ValueError, match=r"expected \[T \+ 1, B\] with T >= 1, got \[1, 1\]"):
        gae(**{key: x[:1] for key, x in given_.items()}, gamma=1.0, lam=1.0)


def test_backward_sum_by_hand() -> None:
    found = backward_sum(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.5], [9.0]]))
    assert found[:, 0].tolist() == [2.0, 2.0, 0.0]


def test_masked_mean() -> None:
    x = torch.tensor([1.0, 3.0, float("nan")])
    mask = torch.tensor([True, True, False])
    assert float(masked_mean(x, mask)) == 2.0
    assert float(masked_mean(x, ~mask & mask)) == 0.0


def test_normalized_guards_single_values() -> None:
    assert normalized(torch.tensor([3.0])).tolist() == [0.0]
    assert normalized(torch.tensor([1.0, 3.0])).tolist() == pytest.approx([-(0.5**0.5), 0.5**0.5])


def test_explained_variance() -> None:
    target = torch.tensor([1.0, 2.0, 3.0])
    assert float(explained_variance(target, target)) == 1.0
    assert float(explained_variance(torch.zeros(3), target)) == 0.0
    assert float(explained_variance(target, torch.ones(3))) == 0.0


def _vtrace_advantage(**given_: Any) -> Any:
    ratio = torch.where(given_["acted"], 0.3 * given_["value"], 0.0)
    return vtrace(log_ratio=ratio, **given_)
