"""Imports point downwards only, and an actor never pays for torch."""

from __future__ import annotations

import ast
import graphlib
import subprocess
import sys

from source import imports_of, modules, tree_of, where

LAYERS = (
    ("errors", "version"),
    ("tracebacks",),
    ("cells", "resolve", "settings", "resources", "files", "extras"),
    ("arena",),
    ("data",),
    ("kernels", "graph"),
    ("envs", "streams", "services", "policies", "net"),
    ("datasets",),
    ("algorithms", "bridge", "reporting"),
    ("distributed", "plan"),
    ("workers",),
    ("settings_objects",),
    ("casting",),
    ("experiment",),
    ("recipes", "overrides", "launch"),
    ("arguments", "acting", "evaluation", "export", "run", "comparison"),
    ("bench", "sweep", "watch"),
    ("cli",),
)
"""From the bottom up. A module may import its own part and those of lower layers."""
BESIDE_ALL = ("testing",)
"""Shipped for users' tests; nothing in the package needs it."""
STRANGERS = ("envs", "streams", "services", "policies", "net", "algorithms", "bridge", "reporting")
"""Parts of one layer that know nothing of each other."""
LEVEL = {part: level for level, parts in enumerate(LAYERS) for part in parts}

FORBIDDEN = ("pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve")


def part_of(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def test_every_part_has_its_place() -> None:
    parts = {part_of(name) for name in modules()} - {"", *BESIDE_ALL}
    assert parts == set(LEVEL)


def test_imports_point_downwards() -> None:
    wrong = []
    for name, path in modules().items():
        part = part_of(name)
        if not part or part in BESIDE_ALL:
            continue
        for line, imported in imports_of(path):
            if not imported.startswith("srl."):
                continue
            other = part_of(imported)
            # `from srl import x` names a part; what is not one is an attribute of the package.
            if other == part or other not in {*LEVEL, *BESIDE_ALL}:
                continue
            allowed = other not in BESIDE_ALL and LEVEL[other] <= LEVEL[part]
            if allowed and LEVEL[other] == LEVEL[part]:
                allowed = part not in STRANGERS
            if not allowed:
                wrong.append(f"{where(path, line)}: {part} imports {imported}")
    assert not wrong, "\n".join(wrong)


def test_nothing_imports_the_package_itself() -> None:
    """`import srl` inside the package would import everything from everywhere."""
    wrong = [
        where(path, line)
        for name, path in modules().items()
        if part_of(name) not in ("", "cli", *BESIDE_ALL)
        for line, imported in imports_of(path)
        if imported == "srl"
    ]
    assert not wrong, "\n".join(wrong)


def test_errors_import_nothing_of_ours() -> None:
    for name in ("srl.errors",):
        assert not [x for _, x in imports_of(modules()[name]) if x.startswith("srl")]


def test_nothing_is_unpickled() -> None:
    wrong = [
        f"{where(path, line)}: {imported}"
        for path in modules().values()
        for line, imported in imports_of(path)
        if imported.split(".")[0] in FORBIDDEN
    ]
    assert not wrong, "\n".join(wrong)


WITHOUT_TORCH = [
    name
    for name in modules()
    if part_of(name) in ("data", "arena", "envs", "streams", "services", "net", "bridge")
] + ["srl.workers.actor", "srl.workers.wiring", "srl.workers.worker", "srl.launch.process.worker"]


def test_what_an_actor_imports_does_not_import_torch() -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {WITHOUT_TORCH!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'torch' not in sys.modules, name + ' imports torch'\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr.splitlines()[-1]


def test_modules_do_not_import_each_other_in_circles() -> None:
    """At import time; what a function imports when it is called does not count."""
    graph: dict[str, set[str]] = {}
    for name, path in modules().items():
        graph[name] = {
            alias_of(node.module, alias.name)
            for node in tree_of(path).body
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("srl")
            for alias in node.names
        } - {name}
    graphlib.TopologicalSorter(graph).prepare()


def alias_of(module: str | None, name: str) -> str:
    """The module that `from module import name` loads."""
    inner = f"{module}.{name}"
    return inner if inner in modules() else str(module)
