"""Convolutions over images: those that are asked for, or the network of Mnih et al. 2015 (Nature)
where it fits, a smaller one where not."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn

from srl.data.spec import ArraySpec
from srl.errors import ConfigError
from srl.policies.nets.mlp import orthogonal

Convolutions = Sequence[tuple[int, int, int]]
"""Channels, kernel and stride of each layer."""

NATURE: Convolutions = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
NATURE_SMALLEST = 36
"""Pixels per side below which the strides of the Nature network leave nothing over."""
IMAGE_SMALLEST = 5
"""Pixels per side below which an array is a vector to us, not an image."""


def image_layout(spec: ArraySpec) -> tuple[int, int, int, bool] | None:
    """(channels, height, width, channels last) of what a policy sees, or None if it is no image.

    One frame of rank 3 keeps its channels first or last, whichever of the two axes is shorter (last
    on a tie). Frames of rank 2 that are stacked, or rank 3 without a stack, are images; so are
    stacked frames of rank 3.
    """
    if spec.categories:
        return None
    match spec.shape:
        case (height, width) if spec.stack > 1:
            channels, last = spec.stack, False
        case (first, _, third):
            last = third <= first
            channels = (third if last else first) * spec.stack
            height, width = spec.shape[:2] if last else spec.shape[1:]
        case _:
            return None
    if min(height, width) < IMAGE_SMALLEST:
        return None
    return channels, height, width, last


class CNN(nn.Module):
    """One image leaf to features; uint8 is scaled to 0..1 here, so that images travel as bytes."""

    def __init__(self, spec: ArraySpec, num_outputs: int, convolutions: Convolutions = ()) -> None:
        super().__init__()
        layout = image_layout(spec)
        assert layout is not None, f"expected an image, got {spec}"
        channels, height, width, self._channels_last = layout
        self._stacked_images = spec.stack > 1 and len(spec.shape) == 3
        self._scale = 1.0 / 255.0 if spec.dtype == "uint8" else 1.0
        self._layers = _make_layers(channels, min(height, width), convolutions)
        self.convolutions = nn.ModuleList(self._layers)
        self.convolutions.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        with torch.no_grad():
            flat = self._convolve(torch.zeros(1, channels, height, width)).shape[1]
        self.linear = orthogonal(nn.Linear(flat, num_outputs))
        self.num_outputs = num_outputs

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """[N, *seen shape] to [N, num_outputs]."""
        if self._channels_last:
            image = image.movedim(-1, -3)
        if self._stacked_images:
            image = image.flatten(1, 2)
        return torch.relu_(self.linear(self._convolve(_interleaved(image).float())))

    def _convolve(self, image: torch.Tensor) -> torch.Tensor:
        # The scale of the pixels goes into the first weights, which are far fewer.
        scale = self._scale
        for layer in self._layers:
            weight = layer.weight if scale == 1.0 else layer.weight * scale
            scale = 1.0
            out = F.conv2d(image, weight, layer.bias, layer.stride, layer.padding)
            image = torch.relu_(out)
        # In the order in which the numbers lie in memory, so that nothing is copied.
        return image.permute(0, 2, 3, 1).flatten(1)


def _interleaved(image: torch.Tensor) -> torch.Tensor:
    """[N, channels, height, width] with the channels of a pixel side by side in memory, which is
    what convolutions on a CPU like best."""
    if image.is_cuda or image.is_contiguous(memory_format=torch.channels_last):
        return image
    out = torch.empty_like(image, memory_format=torch.channels_last)
    # Channel by channel: twice as fast as torch's copy of all of them.
    for target, channel in zip(out.unbind(1), image.unbind(1), strict=True):
        target.copy_(channel)
    return out


def _make_layers(channels: int, side: int, asked: Convolutions) -> list[nn.Conv2d]:
    """The convolutions that are asked for; with none, what fits an image with that shorter side."""
    if asked or side >= NATURE_SMALLEST:
        layers = []
        for number, (size, kernel, stride) in enumerate(asked or NATURE, 1):
            if side < kernel:
                raise ConfigError(
                    f"network.convolutions: layer {number} expected an image of at least "
                    f"{kernel}x{kernel}, got one whose shorter side is {side}. Take fewer layers, "
                    "or smaller kernels and strides."
                )
            layers.append(nn.Conv2d(channels, size, kernel, stride=stride))
            channels, side = size, (side - kernel) // stride + 1
    else:
        stride = 2 if side >= 16 else 1
        layers = [
            nn.Conv2d(channels, 32, 3, stride=stride, padding=1),
            nn.Conv2d(32, 64, 3, stride=stride, padding=1),
        ]
    for layer in layers:
        orthogonal(layer)
    return layers
