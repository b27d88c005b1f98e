"""The site of the documentation builds without a warning, and its pages load nothing from afar."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOADED = re.compile(r'<(?:script|img|link)\b[^>]*?(?:src|href)="(https?://[^"]+)"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the site, built as `make docs` builds it."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--site-dir", str(folder)]
    environment = {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert built.returncode == 0, built.stderr
    return folder


def test_each_page_of_the_documentation_is_in_the_site(site: Path) -> None:
    pages = [page.relative_to(ROOT / "docs") for page in (ROOT / "docs").rglob("*.md")]
    homes = [page.parent / page.name.replace("README", "index") for page in pages]
    assert [home for home in homes if not (site / home.with_suffix(".html")).is_file()] == []


def test_linked_pages_outside_docs_are_in_the_site(site: Path) -> None:
    assert 'href="repository/charts/fairgate/index.html"' in (site / "index.html").read_text()
    assert "Apache License" in (site / "repository/LICENSE").read_text()
    assert "Helm" in (site / "repository/charts/fairgate/index.html").read_text()


def test_pages_load_no_script_style_or_picture_from_another_host(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    assert [found for page in pages for found in LOADED.findall(page.read_text())] == []


def test_diagrams_are_drawn_by_a_script_of_the_site(site: Path) -> None:
    page = (site / "architecture.html").read_text()
    script = re.search(r'<script src="(site/mermaid/[^"]+)">', page)
    assert script is not None
    assert (site / script[1]).is_file()
    assert 'class="mermaid"' in page
