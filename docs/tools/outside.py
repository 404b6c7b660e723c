"""Pages of the site that are not in docs/: README.md, and every file that some page links to.

In the repository a link leads to a file. In the site it has to lead to a page, so that the site can
be read without the repository: a Markdown file is a page, a folder is a list, a picture is itself,
and any other file is a page that shows its text.
"""

from __future__ import annotations

import os
import re
from functools import cache
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]

_ASSETS = {".png", ".svg", ".jsonl", ".csv", ".gif"}
_LINK = re.compile(r"(?<=\]\()([^)#\s]*)(?=(?:#[^)\s]*)?\))")
_FENCE = re.compile(r"(^ *(`{3,}|~{3,}).*?^ *\2 *$)", re.S | re.M)
_START = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")


def algorithm_pages() -> list[str]:
    """The README of each algorithm."""
    pages = (ROOT / "src" / "srl" / "algorithms").glob("*/README.md")
    return sorted(str(path.relative_to(ROOT)) for path in pages)


def is_asset(path: str) -> bool:
    """Whether a file is part of the site as it is."""
    return PurePosixPath(path).suffix in _ASSETS


def uri_of(path: str) -> str:
    """Where the site has a file or folder of the repository."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{path}/index.md"
    return path if is_asset(path) or path.endswith(".md") else f"{path}.md"


def path_of(uri: str) -> str:
    """The file of the repository that a page of the site shows."""
    if (ROOT / "docs" / uri).exists():
        return f"docs/{uri}"
    return {uri_of(path): path for path in linked_files()}[uri]


@cache
def linked_files() -> frozenset[str]:
    """Files and folders outside of docs/ that some page links to, those of these pages included."""
    found = {*_START, *algorithm_pages()}
    pages = [*found, *(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
    while pages:
        page = pages.pop()
        if page.endswith(".md") or (ROOT / page).is_dir():
            linked = set(_targets(page)) - found
            found |= linked
            pages += linked
    return frozenset(found)


def _targets(page: str) -> list[str]:
    """What a page links to outside of docs/."""
    paths = (_resolve(page, link) for link in _LINK.findall(_FENCE.sub("", page_of(page))))
    return [path for path in paths if path and not path.startswith("docs/")]


def _resolve(page: str, link: str) -> str | None:
    """The path of the repository that a link leads to, or None if it leads elsewhere."""
    if not link or re.match(r"[a-z]+:", link):
        return None
    folder = page if (ROOT / page).is_dir() else os.path.dirname(page)
    path = os.path.normpath(os.path.join(folder, link))
    return path if (ROOT / path).exists() else None


def page_of(path: str) -> str:
    """The Markdown of a page that shows a file or folder of the repository."""
    source = ROOT / path
    if path.endswith(".md"):
        return source.read_text()
    title = f"---\ntitle: {path}\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    if source.is_dir():
        names = sorted(entry.name for entry in source.iterdir() if entry.suffix == ".md")
        return title + "".join(f"- [{name}]({name})\n" for name in names)
    language = {".py": "python", ".yaml": "yaml", ".json": "json"}.get(source.suffix, "text")
    return f"{title}~~~~~~{language}\n{source.read_text()}\n~~~~~~\n"


def with_site_links(markdown: str, page: str) -> str:
    """A page's Markdown, in which links to files lead to the pages that show these."""
    here = os.path.dirname(uri_of(page))

    def site_link(match: re.Match[str]) -> str:
        path = _resolve(page, match[0])
        return os.path.relpath(uri_of(path), here or ".") if path else match[0]

    parts = _FENCE.split(markdown)
    # Of each three parts the second is a block of code, the third the mark that it starts with.
    texts = [_LINK.sub(site_link, part) for part in parts[::3]]
    blocks = [*parts[1::3], ""]
    return "".join(text + block for text, block in zip(texts, blocks, strict=True))
