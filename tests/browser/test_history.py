"""The time of the history view: by mouse, by keyboard, by two fields, and in the address."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from urllib.parse import parse_qs

import pytest
from playwright.sync_api import Page, expect

from app.core.model import Millis
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, live, settled
from tests.fakes.fake_api_cluster import NOW, ApiCluster, Served, busy, ran, served

FROM, TO = "2026-09-21T13:20:00Z", "2026-09-21T13:50:00Z"


@pytest.fixture
def place() -> Iterator[Served]:
    town = ApiCluster(leader_message=LED, now=NOW)
    run = ran("vision", 64, since=60, until=30)  # 64 H100s that count 4 each
    town.past.runs.ended[run.id] = run
    with served(town, QUICK) as place:
        place.deliver(*busy())
        yield place


def history(opens: Opens, place: Served, query: str = "") -> Page:
    page = live(opens, place, f"history{query}", now=NOW, timezone_id="UTC")
    expect(page.locator(".chart canvas").first).to_be_visible()
    return page


def period(page: Page) -> list[float]:
    """Return begin and end in the address, in minutes before now."""
    query = parse_qs(page.url.partition("?")[2])
    times = [datetime.fromisoformat(query[name][0]) for name in ("from", "to")]
    return [(NOW / 1000 - time.timestamp()) / 60 for time in times]


def pass_minute(page: Page, place: Served) -> None:
    place.cluster.now = Millis(NOW + 60_000)
    page.clock.set_fixed_time(NOW / 1000 + 60)
    page.clock.fast_forward(60_000)


def test_mouse_selection_is_shown_and_stored_in_the_address(opens: Opens, place: Served) -> None:
    page = history(opens, place)
    plot = page.locator(".chart .u-over").first
    box = plot.bounding_box()
    assert box is not None
    middle = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] / 4, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, middle, steps=4)
    page.mouse.up()
    settled(page, "location.hash.includes('from=')")
    begin, end = period(page)
    assert begin == pytest.approx(45, abs=1.5)
    assert end == pytest.approx(30, abs=1.5)
    page.reload()
    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "false")
    page.get_by_role("group", name="Weighted GPUs in use").press("ArrowLeft")
    expect(page.locator(".values").first).to_contain_text("research 256")  # the run has not ended
    page.get_by_role("button", name="24 hours").click()
    settled(page, "location.hash === '#/history?range=86400'")


def test_a_selection_by_keyboard_is_announced_and_shown(opens: Opens, place: Served) -> None:
    page = history(opens, place)
    chart = page.get_by_role("group", name="Weighted GPUs in use")
    words = page.locator(".values").first
    chart.press("ArrowLeft")
    for _ in range(19):
        chart.press("Shift+ArrowLeft")
    expect(words).to_contain_text("Selected: ")
    expect(words).to_contain_text("Enter shows this time.")
    assert chart.locator(".u-select").evaluate("box => box.offsetWidth") > 50
    chart.press("Escape")
    expect(words).not_to_contain_text("Selected")
    assert "from=" not in page.url
    chart.press("ArrowRight")
    chart.press("Shift+ArrowRight")
    chart.press("Shift+ArrowRight")
    chart.press("Enter")
    settled(page, "location.hash.includes('from=')")
    begin, end = period(page)
    assert begin - end == pytest.approx(1.5)  # three steps of half a minute


def test_keyboard_selection_keeps_its_time_after_new_data(opens: Opens, place: Served) -> None:
    page = history(opens, place)
    chart = page.get_by_role("group", name="Weighted GPUs in use")
    words = page.locator(".values").first
    for _ in range(20):
        chart.press("Shift+ArrowLeft")
    expect(words).to_contain_text("Selected: ")
    selected = words.inner_text()
    left = chart.locator(".u-select").evaluate("box => box.offsetLeft")
    to = page.get_by_label("To", exact=True)
    before = to.input_value()
    pass_minute(page, place)
    expect(to).not_to_have_value(before)
    expect(words).to_have_text(selected)
    drawn = "document.querySelector('.chart .u-select')"
    settled(page, f"{drawn}.offsetWidth > 50 && {drawn}.offsetLeft < {left}")
    chart.press("Enter")
    settled(page, "location.hash.includes('from=')")
    assert period(page)[1] == pytest.approx(0, abs=0.5)


def test_new_data_does_not_end_a_drag(opens: Opens, place: Served) -> None:
    page = history(opens, place)
    area = page.locator(".chart .u-over").first.bounding_box()
    assert area is not None
    middle = area["y"] + area["height"] / 2
    page.mouse.move(area["x"] + area["width"] / 4, middle)
    page.mouse.down()
    page.mouse.move(area["x"] + area["width"] / 3, middle, steps=4)
    to = page.get_by_label("To", exact=True)
    before = to.input_value()
    pass_minute(page, place)
    expect(to).not_to_have_value(before)
    page.mouse.move(area["x"] + area["width"] / 2, middle, steps=4)
    page.mouse.up()
    settled(page, "location.hash.includes('from=')")
    assert period(page) == pytest.approx([45, 30], abs=1.5)


@pytest.mark.parametrize(("query", "again"), [(f"?from={FROM}&to={TO}", 0), ("", 1)])
def test_only_a_time_until_now_is_read_again(
    opens: Opens, place: Served, query: str, again: int
) -> None:
    page = history(opens, place, query)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    pass_minute(page, place)
    page.clock.fast_forward(1_000)
    page.evaluate("() => fetch('/v1/me')")  # a later request than those of the minute
    assert len([url for url in asked if "/v1/releases" in url]) == again


def test_a_long_time_has_the_use_of_the_last_hour(opens: Opens, place: Served) -> None:
    """A step of 7 days is 84 minutes long, and the last one began 61 minutes ago."""
    page = history(opens, place, "?range=604800")
    page.get_by_role("group", name="Weighted GPUs in use").press("ArrowLeft")
    page.keyboard.press("ArrowRight")
    mark = page.locator(".u-cursor-x").first
    expect(mark).not_to_have_class("u-off")
    assert mark.evaluate("mark => new DOMMatrix(getComputedStyle(mark).transform).m41") > 100
    # 256 weighted GPUs for 30 of 61 minutes.
    expect(page.locator(".values").first).to_contain_text("research 125.9;")


def test_time_without_records_is_unknown_and_has_a_date(opens: Opens, place: Served) -> None:
    place.cluster.past.runs.since = Millis(NOW - 70 * 60_000)
    page = history(opens, place, "?range=86400")
    note = re.compile("^Before Sep 21, .* some use was not recorded")
    expect(page.get_by_text(note)).to_be_visible()
    page.get_by_text("As a table").first.click()
    rows = page.get_by_role("table", name="GPUs in use over time").get_by_role("row")
    expect(rows.last).to_contain_text("unknown")
    expect(rows.nth(1)).not_to_contain_text("unknown")


def test_two_fields_show_and_change_the_time(opens: Opens, place: Served) -> None:
    page = history(opens, place, f"?from={FROM}&to={TO}")
    begin, end = page.get_by_label("From"), page.get_by_label("To", exact=True)
    expect(begin).to_have_value("2026-09-21T13:20")
    expect(end).to_have_value("2026-09-21T13:50")
    begin.fill("2026-09-21T13:30")
    settled(page, "location.hash.includes('13%3A30')")
    expect(end).to_have_value("2026-09-21T13:50")
    page.get_by_text("As a table").first.click()
    rows = page.get_by_role("table", name="GPUs in use over time").get_by_role("row")
    expect(rows.last).to_contain_text("256")


def test_history_reports_an_unknown_tenant(opens: Opens, place: Served) -> None:
    page = live(opens, place, "history?tenant=none", now=NOW)
    expect(page.get_by_text("There is no tenant none.")).to_be_visible()
    expect(page.get_by_text("No pod was released")).to_have_count(0)


def test_history_reports_an_invalid_time_in_the_address(opens: Opens, place: Served) -> None:
    page = live(opens, place, f"history?from={TO}&to={FROM}", now=NOW, timezone_id="UTC")
    expect(page.get_by_role("alert").get_by_text("The time is not valid")).to_be_visible()
    page.get_by_role("button", name="1 hour").click()
    expect(page.locator(".chart canvas").first).to_be_visible()


def test_history_reports_a_time_in_the_future(opens: Opens, place: Served) -> None:
    page = live(opens, place, "history?from=2099-01-01T00:00:00Z&to=2099-01-02T00:00:00Z", now=NOW)
    expect(page.get_by_role("alert").get_by_text("it must begin in the past")).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0)


def test_history_until_the_last_possible_date_is_usable(opens: Opens, place: Served) -> None:
    """In a time zone east of Greenwich, the local date does not exist."""
    to = "%2B275760-09-13T00:00:00Z"
    page = live(opens, place, f"history?from={FROM}&to={to}", now=NOW, timezone_id="Asia/Tokyo")
    expect(page.get_by_label("To", exact=True)).to_have_value("")
    page.get_by_role("button", name="1 hour").click()
    expect(page.locator(".chart canvas").first).to_be_visible()


def test_a_clock_that_is_ahead_draws_no_time_after_now(opens: Opens, place: Served) -> None:
    page = live(opens, place, "history", now=NOW + 600_000, timezone_id="UTC")
    expect(page.locator(".chart canvas").first).to_be_visible()
    end = datetime.fromtimestamp(NOW / 1000, UTC).strftime("%Y-%m-%dT%H:%M")
    expect(page.get_by_label("To", exact=True)).to_have_value(end)


def test_history_is_read_again_after_a_change_of_rights(opens: Opens, place: Served) -> None:
    page = history(opens, place)
    with page.expect_request(
        lambda request: "/v1/usage" in request.url and "tenant=vision" in request.url
    ):
        place.cluster.rights.granted -= {("get", "tenants/queue"), ("list", "tenants")}
        place.cluster.rights.granted |= {("get", "tenants/queue/vision")}
