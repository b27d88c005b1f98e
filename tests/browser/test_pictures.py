"""The pictures of the documentation. PICTURES=1 writes them to docs/images."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live
from tests.fakes.fake_api_cluster import NOW, Town, busy, served

IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest.mark.parametrize(
    ("name", "view", "options"),
    [
        ("page-light", "tenants?open=robotics,research", {"color_scheme": "light"}),
        ("page-dark", "nodes", {"color_scheme": "dark"}),
        ("page-phone", "tenants", {"width": 360, "height": 740}),
        ("page-pod", "pods/robotics/wait-0", {"color_scheme": "light"}),
    ],
)
def test_the_pictures_show_the_page(
    opens: Opens, tmp_path: Path, name: str, view: str, options: dict[str, object]
) -> None:
    folder = IMAGES if os.environ.get("PICTURES") else tmp_path
    with served(Town(bulletin=LED, now=NOW), QUICK) as place:
        place.tell(*busy())
        page = live(opens, place, now=NOW + 754_000, **options)
        go(page, view)
        expect(page.locator("main .card").first).to_be_visible()
        expect(page.get_by_text("robotics").first).to_be_visible()
        page.screenshot(path=folder / f"{name}.png")
    assert (folder / f"{name}.png").stat().st_size > 10_000
    assert (IMAGES / f"{name}.png").exists()
