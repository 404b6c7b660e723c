"""An LSTM over rows that reset and hold, with gradients written by hand.

Equal to the loop over ticks in `srl.policies.nets.recurrent`. In a batch of many rows some row
starts an episode at almost every tick. So there is no stretch of ticks for torch's own LSTM. Under
autograd every tick would be some forty small nodes, and each tick would compute gradients of the
weights. Here these gradients are one product over all ticks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable


def lstm_unroll(
    x: torch.Tensor,
    h: torch.Tensor,
    c: torch.Tensor,
    weights: Sequence[torch.Tensor],
    is_first: torch.Tensor,
    active: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Runs over x [T, B, n]; returns h after every tick [T, B, size], and c after the last tick.

    h and c [B, size] are zeroed where `is_first`, and do not change where not `active` ([T, B]).
    The weights are those of torch's LSTM: of inputs and of h, [4 * size, n] with the gates i, f, g,
    o, and the biases of both.
    """
    weight_x, weight_h, bias_x, bias_h = weights
    from_x = F.linear(x, weight_x, bias_x + bias_h)
    out, c_last = _Unroll.apply(from_x, weight_h, h, c, is_first, active)  # type: ignore[no-untyped-call]
    return out, c_last


class _Gates(NamedTuple):
    """The gates of one tick, [B, 4 * size], and views of it: first their inputs, then their
    values."""

    whole: torch.Tensor
    i_and_f: torch.Tensor
    i: torch.Tensor
    f: torch.Tensor
    g: torch.Tensor
    o: torch.Tensor


class _Unroll(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        from_x: torch.Tensor,
        weight_h: torch.Tensor,
        h: torch.Tensor,
        c: torch.Tensor,
        is_first: torch.Tensor,
        active: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ticks, rows, _ = from_x.shape
        fresh, held = _rows_by_tick(is_first), _rows_by_tick(~active)
        gates = torch.empty_like(from_x)
        # By tick: h and c before it, tanh of the new c, and h after it.
        h_in, c_in, tanh_c, h_out = from_x.new_empty(4, ticks, rows, h.shape[-1]).unbind()
        weight_t = weight_h.t()
        for tick_x, gate, before, c_before, tanh, after, start, hold in zip(
            from_x.unbind(),
            _by_tick(gates),
            *(x.unbind() for x in (h_in, c_in, tanh_c, h_out)),
            fresh,
            held,
            strict=True,
        ):
            before.copy_(h)
            c_before.copy_(c)
            if start is not None:
                before.index_fill_(0, start, 0.0)
                c_before.index_fill_(0, start, 0.0)
            torch.addmm(tick_x, before, weight_t, out=gate.whole)
            gate.i_and_f.sigmoid_()
            gate.g.tanh_()
            gate.o.sigmoid_()
            c = torch.mul(gate.i, gate.g).addcmul_(gate.f, c_before)
            torch.tanh(c, out=tanh)
            h = torch.mul(gate.o, tanh, out=after)
            if hold is not None:
                h.index_copy_(0, hold, before[hold])
                c.index_copy_(0, hold, c_before[hold])
        ctx.save_for_backward(weight_h, gates, h_in, c_in, tanh_c)
        ctx.fresh, ctx.held = fresh, held
        return h_out, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        of_out, of_c = gradients[0].unbind(), gradients[1].clone()
        weight, gates, h_in, c_in, tanh_c = ctx.saved_tensors
        of_gates = torch.empty_like(gates)
        gates_by_tick, of_gates_by_tick = _by_tick(gates), _by_tick(of_gates)
        c_before, tanh = c_in.unbind(), tanh_c.unbind()
        of_h = torch.zeros_like(of_c)
        for t in reversed(range(len(gates_by_tick))):
            gate, of_gate = gates_by_tick[t], of_gates_by_tick[t]
            fresh, held = ctx.fresh[t], ctx.held[t]
            of_h += of_out[t]
            if held is not None:
                past_h, past_c = of_h[held], of_c[held]
                of_h.index_fill_(0, held, 0.0)
                of_c.index_fill_(0, held, 0.0)
            torch.mul(of_h, tanh[t], out=of_gate.o)
            of_c += _through_tanh(of_h.mul_(gate.o), tanh[t])
            torch.mul(of_c, gate.g, out=of_gate.i)
            torch.mul(of_c, c_before[t], out=of_gate.f)
            torch.mul(of_c, gate.i, out=of_gate.g)
            of_c *= gate.f
            _through_sigmoid(of_gate.i_and_f, gate.i_and_f)
            _through_tanh(of_gate.g, gate.g)
            _through_sigmoid(of_gate.o, gate.o)
            torch.mm(of_gate.whole, weight, out=of_h)
            if held is not None:
                of_h.index_copy_(0, held, past_h)
                of_c.index_copy_(0, held, past_c)
            if fresh is not None:
                of_h.index_fill_(0, fresh, 0.0)
                of_c.index_fill_(0, fresh, 0.0)
        of_weight = of_gates.flatten(0, 1).t() @ h_in.flatten(0, 1)
        return of_gates, of_weight, of_h, of_c, None, None


def _rows_by_tick(mask: torch.Tensor) -> list[torch.Tensor | None]:
    """The rows that are set in bool [T, B], by tick; None for a tick without any."""
    counts: list[int] = mask.sum(1).tolist()
    rows = mask.nonzero()[:, 1].split(counts)  # type: ignore[no-untyped-call]
    return [found if count else None for found, count in zip(rows, counts, strict=True)]


def _by_tick(gates: torch.Tensor) -> list[_Gates]:
    """Views of [T, B, 4 * size], one for each tick."""
    size = gates.shape[-1] // 4
    return [_Gates(tick, tick[:, : 2 * size], *tick.chunk(4, -1)) for tick in gates.unbind()]


def _through_tanh(gradient: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradient of the input of tanh, from that of its output `y`; in place."""
    return torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)  # type: ignore[no-any-return]


def _through_sigmoid(gradient: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The gradient of the input of the sigmoid, from that of its output `y`; in place."""
    return torch.ops.aten.sigmoid_backward.grad_input(gradient, y, grad_input=gradient)  # type: ignore[no-any-return]
