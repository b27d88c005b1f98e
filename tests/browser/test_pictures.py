"""The pictures of the documentation. PICTURES=1 writes them to docs/images."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live
from tests.fakes.fake_api_cluster import NOW, Town, busy, ran, record_releases, served

RELEASES = [
    ("vision", (60, 400)),
    ("robotics", (1200,)),
    ("vision", (30, 90, 600)),
    ("language", (20, 45)),
    ("robotics", (300, 900)),
    ("teaching", (15,)),
    ("language", (240, 2400)),
    ("vision", (500, 700)),
]
"""Tenant and waits of releases, every five minutes."""

IMAGES = Path(__file__).parents[2] / "docs" / "images"


@pytest.mark.parametrize(
    ("name", "view", "options"),
    [
        ("page-light", "tenants?open=robotics,research", {"color_scheme": "light"}),
        ("page-dark", "nodes", {"color_scheme": "dark"}),
        ("page-phone", "tenants", {"width": 360, "height": 740}),
        ("page-pod", "pods/robotics/wait-0", {"color_scheme": "light"}),
        ("page-history", "history", {"color_scheme": "light", "height": 1500}),
    ],
)
def test_the_pictures_show_the_page(
    opens: Opens, tmp_path: Path, name: str, view: str, options: dict[str, object]
) -> None:
    folder = IMAGES if os.environ.get("PICTURES") else tmp_path
    town = Town(bulletin=LED, now=NOW)
    for minutes, (tenant, waits) in enumerate(RELEASES):
        record_releases(town.stream, tenant, 8, waits, minutes=5 * (len(RELEASES) - minutes))
    for name_of, devices in (("vision", 22), ("robotics", 20), ("language", 12)):
        run = ran(name_of, devices, since=50, until=0)
        town.past.runs.ended[run.id] = run
    with served(town, QUICK) as place:
        place.tell(*busy())
        page = live(opens, place, now=NOW + 754_000, **options)
        go(page, view)
        expect(page.locator("main .card").first).to_be_visible()
        expect(page.get_by_text("robotics").first).to_be_visible()
        page.screenshot(path=folder / f"{name}.png")
    assert (folder / f"{name}.png").stat().st_size > 10_000
    assert (IMAGES / f"{name}.png").exists()
