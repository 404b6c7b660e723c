"""Finding user code by name: `module:attribute` or `path/to/file.py:attribute`, in any process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from srl.errors import ConfigError, nearest

SENT_FROM = "SRL_CODE_SENT_FROM"
"""Names, where a user's folder was sent to another machine, the folder as it was at home. There it
is the folder that processes start in."""


def resolve(path: str) -> Any:
    """The object that an import path names."""
    module_name, _, attribute = path.rpartition(":")
    if not module_name or not attribute:
        raise ConfigError(
            f"import path: expected 'module:attribute' or 'file.py:attribute', got {path!r}."
        )
    module = _load_file(module_name) if module_name.endswith(".py") else _load_module(module_name)
    found: Any = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            known = [name for name in vars(found) if not name.startswith("_")]
            raise ConfigError(f"{module_name} has no {attribute!r}: {nearest(part, known)}")
        found = getattr(found, part)
    return found


def path_of(thing: Any) -> str:
    """The import path of a class or function, so that worker processes can find it again."""
    module, name = thing.__module__, thing.__qualname__
    if "<" in name:
        raise ConfigError(
            f"{name}: expected a class or function at the top of a module, got one that worker "
            "processes cannot import. Move it out of the function or lambda."
        )
    if module == "__main__":
        file = getattr(sys.modules["__main__"], "__file__", None)
        if file is None:
            raise ConfigError(
                f"{name}: expected something that worker processes can import, got one defined in "
                "a notebook or prompt. Save it in a .py file and import it."
            )
        return f"{Path(file).resolve()}:{name}"
    source = getattr(sys.modules[module], "__srl_file__", None)
    return f"{source or module}:{name}"


def _load_module(name: str) -> Any:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(error.name + ".")):
            raise ConfigError(
                f"import path: no module named {name!r}. Is it installed, or in this folder?"
            ) from None
        raise


def _arrived(file: Path) -> Path:
    """Where a file of the user's folder is on this machine."""
    home = os.environ.get(SENT_FROM)
    if home and file.is_relative_to(home):
        return Path.cwd() / file.relative_to(home)
    return file


def _load_file(name: str) -> Any:
    file = _arrived(Path(name).resolve())
    if not file.is_file():
        raise ConfigError(f"import path: no file {name!r}.")
    module_name = f"srl_user_{file.stem}_{abs(hash(str(file))):x}"
    if module_name in sys.modules:
        return sys.modules[module_name]
    spec = importlib.util.spec_from_file_location(module_name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    module.__srl_file__ = str(file)  # type: ignore[attr-defined]
    sys.modules[module_name] = module
    if str(file.parent) not in sys.path:
        sys.path.insert(0, str(file.parent))
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
