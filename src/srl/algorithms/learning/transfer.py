"""Moves a batch from its memory to the learner's device."""

from __future__ import annotations

import functools

import numpy as np
import torch

from srl.data.tree import Tree, leaves, tree_map


def to_device(tree: Tree, device: torch.device) -> Tree:
    """Arrays as tensors: views on a CPU, copies through pinned memory on a GPU."""
    tensors = tree_map(_as_tensor, tree)
    if device.type != "cuda":
        return tree_map(lambda tensor: tensor.to(device), tensors)
    # On a CUDA stream of its own, so that the copy does not wait for kernels of the last update.
    current = torch.cuda.current_stream(device)
    side = _side_stream(device)
    with torch.cuda.stream(side):
        moved = tree_map(lambda x: x.pin_memory().to(device, non_blocking=True), tensors)
    current.wait_stream(side)
    for tensor in leaves(moved):
        tensor.record_stream(current)
    return moved


def _as_tensor(array: np.ndarray) -> torch.Tensor:
    # torch has no read-only tensors, so it warns about read-only memory; a copy avoids that.
    return torch.from_numpy(array if array.flags.writeable else array.copy())


@functools.cache
def _side_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
