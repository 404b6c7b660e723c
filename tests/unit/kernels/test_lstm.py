"""The LSTM by hand against torch's cell, tick by tick under autograd."""

from __future__ import annotations

import pytest
import torch

from srl.kernels.lstm import lstm_unroll

TICKS, ROWS, INPUTS, SIZE = 7, 5, 3, 4


def given(seed: int) -> dict[str, torch.Tensor]:
    """Inputs, state and weights to be differentiated by."""
    torch.manual_seed(seed)
    shapes = {
        "x": (TICKS, ROWS, INPUTS),
        "h": (ROWS, SIZE),
        "c": (ROWS, SIZE),
        "of_x": (4 * SIZE, INPUTS),
        "of_h": (4 * SIZE, SIZE),
        "bias_x": (4 * SIZE,),
        "bias_h": (4 * SIZE,),
    }
    return {
        name: torch.randn(shape, dtype=torch.double, requires_grad=True)
        for name, shape in shapes.items()
    }


def by_cell(
    g: dict[str, torch.Tensor], is_first: torch.Tensor, active: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    h, c, outputs = g["h"], g["c"], []
    for t in range(TICKS):
        first, moves = is_first[t].unsqueeze(-1), active[t].unsqueeze(-1)
        h, c = h.masked_fill(first, 0.0), c.masked_fill(first, 0.0)
        weights = (g["of_x"], g["of_h"], g["bias_x"], g["bias_h"])
        new_h, new_c = torch.lstm_cell(g["x"][t], (h, c), *weights)
        h, c = torch.where(moves, new_h, h), torch.where(moves, new_c, c)
        outputs.append(h)
    return torch.stack(outputs), c


def by_hand(
    g: dict[str, torch.Tensor], is_first: torch.Tensor, active: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    weights = (g["of_x"], g["of_h"], g["bias_x"], g["bias_h"])
    return lstm_unroll(g["x"], g["h"], g["c"], weights, is_first, active)


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", [1, 2])
def test_outputs_and_gradients_are_those_of_the_cell(share: float, seed: int) -> None:
    found = given(seed)
    is_first = torch.rand(TICKS, ROWS) < share
    active = torch.rand(TICKS, ROWS) >= share
    ways = [way(found, is_first, active) for way in (by_cell, by_hand)]
    torch.testing.assert_close(ways[1], ways[0])

    weigh_h, weigh_c = torch.randn_like(ways[0][0]), torch.randn_like(ways[0][1])
    gradients = [
        torch.autograd.grad(
            (h * weigh_h).sum() + (c * weigh_c).sum(), list(found.values()), materialize_grads=True
        )
        for h, c in ways
    ]
    torch.testing.assert_close(gradients[1], gradients[0])


def test_what_was_before_an_episode_is_gone_even_if_it_was_no_number() -> None:
    found = given(3)
    is_first = torch.zeros(TICKS, ROWS, dtype=torch.bool)
    is_first[2, 1] = True
    with torch.no_grad():
        found["h"][1] = torch.nan
    h, _ = by_hand(found, is_first, ~torch.zeros_like(is_first))
    assert h[:2, 1].isnan().all()
    assert h[2:].isfinite().all()
