"""Hooks of the site's build: adds pages from outside of docs/, and checks what was built."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import offline
import outside
import reference
import sequence
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.nav import Navigation
    from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> None:
    """Draws ```mermaid blocks when the site is built, and adds the algorithms' pages."""
    fence = {"name": "mermaid", "class": "sequence", "format": sequence.fence}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    reference_pages = next(section for section in config.nav if "Reference" in section)
    reference_pages["Reference"] += outside.algorithm_pages()


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds README.md as the first page, and every file that a page links to."""
    for path in sorted(outside.linked_files()):
        uri = outside.uri_of(path)
        if outside.is_asset(path):
            files.append(File.generated(config, uri, abs_src_path=str(outside.ROOT / path)))
        else:
            files.append(File.generated(config, uri, content=outside.page_of(path)))
    return files


def on_nav(nav: Navigation, *, config: MkDocsConfig, files: Files) -> None:
    """Ends the build if a page of docs/ cannot be found from the others."""
    shown = {page.file.src_uri for page in nav.pages}
    pages = {file.src_uri for file in files.documentation_pages() if file.generated_by is None}
    if pages - shown:
        raise PluginError(f"Not in `nav` of mkdocs.yml: {', '.join(sorted(pages - shown))}")


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adds what is made from the code, and makes links between files links between pages."""
    markdown = reference.with_generated_parts(markdown)
    return outside.with_site_links(markdown, outside.path_of(page.file.src_uri))


def on_post_build(*, config: MkDocsConfig) -> None:
    """Ends the build if a page would ask another host for something."""
    requests = offline.requests_to_others(Path(config.site_dir))
    if requests:
        raise PluginError("Pages would load from other hosts:\n" + "\n".join(requests))
