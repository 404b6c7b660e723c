"""Convolutional networks over images.

The layers are those of the settings. By default they are the network of Mnih et al. 2015 (Nature)
where it fits, and a smaller one where it does not.
"""

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
"""Smallest side in pixels for the default Nature network: on smaller images its strides leave
nothing over."""
IMAGE_SMALLEST = 5
"""Smallest side of an image in pixels; a smaller array counts as a vector."""


def image_layout(spec: ArraySpec) -> tuple[int, int, int, bool] | None:
    """The layout of an image: (channels, height, width, channels last); None if it is no image.

    One frame of rank 3 has its channels first or last, on the shorter of the two axes (last on a
    tie). Images are frames of rank 3, stacked or not, and stacked frames of rank 2.
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
    """One image leaf to features. It scales uint8 to 0..1, so that images travel as bytes."""

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
        pixels = _interleaved(image).to(torch.get_default_dtype())
        return torch.relu_(self.linear(self._convolve(pixels)))

    def _convolve(self, image: torch.Tensor) -> torch.Tensor:
        # Scale the first weights instead of the pixels: there are far fewer of them.
        scale = self._scale
        for layer in self._layers:
            weight = layer.weight if scale == 1.0 else layer.weight * scale
            scale = 1.0
            out = F.conv2d(image, weight, layer.bias, layer.stride, layer.padding)
            image = torch.relu_(out)
        # Flatten in the order of the memory, so that nothing is copied.
        return image.permute(0, 2, 3, 1).flatten(1)


def _interleaved(image: torch.Tensor) -> torch.Tensor:
    """The image [N, channels, height, width] with the channels of a pixel side by side in memory.

    Convolutions on a CPU are fastest on this layout.
    """
    # A graph leaves the layout to what runs it.
    if image.is_cuda or torch.compiler.is_exporting():
        return image
    if image.is_contiguous(memory_format=torch.channels_last):
        return image
    out = torch.empty_like(image, memory_format=torch.channels_last)
    # Copy channel by channel: twice as fast as one copy by torch.
    for target, channel in zip(out.unbind(1), image.unbind(1), strict=True):
        target.copy_(channel)
    return out


def _make_layers(channels: int, side: int, configured: Convolutions) -> list[nn.Conv2d]:
    """The convolutions of the settings, or defaults for an image with this shorter side."""
    if configured or side >= NATURE_SMALLEST:
        layers = []
        for number, (size, kernel, stride) in enumerate(configured or NATURE, 1):
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
