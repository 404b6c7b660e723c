"""Random numbers of a policy as inputs of its graph, so that the graph itself is deterministic."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from srl.errors import ConfigError

_TINY = torch.finfo(torch.float32).tiny
_MAKERS: dict[Any, str] = {
    torch.rand: "uniform",
    torch.rand_like: "uniform",
    torch.randn: "normal",
    torch.randn_like: "normal",
}
_FILLERS: dict[Any, str] = {
    torch.Tensor.uniform_: "uniform",
    torch.Tensor.exponential_: "uniform",
    torch.Tensor.normal_: "normal",
}
_REFUSED: tuple[Any, ...] = (
    torch.multinomial,
    torch.bernoulli,
    torch.normal,
    torch.poisson,
    torch.randint,
    torch.randperm,
    torch.Tensor.multinomial,
    torch.Tensor.bernoulli,
    torch.Tensor.bernoulli_,
    torch.Tensor.random_,
    torch.Tensor.cauchy_,
    torch.Tensor.geometric_,
    torch.Tensor.log_normal_,
)
_NEUTRAL = {"uniform": 0.5, "normal": 0.0}
"""Noise of greedy actions: what a policy multiplies by `explore` = 0, or does not use then."""


@dataclass(frozen=True)
class Noise:
    """One array of random numbers that a policy draws at each call."""

    kind: str
    """`uniform` (from 0 to 1, without 1) or `normal` (standard normal)."""
    shape: tuple[int, ...]
    """For one row."""


Source = Callable[[str, torch.Size], torch.Tensor]
"""Gives random numbers of a kind and shape."""


class GivenNoise(TorchFunctionMode):
    """While it is active, random numbers come from a source, not from torch's generators."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Replaces functions that draw random numbers."""
        kwargs = {} if kwargs is None else kwargs
        if func in _REFUSED:
            raise ConfigError(
                f"export: expected a policy that draws by torch.rand, torch.randn, uniform_, "
                f"normal_ or exponential_, got torch.{func.__name__}. Draw by one of these."
            )
        if func in _MAKERS:
            return self._made(func, args, kwargs)
        if func in _FILLERS:
            return self._filled(func, args, kwargs)
        return func(*args, **kwargs)

    def _made(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        if func in (torch.rand_like, torch.randn_like):
            like = args[0] if args else kwargs["input"]
            shape, dtype = like.shape, kwargs.get("dtype") or like.dtype
        else:
            size = kwargs.get("size", args)
            shape = torch.Size(size[0] if len(size) == 1 and not _is_int(size[0]) else size)
            dtype = kwargs.get("dtype") or torch.get_default_dtype()
        return self._source(_MAKERS[func], shape).to(dtype)

    def _filled(self, func: Any, args: Any, kwargs: dict[str, Any]) -> torch.Tensor:
        out, *numbers = args
        noise = self._source(_FILLERS[func], out.shape)
        if func is torch.Tensor.exponential_:
            rate = numbers[0] if numbers else kwargs.get("lambd", 1.0)
            # A sampler takes the logarithm, so 0 must not appear.
            noise = -torch.log1p(-noise).clamp(max=-_TINY) / rate
        else:
            first, second = ("from", "to") if func is torch.Tensor.uniform_ else ("mean", "std")
            a = numbers[0] if numbers else kwargs.get(first, 0.0)
            b = numbers[1] if len(numbers) > 1 else kwargs.get(second, 1.0)
            scale = b - a if func is torch.Tensor.uniform_ else b
            noise = noise * scale + a
        filled: torch.Tensor = out.copy_(noise)
        return filled


def neutral(kind: str, shape: torch.Size) -> torch.Tensor:
    """The noise of greedy actions."""
    return torch.full(shape, _NEUTRAL[kind])


class NoiseList:
    """Notes which noise a policy draws, and gives some."""

    def __init__(self) -> None:
        self.drawn: list[Noise] = []

    def __call__(self, kind: str, shape: torch.Size) -> torch.Tensor:
        """Gives neutral noise."""
        self.drawn.append(Noise(kind, tuple(shape[1:])))
        return neutral(kind, shape)


def _is_int(value: Any) -> bool:
    return isinstance(value, int | torch.SymInt)
