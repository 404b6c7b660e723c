"""What README and docs show exists: commands, options, links, examples, recipes."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from pathlib import Path

import pytest
from source import ROOT, tracked

from srl.cli import make_parser

DOCUMENTS = [path for path in tracked() if path.suffix == ".md"]
GUIDES = [
    path
    for path in DOCUMENTS
    if path.parent == ROOT or path.is_relative_to(ROOT / "docs") or "src" in path.parts
]


def code_lines(path: Path) -> list[str]:
    """Lines of fenced code blocks, continued lines joined."""
    lines: list[str] = []
    for block in re.findall(r"```[a-z]*\n(.*?)```", path.read_text(), re.S):
        lines += block.replace("\\\n", " ").splitlines()
    return [re.sub(r"^\$ ", "", line.strip()) for line in lines]


def commands(name: str) -> list[tuple[str, str]]:
    """(document, command) of every shown command of a program."""
    found = []
    for path in GUIDES:
        for line in code_lines(path):
            line = re.split(r"\s+#\s", line)[0]
            if re.match(rf"(\S*/)?{name}(\s|$)", line):
                found.append((str(path.relative_to(ROOT)), line))
    return found


@pytest.mark.parametrize(("document", "command"), commands("srl"))
def test_every_srl_command_that_is_shown_exists(document: str, command: str) -> None:
    if re.search(r"[\[<|]", command.split("'")[0]):
        pytest.skip("a synopsis, not a command")
    words = shlex.split(re.split(r"\s(?:&&|;|>|&$)\s?", command)[0])[1:]
    output, code = io.StringIO(), 0
    with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output):
        try:
            make_parser().parse_args(words)
        except SystemExit as end:
            code = int(end.code or 0)
    assert code == 0, f"{document}: {command}\n{output.getvalue()}"


@pytest.mark.parametrize(("document", "command"), commands("make"))
def test_every_make_command_that_is_shown_exists(document: str, command: str) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.M))
    words = [word for word in shlex.split(command)[1:] if "=" not in word]
    assert set(words) <= targets, document


def test_the_readme_shows_the_two_commands() -> None:
    lines = code_lines(ROOT / "README.md")
    assert any(line.startswith("make train") for line in lines)
    assert any(line.startswith("make test") for line in lines)


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = (path.parent / file).resolve() if file else path
        assert linked.exists(), f"{path.relative_to(ROOT)}: {target}"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{path.relative_to(ROOT)}: {target}"


NAMED = re.compile(r"`((?:src|tests|docs|benchmarks|examples)/[\w./-]+)`")


@pytest.mark.parametrize("path", GUIDES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_is_named_exists(path: Path) -> None:
    named = [name for name in NAMED.findall(path.read_text()) if ".venvs" not in name]
    assert not [name for name in named if not (ROOT / name).exists()]


def anchors(path: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", re.sub(r"```.*?```", "", path.read_text(), flags=re.S), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_every_example_can_be_imported_by_a_worker(path: Path) -> None:
    """Worker processes import a user's file; that must not start anything. `test_examples` in
    tests/learning runs them all."""
    text = path.read_text()
    assert text.startswith('"""'), "it says what it shows"
    assert 'if __name__ == "__main__":' in text
    before = text.split("if __name__ ==")[0]
    assert not re.search(r"^(srl\.train|run\s*=|main\()", before, re.M)
    compile(text, str(path), "exec")


def test_every_example_is_named_in_the_documents() -> None:
    text = "\n".join(path.read_text() for path in GUIDES)
    assert not [path.name for path in EXAMPLES if path.name not in text]
