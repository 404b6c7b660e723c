"""The tools of the site (docs/tools): links lead to pages, and no page needs a network."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
from source import ROOT

from srl.cli import make_parser


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / "tools" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # Dataclasses look for their module there.
    spec.loader.exec_module(module)
    return module


def test_what_a_page_loads_from_other_hosts_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(
        '<script src="https://a.example/x.js"></script><img src="own.png">'
        '<link rel="stylesheet" href="//b.example/x.css"><script>load("own.js")</script>'
        '<style>@import "https://c.example/x.css";</style><a href="https://d.example">read</a>'
    )
    (tmp_path / "own.css").write_text("p { background: url(https://e.example/x.png) url(own.png) }")
    found = {line.split("//")[1][0] for line in tool("offline").requests_to_others(tmp_path)}
    assert found == {"a", "b", "c", "e"}


def test_links_to_files_of_the_repository_lead_to_their_pages() -> None:
    text = (
        "[a](../src/srl/data/records.py) [b](../README.md) [c](security.md#keys) [d](https://x.y)\n"
        "```python\nx = [e](../README.md)\n```\n[f](../benchmarks/results)"
    )
    assert tool("outside").with_site_links(text, "docs/architecture.md") == (
        "[a](src/srl/data/records.py.md) [b](index.md) [c](security.md#keys) [d](https://x.y)\n"
        "```python\nx = [e](../README.md)\n```\n[f](benchmarks/results/index.md)"
    )


def test_files_that_pages_link_to_are_in_the_site() -> None:
    linked = tool("outside").linked_files()
    assert {"README.md", "src/srl/data/records.py", "src/srl/algorithms/ppo/README.md"} <= linked
    assert not [path for path in linked if path.startswith("docs/")]


def test_the_reference_has_every_verb_and_setting() -> None:
    text = tool("reference").with_generated_parts(
        "<!-- generated: commands -->\n<!-- generated: settings -->"
    )
    verbs = next(action.choices for action in make_parser()._actions if action.dest == "verb")
    assert verbs
    assert not [verb for verb in verbs if f"## srl {verb}\n" not in text]
    for key in ("steps", "actor.envs", "algorithm.learning_rate", "slurm.partition"):
        assert f"`{key}` |" in text
    assert "`auto | serial | inline | shared | remote` | `auto` |" in text


def test_a_sequence_diagram_shows_all_of_its_texts_and_refuses_what_it_does_not_know() -> None:
    pytest.importorskip("pymdownx", reason="needs the extra `docs`")
    sequence = tool("sequence")
    source = (
        "sequenceDiagram\n  participant A as an actor\n  participant B\n  loop every tick\n"
        "  A->>B: a request<br/>of two lines\n  B-->>A: x < y\n  A->>A: itself\n  end\n"
        "  Note over A,B: both\n"
    )
    drawn = sequence.draw(source)
    texts = re.findall(r"<tspan[^>]*>([^<]*)</tspan>", drawn)
    assert sorted(texts) == sorted(
        [
            "an actor",
            "B",
            "loop: every tick",
            "a request",
            "of two lines",
            "x &lt; y",
            "itself",
            "both",
        ]
    )
    ends = [float(x) for x in re.findall(r'x="(\d+)"', drawn)]
    assert max(ends) <= float(re.search(r'width="(\d+)" xmlns', drawn)[1])
    for line in ("A->B: another arrow", "A->>C: to nobody", "A->>B: two; halves"):
        with pytest.raises(sequence.DiagramError):
            sequence.draw(source + line)


def test_every_page_is_in_the_navigation() -> None:
    docs = ROOT / "docs"
    pages = {str(path.relative_to(docs)) for path in docs.rglob("*.md")}
    text = (ROOT / "mkdocs.yml").read_text()
    named = set(re.findall(r"^ +- (?:[\w -]+: )?(\S+\.md)$", text, re.M)) - {"index.md"}
    assert named == pages, "list it under `nav` in mkdocs.yml"
