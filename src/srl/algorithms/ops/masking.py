"""Statistics over masked values; the other values may be anything."""

from __future__ import annotations

import torch


def masked_mean(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of `x` where `mask` is set; 0 if it is set nowhere. Other values may be NaN."""
    check_same_shape(x=x, mask=mask)
    return torch.where(mask, x, 0.0).sum() / mask.sum().clamp(min=1)


def normalized(
    x: torch.Tensor, global_minibatch: torch.Tensor | None = None, epsilon: float = 1e-8
) -> torch.Tensor:
    """[N] values with mean 0 and standard deviation 1; fewer than two only lose their mean.

    Mean and deviation are those of `global_minibatch`, if `x` is only a part of it.
    """
    global_minibatch = x if global_minibatch is None else global_minibatch
    if global_minibatch.numel() < 2:
        return x - global_minibatch.mean()
    std, mean = torch.std_mean(global_minibatch)
    return (x - mean).div_(std + epsilon)


def explained_variance(prediction: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Share of the variance of [N] targets that predictions explain: 1 is perfect, 0 is no better
    than a constant."""
    check_same_shape(prediction=prediction, target=target)
    variance = target.var(correction=0)
    residual = (target - prediction).var(correction=0)
    return torch.where(variance > 0, 1 - residual / variance, torch.zeros_like(variance))


def check_same_shape(**tensors: torch.Tensor) -> None:
    """Raises unless all tensors have the shape of the first."""
    (first, wanted), *rest = tensors.items()
    for name, tensor in rest:
        if tensor.shape != wanted.shape:
            raise ValueError(
                f"{name}: expected the shape of {first}, {list(wanted.shape)}, "
                f"got {list(tensor.shape)}."
            )
