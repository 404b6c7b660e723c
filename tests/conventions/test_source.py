"""How the source reads: docstrings, sizes, names, and nothing that runs text as code."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from source import PACKAGE, ROOT, definitions, modules, tracked, tree_of, where

MAX_FILE_LINES = 420
MAX_FUNCTION_LINES = 60
FORBIDDEN_NAMES = re.compile(r"(^|_)(utils?|common|legacy|misc|helpers?)(_|$)|_v2$|_old$|_new$")
MACHINE_PATHS = re.compile(r"/(home|Users|root)/[A-Za-z]|/wor[k]/|[A-Z]:\\\\Users")
TEXT = {".py", ".md", ".toml", ".yaml", ".yml", ".txt", ".sh", ".svg", ".json", ".jsonl", ""}


def test_every_module_has_a_docstring() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in modules().values()
        if path.read_text().strip() and not ast.get_docstring(tree_of(path))
    ]
    assert not wrong, wrong


def test_every_public_name_has_a_docstring() -> None:
    wrong = []
    for path in modules().values():
        for name, node in definitions(tree_of(path)):
            parts = name.split(".")
            if any(part.startswith("_") for part in parts) or is_overload_or_setter(node):
                continue
            if not ast.get_docstring(node):
                wrong.append(f"{where(path, node.lineno)}: {name}")
    assert not wrong, "\n".join(wrong)


def is_overload_or_setter(node: ast.AST) -> bool:
    return any(
        ast.unparse(decorator).endswith((".setter", "overload"))
        for decorator in getattr(node, "decorator_list", [])
    )


def test_every_docstring_begins_with_a_whole_sentence() -> None:
    wrong = []
    for path in modules().values():
        found = [("module", tree_of(path)), *definitions(tree_of(path))]
        for name, node in found:
            text = ast.get_docstring(node)
            if text and text.split("\n\n")[0].rstrip()[-1] not in ".:?)":
                wrong.append(f"{path.relative_to(ROOT)}: {name}: {text.splitlines()[0]}")
    assert not wrong, "\n".join(wrong)


def test_every_setting_has_its_meaning_under_it() -> None:
    wrong = []
    for path in modules().values():
        for name, node in definitions(tree_of(path)):
            if not isinstance(node, ast.ClassDef) or not name.endswith("Config"):
                continue
            body = node.body
            for line, following in zip(body, [*body[1:], None], strict=True):
                if not isinstance(line, ast.AnnAssign) or is_class_variable(line):
                    continue
                documented = isinstance(following, ast.Expr) and isinstance(
                    following.value, ast.Constant
                )
                if not documented:
                    wrong.append(f"{where(path, line.lineno)}: {name}.{ast.unparse(line.target)}")
    assert not wrong, "\n".join(wrong)


def is_class_variable(line: ast.AnnAssign) -> bool:
    return ast.unparse(line.annotation).startswith("ClassVar")


def test_files_are_short() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {lines} lines"
        for path in modules().values()
        if (lines := len(path.read_text().splitlines())) >= MAX_FILE_LINES
    ]
    assert not wrong, "\n".join(wrong)


def test_functions_are_short() -> None:
    wrong = []
    for path in modules().values():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or node.lineno) - node.lineno + 1
                if lines >= MAX_FUNCTION_LINES:
                    wrong.append(f"{where(path, node.lineno)}: {node.name}: {lines} lines")
    assert not wrong, "\n".join(wrong)


def test_no_file_is_a_drawer_for_odds_and_ends() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in tracked()
        if any(
            FORBIDDEN_NAMES.search(part.lower().split(".")[0])
            for part in path.relative_to(ROOT).parts
        )
    ]
    assert not wrong, wrong


def test_modules_that_tests_share_have_names_of_their_own() -> None:
    """All of them are on one path, so of two with one name only the first is found."""
    shared = [
        path
        for path in (ROOT / "tests").rglob("*.py")
        if not path.name.startswith("test_") and path.name != "conftest.py"
    ]
    names = [path.name for path in shared]
    wrong = [str(path.relative_to(ROOT)) for path in shared if names.count(path.name) > 1]
    assert not wrong, "\n".join(wrong)


def test_no_private_name_is_mangled() -> None:
    wrong = []
    for path in modules().values():
        for node in ast.walk(tree_of(path)):
            name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "name", "")
            if isinstance(name, str) and re.match(r"__[^_].*(?<!__)$", name):
                wrong.append(f"{where(path, getattr(node, 'lineno', 0))}: {name}")
    assert not wrong, "\n".join(wrong)


def test_no_text_is_run_as_code() -> None:
    wrong = []
    for path in modules().values():
        for node in ast.walk(tree_of(path)):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            if called in ("eval", "exec", "compile", "__import__"):
                wrong.append(f"{where(path, node.lineno)}: {called}")
            if called == "torch.load" and not any(
                word.arg == "weights_only" and ast.unparse(word.value) == "True"
                for word in node.keywords
            ):
                wrong.append(f"{where(path, node.lineno)}: torch.load without weights_only=True")
            if called.endswith("np.load") and any(
                word.arg == "allow_pickle" and ast.unparse(word.value) != "False"
                for word in node.keywords
            ):
                wrong.append(f"{where(path, node.lineno)}: np.load with allow_pickle")
            if called in ("yaml.load", "yaml.unsafe_load", "yaml.full_load"):
                loaders = [
                    ast.unparse(word.value) for word in node.keywords if word.arg == "Loader"
                ]
                if not (loaders and is_safe_loader(path, loaders[0])):
                    wrong.append(f"{where(path, node.lineno)}: {called} without a safe loader")
    assert not wrong, "\n".join(wrong)


def is_safe_loader(path: Path, name: str) -> bool:
    """SafeLoader itself, or a class of the same module that is one."""
    if name.endswith("SafeLoader"):
        return True
    return any(
        node.name == name and any(ast.unparse(b).endswith("SafeLoader") for b in node.bases)
        for _, node in definitions(tree_of(path))
        if isinstance(node, ast.ClassDef)
    )


def test_no_machines_paths_are_in_the_tree() -> None:
    wrong = []
    for path in tracked():
        if path.suffix not in TEXT or path == Path(__file__):
            continue
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        wrong += [where(path, i) for i, line in enumerate(lines, 1) if MACHINE_PATHS.search(line)]
    assert not wrong, "\n".join(wrong)


def test_no_code_is_commented_out_and_no_note_is_left_untracked() -> None:
    wrong = []
    for path in PACKAGE.rglob("*.py"):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if re.search(r"#\s*(TODO|FIXME|XXX|HACK)\b", line):
                wrong.append(f"{where(path, number)}: {line.strip()}")
            if re.match(
                r"\s*#\s*(def|class|import|from \w+ import|return|if .*:$|for .*:$)\b", line
            ):
                wrong.append(f"{where(path, number)}: {line.strip()}")
    assert not wrong, "\n".join(wrong)
