"""The weights of modules that only a learner has, as a part of its state."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from srl.errors import CheckpointError


def module_state(module: nn.Module) -> dict[str, np.ndarray]:
    """Copies of all parameters and buffers, by name."""
    return {name: x.detach().cpu().numpy().copy() for name, x in module.state_dict().items()}


def restore_module(module: nn.Module, saved: dict[str, np.ndarray], what: str) -> None:
    """Loads what `module_state` returned; `what` names the module in errors."""
    own = module.state_dict()
    for name in sorted(set(own) | set(saved)):
        expected = list(own[name].shape) if name in own else None
        got = list(saved[name].shape) if name in saved else None
        if expected != got:
            raise CheckpointError(
                f"{what}: {name}: expected shape {expected}, got {got}. "
                "Was network.* changed since the checkpoint?"
            )
    module.load_state_dict({name: torch.as_tensor(x) for name, x in saved.items()})
