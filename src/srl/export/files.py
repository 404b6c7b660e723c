"""Exports a policy into one file that runs without SRL, and a page beside it that says how."""

from __future__ import annotations

import io
import json
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from srl.errors import ConfigError, RunError, SrlError
from srl.export.page import page
from srl.export.portable import PortablePolicy
from srl.extras import require
from srl.files import write_atomically
from srl.tracebacks import described

if TYPE_CHECKING:
    from srl.acting import ActingPolicy

ONNX, TORCH = ".onnx", ".pt2"
_EXAMPLE_ROWS = 3
"""Rows of the observations with which a policy is traced; the graph takes any number."""


def check_output(output: Path) -> None:
    """Raises unless a file's name ends in one of the formats, and what writes it is installed."""
    if output.suffix not in (ONNX, TORCH):
        raise ConfigError(
            f"--output: expected a name that ends in {ONNX} or {TORCH} (PyTorch), got "
            f"{output.name!r}."
        )
    if output.suffix == ONNX:
        for package in ("onnx", "onnxscript"):
            require(package, "exporting to ONNX")


def export_policy(
    acting: ActingPolicy, output: Path, *, explore: bool = False, source: str = ""
) -> Path:
    """Writes a policy into `output` and its page into a Markdown file beside it; returns `output`.

    `source` says in the page where the policy comes from.
    """
    check_output(output)
    kind = f"{type(acting.module).__module__}.{type(acting.module).__qualname__}"
    try:
        with _quiet():
            portable = PortablePolicy(acting, explore=explore).eval()
            content = _written(portable, output.suffix, source)
    except SrlError:
        raise
    except Exception as error:
        raise ConfigError(
            f"export: expected a policy that torch.export can trace, got {kind}, which failed: "
            f"{described(error):.500}. Its `act` must be plain torch code that does not branch on "
            "what is in a tensor (torch.where instead)."
        ) from error
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(output, content)
        write_atomically(output.with_suffix(".md"), page(portable, output.name, source).encode())
    except OSError as error:
        raise RunError(f"{output}: cannot write the export ({error.strerror or error}).") from error
    return output


def _written(portable: PortablePolicy, suffix: str, source: str) -> bytes:
    example = portable.example(_EXAMPLE_ROWS)
    rows = torch.export.Dim("rows", min=1)
    shapes = {"inputs": tuple({0: rows} for _ in example)}
    with torch.no_grad():
        program = torch.export.export(portable, example, dynamic_shapes=shapes, strict=False)
    buffer = io.BytesIO()
    if suffix == TORCH:
        torch.export.save(program, buffer)
        return buffer.getvalue()
    made: Any = torch.onnx.export(
        program,
        (),
        input_names=[port.name for port in portable.inputs],
        output_names=[port.name for port in portable.outputs],
        dynamo=True,
        verbose=False,
    )
    model = made.model_proto
    notes = {
        "srl.source": source,
        "srl.state": json.dumps([port.name for port in portable.state]),
        "srl.actions": "sampled" if portable.explore else "greedy",
    }
    for key, value in notes.items():
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value
    content: bytes = model.SerializeToString()
    return content


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences what torch's exporters say about themselves."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    try:
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            for logger in loggers:
                logger.setLevel(logging.ERROR)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
