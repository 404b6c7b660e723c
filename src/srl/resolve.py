"""Finds user code by name, `module:attribute` or `path/to/file.py:attribute`, in any process."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from srl.errors import ConfigError, nearest
from srl.tracebacks import user_code

SENT_FROM = "SRL_CODE_SENT_FROM"
"""Environment variable with the original path of a user's folder that was sent to another machine.
Processes on that machine start in the copy of the folder."""
_MAIN_GUARD = 'Put the code that runs the program under: if __name__ == "__main__":'
_importing: list[str] = []
"""The user's files and modules that are being imported now, the outermost first."""


@contextmanager
def importing(name: str) -> Iterator[None]:
    """Marks a user's file or module as being imported: it must not train or end the program."""
    _importing.append(name)
    try:
        yield
    except SystemExit as error:
        raise ConfigError(
            f"{name}: expected a file that can be imported, got one that ends the program (exit "
            f"code {error.code}). {_MAIN_GUARD}"
        ) from None
    finally:
        _importing.pop()


@contextmanager
def _user_import(name: str) -> Iterator[None]:
    """Like `importing`, and reports what the import raises as an error of the user's code."""
    with user_code(f"{name}: its import"), importing(name):
        yield


def refuse_while_importing(call: str) -> None:
    """Raises if a user's file makes `call` while SRL imports the file.

    Every process of a run imports that file, so each process would make the call again.
    """
    if _importing:
        raise ConfigError(
            f"{call}: expected a call by a program, got one by {_importing[-1]} while SRL imports "
            f"it. Every process of a run imports this file, and would make the call again. "
            f"{_MAIN_GUARD}"
        )


def resolve(path: str) -> Any:
    """The object at an import path."""
    module_name, _, attribute = path.rpartition(":")
    if not module_name or not attribute:
        raise ConfigError(
            f"import path: expected 'module:attribute' or 'file.py:attribute', got {path!r}."
        )
    found: Any = load(module_name)
    for part in attribute.split("."):
        if not hasattr(found, part):
            if module_name == "__main__":
                raise ConfigError(
                    f"{path}: expected code of this program, got a name of the notebook or prompt "
                    "that started the run, which only that process knows."
                )
            known = [name for name in vars(found) if not name.startswith("_")]
            raise ConfigError(f"{module_name} has no {attribute!r}: {nearest(part, known)}")
        found = getattr(found, part)
    return found


def load(name: str) -> Any:
    """Imports a module by its name or its file; modules of the current folder are found too."""
    return _load_file(name) if name.endswith(".py") else _load_module(name)


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
            # Of a notebook or a prompt: what starts the run writes the source into a file.
            return f"{module}:{name}"
        return f"{Path(file).resolve()}:{name}"
    source = getattr(sys.modules[module], "__srl_file__", None)
    return f"{source or module}:{name}"


def owner_of(
    config: object, configs: Mapping[str, str], owners: Mapping[str, str], base: str, where: str
) -> str:
    """The short name or import path of the class that a settings object belongs to.

    `configs` and `owners` are the import paths of settings classes and of their owners, by short
    name. `base` is the base class of all owners.
    """
    own = f"{type(config).__module__}:{type(config).__qualname__}"
    for name, path in configs.items():
        if path == own:
            return name
    found = _class_with(config, base, where)
    return next((name for name, path in owners.items() if path == found), found)


def _class_with(config: object, base: str, where: str) -> str:
    """The import path of the class that a settings object belongs to.

    It is the imported subclass of `base` (`module:Class`) whose own `Config` is the object's class.
    """
    module, _, name = base.partition(":")
    # A base class that is not imported has no subclasses.
    root: type | None = getattr(sys.modules.get(module), name, None)
    kind = type(config)
    known = [] if root is None else list(_subclasses(root))
    # Of a module that was imported again there are two classes, with one path.
    found = sorted({path_of(one) for one in known if vars(one).get("Config") is kind})
    if len(found) == 1:
        return found[0]
    got = f"several ({', '.join(found)})" if found else "none"
    raise ConfigError(
        f"{where}: expected one imported subclass of {name} with `Config = {kind.__name__}`, got "
        f"{got}. Import the class before, or give a dict whose `name` is its import path."
    )


def _subclasses(kind: type) -> Iterator[type]:
    below: list[type] = kind.__subclasses__()
    for one in below:
        yield one
        yield from _subclasses(one)


@contextmanager
def with_current_folder() -> Iterator[None]:
    """Lets code inside the `with` block import modules of the current folder, as `load` does."""
    before = list(sys.path)
    _add_current_folder()
    try:
        yield
    finally:
        sys.path[:] = before


def _add_current_folder() -> None:
    if "" not in sys.path and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))


def _load_module(name: str) -> Any:
    # Not for SRL's own modules: the current folder may be another user's. A file there with the
    # name of a package would be imported instead of the package.
    if name.partition(".")[0] != "srl":
        _add_current_folder()
    with _user_import(name):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(error.name + ".")):
                raise ConfigError(
                    f"import path: no module named {name!r}. Is it installed, or in this folder?"
                ) from None
            raise


def local_file(name: str) -> Path:
    """The path on this machine of a file that an import path names."""
    file = Path(name).resolve()
    original = os.environ.get(SENT_FROM)
    if original and file.is_relative_to(original):
        return Path.cwd() / file.relative_to(original)
    return file


def forget_file(file: Path) -> None:
    """Lets the next `load` of a file, whose content has changed, import it again."""
    sys.modules.pop(_name_of_file(file), None)


def _name_of_file(file: Path) -> str:
    return f"srl_user_{file.stem}_{abs(hash(str(file))):x}"


def _load_file(name: str) -> Any:
    file = local_file(name)
    if not file.is_file():
        raise ConfigError(f"import path: no file {name!r}.")
    module_name = _name_of_file(file)
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
        with _user_import(str(file)):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module
