"""Optional packages: whether one is installed, and which extra of this project installs it."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

from srl.errors import ConfigError, MissingDependency
from srl.tracebacks import message_of

EXTRA_OF = {
    "ale_py": "atari",
    "cv2": "atari",
    "mujoco": "mujoco",
    "Box2D": "box2d",
    "envpool": "envpool",
    "pettingzoo": "pettingzoo",
    "mpe2": "pettingzoo",
    "imageio_ffmpeg": "video",
    "ray": "ray",
    "h5py": "datasets",
    "jax": "jax",
    "gymnax": "jax",
    "jaxmarl": "jax",
    "starlette": "watch",
    "uvicorn": "watch",
    "wandb": "wandb",
    "mlflow": "mlflow",
    "prometheus_client": "prometheus",
    "pandas": "pandas",
    "polars": "polars",
    "optuna": "sweep",
    "onnx": "export",
    "onnxscript": "export",
    "onnxruntime": "export",
}
"""The extra that installs each optional package, by the package's import name."""


def installed(package: str) -> bool:
    """Whether a package is installed."""
    try:
        return importlib.util.find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def require(package: str, what: str) -> None:
    """Raises if an optional package that `what` needs is not installed."""
    if not installed(package):
        raise MissingDependency(what, package, EXTRA_OF[package])


def import_extra(package: str, what: str) -> Any:
    """Imports an optional package that `what` needs."""
    require(package, what)
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{what}: the package {package!r} is installed, but its import failed: "
            f"{message_of(error)}."
        ) from error
