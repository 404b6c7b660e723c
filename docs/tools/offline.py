"""Tells whether a built site can be read without a network."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

_ELSEWHERE = re.compile(r"(?:https?:)?//", re.I)
_IN_STYLES = re.compile(r"(?:url\(|@import)\s*['\"]?((?:https?:)?//[^'\")\s]+)", re.I)
_FOLLOWED_BY_A_CLICK = {"a", "area", "form"}


def requests_to_others(site: Path) -> list[str]:
    """What pages and styles of a site would load from other hosts: "file: address"."""
    found = []
    for path in sorted(site.rglob("*")):
        if path.suffix in (".html", ".css", ".svg"):
            addresses = _addresses(path.read_text())
            found += [f"{path.relative_to(site)}: {address}" for address in addresses]
    return found


def _addresses(text: str) -> Iterator[str]:
    parser = _Loads()
    parser.feed(text)
    yield from parser.addresses
    yield from _IN_STYLES.findall(text)


class _Loads(HTMLParser):
    """Collects the addresses on other hosts that a page loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Looks at every attribute that names a resource."""
        names = ("src", "href", "xlink:href", "data", "srcset", "poster", "action")
        values = {name: value or "" for name, value in attrs if name in names}
        links = dict(attrs).get("rel") in ("canonical", "author", "license")
        if tag not in _FOLLOWED_BY_A_CLICK and not links:
            self.addresses += [v for v in values.values() if _ELSEWHERE.match(v)]
