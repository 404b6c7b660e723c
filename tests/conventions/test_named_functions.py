"""Functions that the documents name as `file.py: Class.method` exist; nothing is imported."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest
from source import PACKAGE, ROOT, definitions, tracked, tree_of

NAMED = re.compile(r"`([\w/]+\.py): ([\w.]+)`")
PAGES = [path for path in tracked() if path.suffix == ".md" and path.is_relative_to(ROOT / "docs")]
TRACES = ROOT / "docs" / "architecture" / "tick.md"
JOURNEY = ROOT / "docs" / "architecture.md"


def named_in(text: str) -> list[tuple[str, str]]:
    """(file, function) of every function that a page names, also where a span breaks the line."""
    return NAMED.findall(re.sub(r"\s+", " ", text))


@cache
def defined_in(file: str) -> frozenset[str]:
    """Dotted names of all classes, functions and methods of a file below src/srl."""
    path = PACKAGE / file
    return (
        frozenset(name for name, _ in definitions(tree_of(path))) if path.is_file() else frozenset()
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_function_that_is_named_exists(page: Path) -> None:
    named = named_in(page.read_text())
    missing = [f"{file}: {name}" for file, name in named if name not in defined_in(file)]
    assert not missing, "\n".join(missing)


def test_the_traces_and_the_journey_name_functions() -> None:
    """If their form changed, the test above would find nothing to check."""
    for page, least in ((TRACES, 50), (JOURNEY, 20)):
        assert len(named_in(page.read_text())) >= least, page


def test_a_wrong_name_is_found() -> None:
    text = "`streams/sample.py: SampleSink.claim` and `streams/sample.py:\nSampleSink.lost`"
    assert [name for file, name in named_in(text) if name not in defined_in(file)] == [
        "SampleSink.lost"
    ]
