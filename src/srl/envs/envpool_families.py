"""Imports EnvPool with one family of environments, and the other families when they are needed.

`import envpool` loads every family with all its dependencies, plotting included. That takes more
than a second of a core in each process of a run. A family registers its environments when it is
imported, and `envpool.entry` imports all families. This module leaves `envpool.entry` out until a
caller looks for an environment that is not registered.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import sys
from collections.abc import KeysView
from pathlib import Path
from types import ModuleType
from typing import Any

_ENTRY = "envpool.entry"


def import_envpool(name: str) -> ModuleType:
    """EnvPool with the family of this environment; raises ImportError if it cannot be imported."""
    if "envpool" not in sys.modules and (families := _families(name)):
        sys.modules[_ENTRY] = ModuleType(_ENTRY)
        try:
            registry = importlib.import_module("envpool.registration").registry
            for family in families:
                importlib.import_module(family)
                if name in registry.specs:
                    break
            registry.specs = _Specs(registry.specs)
        finally:
            del sys.modules[_ENTRY]
    return importlib.import_module("envpool")


class _Specs(dict[str, Any]):
    """The registered environments; a look-up of any other imports all families."""

    def __contains__(self, name: object) -> bool:
        if not super().__contains__(name) and _ENTRY not in sys.modules:
            importlib.import_module(_ENTRY)
        return super().__contains__(name)

    def __missing__(self, name: str) -> Any:
        if name in self:
            return self[name]
        raise KeyError(name)

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        importlib.import_module(_ENTRY)
        return super().keys()


def _families(name: str) -> list[str]:
    """Modules that register environments; those whose source has this name come first."""
    spec = importlib.util.find_spec("envpool")
    if spec is None or not spec.submodule_search_locations:
        return []
    package = Path(next(iter(spec.submodule_search_locations)))
    entry = package / "entry.py"
    if not entry.is_file():
        return []
    imports = [node for node in ast.parse(entry.read_text()).body if isinstance(node, ast.Import)]
    modules = [alias.name for node in imports for alias in node.names]
    paths = {m: package.joinpath(*m.split(".")[1:]).with_suffix(".py") for m in modules}
    task = name.rpartition("-v")[0] or name
    return sorted(
        (module for module, path in paths.items() if path.is_file()),
        key=lambda module: f'"{task}"' not in paths[module].read_text(),
    )
