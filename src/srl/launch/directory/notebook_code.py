"""Keeps the code of a notebook in the folder of the run that is started there.

A class or function of a notebook has the import path `__main__:NAME`, which only the notebook's own
process can find. Its source is written into the run's folder, and the run names it there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from srl.cells import module_source, notebook_cells
from srl.errors import ConfigError
from srl.experiment import Experiment
from srl.files import write_atomically
from srl.resolve import forget_file
from srl.settings import convert, to_plain

NOTEBOOK_FILE = "notebook_code.py"
_START = "__main__:"
_HEADER = '''"""Code of the notebook that started this run. The run's processes import it."""

import sys

# Where the notebook ran: it may import modules of that folder.
sys.path.append({folder!r})
'''


def notebook_code(experiment: Experiment, run_dir: Path) -> tuple[Experiment, bytes]:
    """The experiment, with names in a file of the run for what a notebook defines, and the content
    of the file; that is empty if the experiment names nothing of a notebook.

    If a source is not to be had, layout `serial` uses this process's own classes and functions;
    other layouts raise `ConfigError`.
    """
    plain = to_plain(experiment)
    names: dict[str, None] = {}
    _replaced(plain, lambda name: names.setdefault(name))
    if not names:
        return experiment, b""
    try:
        source = _source_of(list(names))
    except ConfigError:
        if experiment.layout == "serial":
            return experiment, b""
        raise
    file = (run_dir / NOTEBOOK_FILE).resolve()
    named = convert(_replaced(plain, lambda name: f"{file}:{name}"), Experiment, "experiment")
    return named, f"{_HEADER.format(folder=str(Path.cwd()))}\n{source}".encode()


def write_notebook_code(content: bytes, run_dir: Path) -> None:
    """Writes the file that `notebook_code` names."""
    file = (run_dir / NOTEBOOK_FILE).resolve()
    write_atomically(file, content)
    # This process may have imported what a run in the same folder wrote before.
    forget_file(file)


def _source_of(names: list[str]) -> str:
    advice = (
        'Train with layout="serial", where this process runs everything, or save the code in a .py '
        "file and import it."
    )
    cells = notebook_cells()
    if not cells:
        raise ConfigError(
            f"{', '.join(names)}: expected something that worker processes can import, got one "
            f"that was typed at a prompt, which does not keep its source. {advice}"
        )
    try:
        return module_source([name.split(".")[0] for name in names], cells, _namespace())
    except ConfigError as error:
        raise ConfigError(f"{error} Worker processes need the source. {advice}") from None


def _namespace() -> dict[str, Any]:
    return vars(sys.modules["__main__"])


def _replaced(plain: Any, path_of: Callable[[str], Any]) -> Any:
    """Plain settings, in which every import path into the main program is replaced."""
    if isinstance(plain, dict):
        return {key: _replaced(value, path_of) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return [_replaced(value, path_of) for value in plain]
    if isinstance(plain, str) and plain.startswith(_START):
        return path_of(plain.removeprefix(_START))
    return plain
