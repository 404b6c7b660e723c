"""Makes a module from the source of classes and functions in the cells of a notebook.

The module has the statements that define them, and those that define every name that they use:
imports, helpers, constants. The last definition of a name counts, as in the notebook itself.
"""

from __future__ import annotations

import ast
import builtins
import symtable
import sys
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from srl.errors import ConfigError

MAX_VALUE = 10_000
"""A constant whose text is longer than this is made by its statement again, not copied."""


@dataclass(frozen=True)
class _Statement:
    """One statement at the top of a cell."""

    source: str
    defines: frozenset[str]
    uses: frozenset[str]
    """Names of the notebook that it, or a function inside of it, reads."""
    needs_itself: frozenset[str]
    """Names that it both reads and defines, like `x` in `x += 1`."""
    is_import: bool
    is_star_import: bool


def notebook_cells() -> list[str]:
    """The source of each cell that this notebook, or IPython prompt, has run; empty elsewhere."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None:
        return []
    return [str(cell) for cell in shell.history_manager.input_hist_parsed]


def module_source(names: Sequence[str], cells: Sequence[str], namespace: Mapping[str, Any]) -> str:
    """The source of a module with these names of the notebook and all that they use.

    `namespace` has the notebook's variables. Raises `ConfigError` if a definition is not to be had.
    """
    statements = [statement for cell in cells for statement in _statements(cell)]
    collector = _Collector(statements, namespace)
    for name in names:
        collector.add(name, name)
    future = [one.source for one in statements if one.source.startswith("from __future__ ")]
    return "\n\n".join([*dict.fromkeys(future), *collector.sources, ""])


class _Collector:
    """Collects definitions, each after those that it uses."""

    def __init__(self, statements: list[_Statement], namespace: Mapping[str, Any]) -> None:
        self.sources: list[str] = []
        self._statements = statements
        self._namespace = namespace
        self._seen: set[str] = set()

    def add(self, name: str, wanted: str) -> None:
        """Adds what defines `name`, which `wanted` uses."""
        if name in self._seen:
            return
        self._seen.add(name)
        defining = [one for one in self._statements if name in one.defines]
        if name in self._namespace and not defining:
            self._add_undefined(name, wanted)
        elif not defining:
            # A builtin, or a name that does not exist in the notebook either.
            return
        elif defining[-1].is_import:
            # `import a.b` and `import a.c` both define `a`.
            self._append(*(one.source for one in defining if one.is_import))
        elif _is_constant(value := self._namespace.get(name)):
            self._append(f"{name} = {value!r}")
        else:
            self._add_statement(name, defining[-1], wanted)

    def _add_statement(self, name: str, statement: _Statement, wanted: str) -> None:
        if name in statement.needs_itself:
            raise ConfigError(
                f"{wanted}: expected names whose last definition stands alone, got {name!r}, which "
                "is made from its own value before. Give the result another name."
            )
        self._seen |= statement.defines
        for used in sorted(statement.uses):
            self.add(used, wanted)
        self._append(statement.source)

    def _add_undefined(self, name: str, wanted: str) -> None:
        value = self._namespace[name]
        stars = [one.source for one in self._statements if one.is_star_import]
        if isinstance(value, types.ModuleType):
            self._append(f"import {value.__name__} as {name}")
        elif stars:
            self._append(*stars)
        elif not hasattr(builtins, name) and not name.startswith("__"):
            raise ConfigError(
                f"{wanted}: expected {name!r} to be defined in a cell, got a name whose source is "
                "not in any cell."
            )

    def _append(self, *sources: str) -> None:
        self.sources += [source for source in sources if source not in self.sources]


def _statements(cell: str) -> Iterator[_Statement]:
    """The statements at the top of a cell; none if the cell is not Python."""
    try:
        nodes = ast.parse(cell).body
    except SyntaxError:
        return
    for node in nodes:
        source = _source(cell, node)
        table = symtable.symtable(source, "<cell>", "exec")
        own = table.get_symbols()
        defines = {one.get_name() for one in own if one.is_assigned() or one.is_imported()}
        read = {one.get_name() for one in own if one.is_referenced()}
        imported = node.names if isinstance(node, ast.Import | ast.ImportFrom) else []
        yield _Statement(
            source=source,
            defines=frozenset(defines),
            uses=frozenset((read | set(_used_inside(table))) - defines),
            needs_itself=frozenset(defines & read),
            is_import=bool(imported),
            is_star_import=any(alias.name == "*" for alias in imported),
        )


def _used_inside(table: symtable.SymbolTable) -> Iterator[str]:
    """Global names that functions and classes in a table read."""
    for child in table.get_children():
        yield from (one.get_name() for one in child.get_symbols() if one.is_global())
        yield from _used_inside(child)


def _source(cell: str, node: ast.stmt) -> str:
    decorators = getattr(node, "decorator_list", [])
    if not decorators:
        return ast.get_source_segment(cell, node) or ast.unparse(node)
    first = min(one.lineno for one in decorators)
    return "\n".join(cell.splitlines()[first - 1 : node.end_lineno])


def _is_constant(value: Any) -> bool:
    """Whether the text of a value gives an equal value."""
    if not isinstance(value, int | float | str | bytes | tuple | list | dict | set):
        return False
    text = repr(value)
    if len(text) > MAX_VALUE:
        return False
    try:
        found = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return False
    return type(found) is type(value) and bool(found == value)
