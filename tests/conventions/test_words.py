"""One word for each idea: the glossary's, and none of the words that it replaced."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

from source import PACKAGE, ROOT, modules, tracked, tree_of, where

GLOSSARY = ROOT / "docs" / "glossary.md"
RETIRED = re.compile(
    r"(?<![a-z])(bells?|gatekeeper|gates?|gated|fleet|ledgers?|desks?|inbox|last words|loans?"
    r"|lend(s|ing|er)?|lent|borrow(s|ed|er|ing)?|lanes?)(?![a-z])",
    re.I,
)
"""Metaphors that every reader had to look up, also as parts of names."""
OTHER_MEANING = {PACKAGE / "kernels" / "lstm.py", Path(__file__)}
"""An LSTM has gates."""


def test_no_public_class_is_defined_twice() -> None:
    names = Counter(
        node.name
        for path in modules().values()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in names.items() if count > 1]


def test_retired_words_are_gone() -> None:
    wrong = []
    for path in tracked():
        is_code = path.suffix == ".py"
        is_page = path.suffix == ".md" and any(
            path.is_relative_to(folder) for folder in (PACKAGE, ROOT / "docs")
        )
        if not (is_code or is_page) or path in OTHER_MEANING:
            continue
        wrong += [
            f"{where(path, number)}: {found.group(0)}"
            for number, line in enumerate(path.read_text().splitlines(), 1)
            if (found := RETIRED.search(line))
        ]
    assert not wrong, "\n".join(wrong)


def test_every_term_of_the_glossary_is_used() -> None:
    ours = GLOSSARY.read_text().partition("## Words of other systems")[0]
    rows = [row.strip(" -`") for row in re.findall(r"^\| ([^|]+) \|", ours, re.M)]
    terms = [term.strip() for row in rows if row not in HEADERS for term in row.split(",")]
    assert len(terms) >= 100
    text = " ".join(
        path.read_text() for path in PACKAGE.rglob("*") if path.suffix in (".py", ".md")
    )
    text = re.sub(r"[\s_#-]+", " ", text).lower()
    assert not [term for term in terms if not is_word_of(text, term)]


HEADERS = ("", "term", "mask")


def is_word_of(text: str, term: str) -> bool:
    """Whether a text has a term as words of their own, also in the plural."""
    words = re.sub(r"[\s_-]+", " ", term).lower()
    return re.search(rf"(?<![a-z]){re.escape(words)}s?(?![a-z])", text) is not None


def test_a_term_in_a_longer_word_is_not_used() -> None:
    assert is_word_of("of each part.", "part")
    assert is_word_of("wake pipes", "wake pipe")
    assert not is_word_of("partial departures", "part")
