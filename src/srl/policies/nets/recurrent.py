"""Policy memory: one LSTM or GRU layer that resets where episodes start, and holds still at
inactive ticks."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from srl.data.spec import ArraySpec
from srl.kernels.lstm import lstm_unroll

State = dict[str, torch.Tensor]


class RecurrentCore(nn.Module):
    """Features [T, B, n] and a state of [B, size] leaves to outputs [T, B, size] and the next
    state."""

    def __init__(self, num_inputs: int, size: int, kind: Literal["lstm", "gru"]) -> None:
        super().__init__()
        self.keys = ("h", "c") if kind == "lstm" else ("h",)
        self.rnn: nn.LSTM | nn.GRU = (
            nn.LSTM(num_inputs, size) if kind == "lstm" else nn.GRU(num_inputs, size)
        )
        self.num_outputs = size
        self.state_spec = {key: ArraySpec(shape=(size,)) for key in self.keys}
        """The memory of one row."""
        self.use_kernels = True
        """Whether the kernel for LSTMs runs over ticks at which some rows are reset or held."""
        for name, weight in self.rnn.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(weight)
            else:
                nn.init.zeros_(weight)

    def step(self, x: torch.Tensor, state: State) -> State:
        """Returns the state after one tick with features [B, n]; its "h" is the output."""
        weights: list[torch.Tensor] = self.rnn.all_weights[0]  # type: ignore[assignment]
        if len(self.keys) == 2:
            h, c = torch.lstm_cell(x, (state["h"], state["c"]), *weights)
            return {"h": h, "c": c}
        return {"h": torch.gru_cell(x, state["h"], *weights)}

    def unroll(
        self, x: torch.Tensor, state: State, is_first: torch.Tensor, active: torch.Tensor
    ) -> tuple[torch.Tensor, State]:
        """Runs over [T, B]; the state is zeroed where `is_first`, and does not change where not
        `active`."""
        if bool(active.all()) and not bool(is_first[1:].any()):
            return self._unroll_at_once(x, reset(state, is_first[0]))
        if self.use_kernels and len(self.keys) == 2:
            weights = self.rnn.all_weights[0]
            out, c = lstm_unroll(x, state["h"], state["c"], weights, is_first, active)
            return out, {"h": out[-1], "c": c}
        moves = active.unsqueeze(-1)
        outputs = []
        for t, features in enumerate(x.unbind()):
            state = reset(state, is_first[t])
            after = self.step(features, state)
            state = {key: torch.where(moves[t], after[key], state[key]) for key in self.keys}
            outputs.append(state["h"])
        return torch.stack(outputs), state

    def _unroll_at_once(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Runs all ticks in one call, where no row is reset or held after the first tick."""
        start = tuple(state[key].unsqueeze(0).contiguous() for key in self.keys)
        if len(self.keys) == 2:
            out, (h, c) = self.rnn(x, start)
            return out, {"h": h[0], "c": c[0]}
        out, h = self.rnn(x, start[0])
        return out, {"h": h[0]}


def reset(state: State, is_first: torch.Tensor) -> State:
    """The state with zeros in the rows where an episode starts."""
    if torch.compiler.is_exporting():
        # A graph cannot branch on what is in a tensor.
        return {key: torch.where(is_first.unsqueeze(1), 0.0, x) for key, x in state.items()}
    rows = is_first.nonzero().squeeze(1)
    if not len(rows):
        return state
    return {key: value.index_fill(0, rows, 0.0) for key, value in state.items()}
