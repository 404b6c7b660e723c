"""The optimizer's state as plain arrays, by the name of the parameter they belong to."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from srl.algorithms.adam import Adam
from srl.data.tree import Tree
from srl.errors import CheckpointError


def optimizer_state(optimizer: Adam, module: nn.Module) -> Tree:
    """{parameter: {step, exp_avg, ...}}: tensors as arrays, single numbers as numbers."""
    return {
        name: {key: _plain(value) for key, value in optimizer.state[parameter].items()}
        for name, parameter in module.named_parameters()
        if parameter in optimizer.state
    }


def restore_optimizer(optimizer: Adam, module: nn.Module, state: Tree) -> None:
    """Puts back what `optimizer_state` took."""
    parameters = dict(module.named_parameters())
    optimizer.state.clear()
    for name, entries in state.items():
        parameter = parameters.get(name)
        if parameter is None:
            raise CheckpointError(
                f"optimizer: expected the parameters of this policy, got a state for {name!r}. "
                "Was network.* changed since the checkpoint?"
            )
        for key, value in entries.items():
            optimizer.state[parameter][key] = _tensor(value, parameter, f"{name}.{key}")


def _plain(value: torch.Tensor) -> float | np.ndarray:
    return float(value) if value.dim() == 0 else value.detach().cpu().numpy().copy()


def _tensor(value: float | np.ndarray, parameter: torch.Tensor, name: str) -> torch.Tensor:
    if isinstance(value, float):
        # Fused Adam keeps its step count beside the weights.
        return torch.tensor(value, dtype=torch.float32, device=parameter.device)
    if value.shape != tuple(parameter.shape):
        raise CheckpointError(
            f"optimizer: expected {name} of shape {list(parameter.shape)}, "
            f"got {list(value.shape)}. Was network.* changed since the checkpoint?"
        )
    # In the parameter's own memory layout, as Adam's kernel expects.
    return torch.empty_like(parameter).copy_(torch.from_numpy(value))
