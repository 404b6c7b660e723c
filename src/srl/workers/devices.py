"""Checks that the device in the settings is one that torch can use on this machine."""

from __future__ import annotations

import re
from pathlib import Path

from srl.errors import ConfigError
from srl.tracebacks import message_of

GPU_DRIVERS = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
"""Files that a machine with a GPU has: NVIDIA's driver, WSL's, AMD's."""
_NAMES = re.compile(r"(cpu|cuda|mps|xpu)(:\d+)?")


def check_name(device: str, setting: str, *others: str) -> None:
    """Raises if `device` is not a device name; `others` are other words that the setting takes."""
    if device not in others and not _NAMES.fullmatch(device):
        words = ", ".join(repr(word) for word in (*others, "cpu", "cuda", "cuda:1"))
        raise ConfigError(f"{setting}: expected one of {words}, got {device!r}.")


def has_gpu_driver() -> bool:
    """Whether this machine may have a GPU; only torch knows for certain, but its import is slow."""
    return any(Path(driver).exists() for driver in GPU_DRIVERS)


def require_device(device: str, setting: str) -> None:
    """Raises if torch cannot use this device on this machine."""
    if device == "cpu":
        return
    import torch

    try:
        torch.zeros(1, device=device)
    except Exception as error:
        reason = message_of(error).partition(". ")[0].splitlines()[0].rstrip(".")
        raise ConfigError(
            f"{setting}: expected a device that this machine has, got {device!r} ({reason}). Use "
            "cpu, or leave the setting out: SRL then uses a GPU if there is one."
        ) from error
