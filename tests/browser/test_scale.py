"""The page with 100 tenants, 2 000 users, 10 000 pending pods and 1 000 nodes."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, expect

from app.core import events as ev
from app.web.api import stream
from tests.browser.conftest import Opens
from tests.browser.large_cluster import TENANTS, large_cluster
from tests.browser.signed_in import LED, QUICK, live, reach
from tests.fakes.fake_api_cluster import NOW, ApiCluster, Served, held, served

MOST_ROWS = 110
"""Most table rows of a view: a page of rows, and the heads."""


@pytest.fixture(scope="module")
def place() -> Iterator[Served]:
    with (
        pytest.MonkeyPatch.context() as patch,
        served(ApiCluster(leader_message=LED), QUICK) as place,
    ):
        # States are computed with short pauses. The tests do not measure time.
        patch.setattr(stream, "COST", 4)
        place.deliver(*large_cluster())
        yield place


def rows(page: Page) -> int:
    return page.get_by_role("row").count()


def test_the_overview_has_two_screens_and_few_rows(opens: Opens, place: Served) -> None:
    page = live(opens, place, width=1920, height=1080)
    expect(page.locator(".tile", has_text="Waiting")).to_contain_text("10,000 pods")
    assert page.evaluate("document.documentElement.scrollHeight") <= 2 * 1080
    assert rows(page) <= MOST_ROWS
    shown = page.locator("#tenant-rows tr")
    before = shown.count()
    # Every tenant can be reached.
    page.get_by_role("button", name=re.compile("^Show .* rows")).click()
    expect(shown).to_have_count(TENANTS)
    assert before < TENANTS
    expect(shown.last).to_contain_text("team-099")


@pytest.mark.parametrize(
    ("wanted", "queues", "team"), [("", 2000, "team-099"), ("team-04", 200, "team-049")]
)
def test_the_last_of_two_thousand_queues_can_be_reached(
    opens: Opens, place: Served, wanted: str, queues: int, team: str
) -> None:
    page = live(opens, place, f"queues?sort=name&filter={wanted}")
    last = reach(page.locator("#queue-rows tr"), queues)
    expect(last).to_contain_text(f"user-19@{team}.example.com")
    expect(page.get_by_text("left out")).to_have_count(0)


def test_a_filter_that_every_user_matches_shows_few_rows(opens: Opens, place: Served) -> None:
    page = live(opens, place, "tenants?filter=user-")
    expect(page.locator("#tenant-rows")).to_contain_text("user-00@team-000.example.com")
    assert rows(page) <= MOST_ROWS


@pytest.mark.parametrize("view", ["queues", "nodes", "tenants/team-042"])
def test_no_view_has_a_row_for_each_object(opens: Opens, place: Served, view: str) -> None:
    page = live(opens, place, view)
    expect(page.locator("main .card").first).to_be_visible()
    assert rows(page) <= MOST_ROWS
    assert page.locator(".node").count() <= 500
    if view == "nodes":
        assert page.evaluate("document.documentElement.scrollHeight") <= 2 * 900


def test_an_update_changes_the_numbers_and_adds_no_row(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    tile = page.locator(".tile", has_text="Waiting")
    expect(tile).to_contain_text("10,000 pods")
    before = rows(page)
    late = held("late", "team-007", "user-00@team-007.example.com", 8)
    place.deliver(late)
    expect(tile).to_contain_text("10,001 pods")
    assert rows(page) == before
    place.deliver(ev.PodGone(NOW, late.pod.uid))
    expect(tile).to_contain_text("10,000 pods")


def test_the_search_finds_one_pod_of_ten_thousand(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.get_by_role("combobox", name="Search").fill("job-42-7-3")
    page.get_by_role("option", name="job-42-7-3").first.click()
    expect(page.get_by_role("dialog")).to_contain_text("team-042/job-42-7-3")
