"""An LSTM over rows that start anew and hold still, with its gradients found by hand.

In a batch of many rows some row starts an episode at almost every tick, so that there is no stretch
of ticks for torch's own LSTM. Tick by tick under autograd every tick is some forty small nodes, and
finds gradients of the weights by itself; here those are one product over all ticks.
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
    """Runs [T, B, n] from h and c [B, size], which are zero where `is_first` and stay where not
    `active` ([T, B]): h after every tick [T, B, size], and c after the last.

    The weights are as torch's LSTM has them: of inputs and of h, [4 * size, n] with the gates i, f,
    g, o, and the biases of both.
    """
    of_x, of_h, bias_x, bias_h = weights
    driven = F.linear(x, of_x, bias_x + bias_h)
    out, c_last = _Unroll.apply(driven, of_h, h, c, is_first, active)  # type: ignore[no-untyped-call]
    return out, c_last


class _Gates(NamedTuple):
    """One tick's, [B, 4 * size] and views of it: first what drives them, then what they are."""

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
        driven: torch.Tensor,
        of_h: torch.Tensor,
        h: torch.Tensor,
        c: torch.Tensor,
        is_first: torch.Tensor,
        active: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ticks, rows, _ = driven.shape
        fresh, held = _rows_by_tick(is_first), _rows_by_tick(~active)
        gates = torch.empty_like(driven)
        # By tick: h and c that go in, tanh of the new c, h that comes out.
        h_in, c_in, tanh_c, h_out = driven.new_empty(4, ticks, rows, h.shape[-1]).unbind()
        turned = of_h.t()
        for drive, gate, before, c_before, tanh, after, start, hold in zip(
            driven.unbind(),
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
            torch.addmm(drive, before, turned, out=gate.whole)
            gate.i_and_f.sigmoid_()
            gate.g.tanh_()
            gate.o.sigmoid_()
            c = torch.mul(gate.i, gate.g).addcmul_(gate.f, c_before)
            torch.tanh(c, out=tanh)
            h = torch.mul(gate.o, tanh, out=after)
            if hold is not None:
                h.index_copy_(0, hold, before[hold])
                c.index_copy_(0, hold, c_before[hold])
        ctx.save_for_backward(of_h, gates, h_in, c_in, tanh_c)
        ctx.fresh, ctx.held = fresh, held
        return h_out, c

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        of_out, of_c = gradients[0].unbind(), gradients[1].clone()
        weight, gates, h_in, c_in, tanh_c = ctx.saved_tensors
        found = torch.empty_like(gates)
        known, wanted = _by_tick(gates), _by_tick(found)
        c_before, tanh = c_in.unbind(), tanh_c.unbind()
        of_h = torch.zeros_like(of_c)
        for t in reversed(range(len(known))):
            gate, of_gate, fresh, held = known[t], wanted[t], ctx.fresh[t], ctx.held[t]
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
        of_weight = found.flatten(0, 1).t() @ h_in.flatten(0, 1)
        return found, of_weight, of_h, of_c, None, None


def _rows_by_tick(mask: torch.Tensor) -> list[torch.Tensor | None]:
    """Of each tick of bool [T, B] the rows that are set; None if there are none."""
    counts: list[int] = mask.sum(1).tolist()
    rows = mask.nonzero()[:, 1].split(counts)  # type: ignore[no-untyped-call]
    return [found if count else None for found, count in zip(rows, counts, strict=True)]


def _by_tick(gates: torch.Tensor) -> list[_Gates]:
    """Views of [T, B, 4 * size], a tick each."""
    size = gates.shape[-1] // 4
    return [_Gates(tick, tick[:, : 2 * size], *tick.chunk(4, -1)) for tick in gates.unbind()]


def _through_tanh(gradient: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """In place: the gradient of what tanh made `y` of."""
    return torch.ops.aten.tanh_backward.grad_input(gradient, y, grad_input=gradient)  # type: ignore[no-any-return]


def _through_sigmoid(gradient: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """In place: the gradient of what the sigmoid made `y` of."""
    return torch.ops.aten.sigmoid_backward.grad_input(gradient, y, grad_input=gradient)  # type: ignore[no-any-return]
