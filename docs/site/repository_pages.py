"""Hooks of MkDocs: pages outside docs/ join the site, and links work as on a code host.

Pages link to files by their path in the repository. A linked file outside docs/ becomes a part of
the site, below repository/. Scripts of diagrams are loaded only by the pages that have diagrams.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
OUTSIDE = "repository/"
LINK = re.compile(r"(?<=\]\()(?!#)([^)\s:]+?)(#[^)\s]*)?(?=\))")
DIAGRAM = "```mermaid"
DIAGRAM_SCRIPT = "site/mermaid/mermaid.tiny.js"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that a page links to, and the files that those link to."""
    pending = [file for file in files if file.is_documentation_page()]
    while pending:
        page = pending.pop()
        for link, _ in LINK.findall(page.content_string):
            uri = site_uri(page.src_uri, link)
            if uri.startswith(OUTSIDE) and files.get_file_from_path(uri) is None:
                source = ROOT / uri.removeprefix(OUTSIDE)
                if source.is_file():
                    added = File.generated(config, uri, abs_src_path=str(source))
                    files.append(added)
                    pending += [added] if added.is_documentation_page() else []
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page to paths in the site."""
    uri = page.file.src_uri
    folder = posixpath.dirname(uri)

    def rewritten(link: re.Match[str]) -> str:
        return posixpath.relpath(site_uri(uri, link[1]), folder or ".") + (link[2] or "")

    text = LINK.sub(rewritten, markdown)
    if DIAGRAM not in markdown:
        return text
    return f'{text}\n\n<script src="{posixpath.relpath(DIAGRAM_SCRIPT, folder or ".")}"></script>\n'


def site_uri(page: str, link: str) -> str:
    """Return the path in the site of a link on a page. A folder stands for its README.md."""
    own = page.removeprefix(OUTSIDE) if page.startswith(OUTSIDE) else f"docs/{page}"
    target = posixpath.normpath(posixpath.join(posixpath.dirname(own), link))
    if (ROOT / target).is_dir():
        target += "/README.md"
    return target.removeprefix("docs/") if target.startswith("docs/") else OUTSIDE + target
