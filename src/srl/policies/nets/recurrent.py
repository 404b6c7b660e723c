"""Memory: one LSTM or GRU layer that starts anew where an episode does and holds still where nobody
acts."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

State = dict[str, torch.Tensor]


class RecurrentCore(nn.Module):
    """Features [T, B, n] and a state of [B, size] leaves to outputs [T, B, size] and the state
    after them."""

    def __init__(self, num_inputs: int, size: int, kind: Literal["lstm", "gru"]) -> None:
        super().__init__()
        self.keys = ("h", "c") if kind == "lstm" else ("h",)
        self.rnn: nn.LSTM | nn.GRU = (
            nn.LSTM(num_inputs, size) if kind == "lstm" else nn.GRU(num_inputs, size)
        )
        self.num_outputs = size
        for name, weight in self.rnn.named_parameters():
            if name.startswith("weight"):
                nn.init.orthogonal_(weight)
            else:
                nn.init.zeros_(weight)

    def step(self, x: torch.Tensor, state: State) -> State:
        """The state after one tick with features [B, n]; its "h" is the output."""
        weights: list[torch.Tensor] = self.rnn.all_weights[0]  # type: ignore[assignment]
        if len(self.keys) == 2:
            h, c = torch.lstm_cell(x, (state["h"], state["c"]), *weights)
            return {"h": h, "c": c}
        return {"h": torch.gru_cell(x, state["h"], *weights)}

    def unroll(
        self, x: torch.Tensor, state: State, is_first: torch.Tensor, active: torch.Tensor
    ) -> tuple[torch.Tensor, State]:
        """Runs over [T, B]: zero where `is_first`, unchanged where not `active`."""
        resets: list[bool] = is_first.any(1).tolist()
        holds: list[bool] = (~active).any(1).tolist()
        outputs, t, ticks = [], 0, len(resets)
        while t < ticks:
            if resets[t]:
                state = reset(state, is_first[t])
            if holds[t]:
                state = self._held_step(x[t], state, active[t])
                outputs.append(state["h"].unsqueeze(0))
                t += 1
                continue
            # Ticks up to the next reset or hold go through in one call: many times faster.
            end = t + 1
            while end < ticks and not (resets[end] or holds[end]):
                end += 1
            out, state = self._whole(x[t:end], state)
            outputs.append(out)
            t = end
        return torch.cat(outputs), state

    def _held_step(self, x: torch.Tensor, state: State, active: torch.Tensor) -> State:
        """One tick in which only the `active` rows move on."""
        new, moves = self.step(x, state), active.unsqueeze(-1)
        return {key: torch.where(moves, new[key], state[key]) for key in self.keys}

    def _whole(self, x: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        """Some ticks in one call, in which no row is reset or held."""
        start = tuple(state[key].unsqueeze(0).contiguous() for key in self.keys)
        if len(self.keys) == 2:
            out, (h, c) = self.rnn(x, start)
            return out, {"h": h[0], "c": c[0]}
        out, h = self.rnn(x, start[0])
        return out, {"h": h[0]}


def reset(state: State, is_first: torch.Tensor) -> State:
    """The state with zeros in the rows where an episode starts."""
    first = is_first.unsqueeze(-1)
    return {key: value.masked_fill(first, 0.0) for key, value in state.items()}
