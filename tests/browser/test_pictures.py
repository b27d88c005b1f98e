"""The pictures of the documentation. PICTURES=1 writes them to docs/images."""

from __future__ import annotations

import os
from io import BytesIO
from pathlib import Path

import pytest
from PIL import Image
from playwright.sync_api import Page, expect

from app.core.explain.views import LeaderStateMessage
from app.core.model import Millis
from app.ports.api import PodEvent
from tests.browser.conftest import Opens
from tests.browser.signed_in import QUICK, go, sign_in
from tests.fakes.fake_api_cluster import NOW, ApiCluster, busy, ran, record_releases, served

OPENED = NOW + 754_000
"""The time of the pictures."""

WAITS = "queued: 1 of 31 in language/carol@example.com; waits for 8 nvidia.com/gpu of pool h100"
EVENTS = [(2, "Held", WAITS), (420, "Waiting", f"{WAITS}; tenant vision comes first")]
"""Events of a pod, with the seconds after its creation."""

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

RUNS = [
    ("vision", 16, 70, -20),
    ("vision", 6, 22, -20),
    ("vision", 8, 60, 30),
    ("robotics", 8, 70, -20),
    ("robotics", 12, 41, -20),
    ("language", 8, 47, -20),
    ("language", 4, 12, -20),
]
"""Tenant, GPUs, and how many minutes before `NOW` a run began and ended. -20: it still runs."""

IMAGES = Path(__file__).parents[2] / "docs" / "images"
COLOURS = 256
"""Colours of a written picture: it has a third of the size, and looks the same."""

LOOKS: dict[str, dict[str, object]] = {
    "light": {"color_scheme": "light", "height": 800},
    "dark": {"color_scheme": "dark", "height": 800},
    "phone": {"width": 360, "height": 740},
}
VIEWS = {
    "tenants": ("tenants?open=robotics,research", "dave@example.com"),
    "tenant": ("tenants/robotics", "guarantee: 8 of 8 GPUs used; limit: 20 of 24 GPUs used"),
    "queues": ("queues", "bob@example.com"),
    "queue": ("queues?tenant=language&user=carol@example.com", "1 of 31"),
    "nodes": ("nodes", "h100-07"),
    "node": ("nodes/h100/h100-06", "robotics/run-6"),
    "history": ("history", "Half waited at most 5 min"),
    "me": ("me", "You use 18 %"),
    "audit": ("audit?minutes=60", "amounts: 8 GPUs"),
    "glossary": ("glossary?reason=fair+order", "Why a pod waits"),
    "pod": ("pods/language/wait-0", "What happened"),
}
"""Address and awaited text of each view. A pod opens over the view before it."""


def save(page: Page, name: str, folder: Path) -> None:
    """Write a picture with few colours."""
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    few = picture.quantize(COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(folder / f"page-{name}.png", optimize=True)


@pytest.mark.parametrize("look", LOOKS)
def test_the_pictures_show_each_view(opens: Opens, tmp_path: Path, look: str) -> None:
    folder = IMAGES if os.environ.get("PICTURES") else tmp_path
    town = ApiCluster(leader_message=LeaderStateMessage(OPENED, 3, 0.5), now=OPENED)
    town.rights.name = "erin@example.com"
    town.rights.granted |= {("get", "audit"), ("list", "events")}
    for seconds, reason, message in EVENTS:
        event = PodEvent(Millis(NOW + 1000 * seconds), reason, message, "fairgate", False, 1)
        town.events.add("language", "wait-0", event)
    for minutes, (tenant, waits) in enumerate(RELEASES):
        record_releases(town.stream, tenant, 8, waits, minutes=5 * (len(RELEASES) - minutes))
    for name_of, devices, since, until in RUNS:
        run = ran(name_of, devices, since=since, until=until)
        town.past.runs.ended[run.id] = run
    with served(town, QUICK) as place:
        place.deliver(*busy())
        page = opens(place, now=OPENED, **LOOKS[look])
        expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
        save(page, f"sign-in-{look}", folder)
        sign_in(page)
        expect(page.get_by_role("status").first).to_have_text("Live")
        for name, (view, text) in VIEWS.items():
            if name == "pod":
                go(page, "queues")
            go(page, view)
            expect(page.get_by_text(text).locator("visible=true").first).to_be_visible()
            page.evaluate("scrollTo(0, 0)")
            save(page, f"{name}-{look}", folder)
    written = {path.name for path in folder.glob("page-*.png")}
    assert written >= {f"page-{name}-{look}.png" for name in ("sign-in", *VIEWS)}
    assert written <= {path.name for path in IMAGES.glob("page-*.png")}
