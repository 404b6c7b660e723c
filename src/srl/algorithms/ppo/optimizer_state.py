"""The optimizer's state as plain arrays, by the name of the parameter they belong to."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from srl.algorithms.adam import Adam
from srl.data.tree import Tree
from srl.errors import CheckpointError


def optimizer_state(optimizer: Adam, module: nn.Module) -> Tree:
    """{"step": number of steps, "exp_avg": {parameter: array}, "exp_avg_sq": the same}."""
    return {
        "step": float(optimizer.num_steps),
        **{
            kind: {name: _array(view) for name, view in moments.items()}
            for kind, moments in _moments(optimizer, module).items()
        },
    }


def restore_optimizer(optimizer: Adam, module: nn.Module, state: Tree) -> None:
    """Puts back what `optimizer_state` took."""
    for kind, moments in _moments(optimizer, module).items():
        for name in sorted(set(moments) ^ set(state[kind])):
            raise CheckpointError(
                f"optimizer: expected the parameters of this policy, got a state with"
                f"{'out' if name in moments else ''} {name!r}. "
                "Was network.* changed since the checkpoint?"
            )
        for name, view in moments.items():
            value = state[kind][name]
            if value.shape != tuple(view.shape):
                raise CheckpointError(
                    f"optimizer: expected {kind} of {name} of shape {list(view.shape)}, "
                    f"got {list(value.shape)}. Was network.* changed since the checkpoint?"
                )
            view.copy_(torch.from_numpy(value))
    optimizer.num_steps.fill_(state["step"])


def _moments(optimizer: Adam, module: nn.Module) -> dict[str, dict[str, torch.Tensor]]:
    names = [name for name, parameter in module.named_parameters() if parameter.requires_grad]
    return {
        kind: dict(zip(names, optimizer.views(flat), strict=True))
        for kind, flat in (("exp_avg", optimizer.exp_avg), ("exp_avg_sq", optimizer.exp_avg_sq))
    }


def _array(view: torch.Tensor) -> np.ndarray:
    return view.detach().cpu().numpy().copy()
