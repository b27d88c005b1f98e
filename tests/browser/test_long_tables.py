"""The last row of every table can be reached, beyond the limits of a page and of the stream."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from app.core import events as ev
from app.web.api import stream
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live, reach, sign_in
from tests.fakes.fake_api_cluster import (
    NOW,
    ApiCluster,
    Served,
    held,
    pool,
    record_releases,
    runs,
    served,
    tenant,
)

CALLER = "alice@example.com"
USERS, PODS, RUNS, NODES, TENANTS = 150, 600, 130, 600, 70
"""Users and pods of one tenant, pods of one node, nodes of one pool, and tenants with releases."""


def long_lists() -> list[ev.ClusterEvent]:
    """Return the events of a cluster in which each table is longer than a page."""
    news = [*pool("wide", NODES), tenant("crowd"), tenant("mine")]
    news += [held(f"of-{n:03}", "crowd", f"user-{n:03}@example.com") for n in range(USERS)]
    news += [held(f"job-{n:03}", "mine", CALLER) for n in range(PODS)]
    news += [runs(f"run-{n:03}", "mine", CALLER, "wide-00", 1) for n in range(RUNS)]
    return news


@pytest.fixture(scope="module")
def place() -> Iterator[Served]:
    town = ApiCluster(leader_message=LED, now=NOW)
    town.rights.granted |= {("get", "audit")}
    for number in range(TENANTS):
        record_releases(town.stream, f"old-{number:02}", 8, [30, 60], minutes=5)
    with pytest.MonkeyPatch.context() as patch, served(town, QUICK) as place:
        patch.setattr(stream, "COST", 1)
        place.deliver(*long_lists())
        yield place


def test_users_of_a_tenant_beyond_those_of_the_stream(opens: Opens, place: Served) -> None:
    page = live(opens, place, "tenants")
    expect(page.get_by_text("50 users with less use and fewer pods are left out")).to_be_visible()
    page = live(opens, place, "tenants/crowd")
    expect(page.get_by_role("button", name="Show 60 more rows (91 left)")).to_be_visible()
    last = reach(page.locator("#tenant-rows tr"), 1 + USERS)
    expect(last).to_contain_text("user-149@example.com")
    expect(last.get_by_role("cell").nth(6)).to_have_text("1")  # waiting GPUs
    expect(page.get_by_text("are left out")).to_have_count(0)


def test_users_of_a_tenant_that_no_path_can_name_are_not_asked_for(
    opens: Opens, place: Served
) -> None:
    page = live(opens, place)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url))
    go(page, "tenants/..")
    expect(page.get_by_text("There is no such tenant")).to_be_visible()
    page.evaluate("() => fetch('/v1/nodes')")  # a later request
    assert [url for url in sent if "/users" in url] == []


def test_pods_of_a_queue(opens: Opens, place: Served) -> None:
    page = live(opens, place, "queues?tenant=mine")
    last = reach(page.locator("#pod-rows tr"), PODS)
    expect(last).to_contain_text(f"{PODS} of {PODS}")
    expect(page.locator("main .more")).to_have_count(0)


def test_nodes_of_a_pool(opens: Opens, place: Served) -> None:
    page = live(opens, place, "nodes")
    expect(page.get_by_role("button", name="Show the other 100 nodes")).to_be_visible()
    reach(page.locator(".node"), NODES)
    page.get_by_text("Nodes as a table").click()
    table = page.get_by_role("table", name="Nodes of wide")
    expect(table.get_by_role("row")).to_have_count(1 + NODES)


def test_pods_of_a_node(opens: Opens, place: Served) -> None:
    page = live(opens, place, "nodes/wide/wide-00")
    expect(reach(page.locator("#node-pods tr"), RUNS)).to_contain_text("run-129")


def test_own_pods_and_own_queue_without_any_right(opens: Opens, place: Served) -> None:
    granted = place.cluster.rights.granted
    place.cluster.rights.granted = set()
    try:
        page = opens(place)
        sign_in(page)
        expect(page.get_by_role("heading", name=f"Waiting: {PODS} pods")).to_be_visible()
        expect(page.get_by_text("400 pods beyond these are in your queues")).to_be_visible()
        table = page.get_by_role("table", name="My released pods")
        reach(table.locator("tbody tr"), RUNS)
        page.get_by_role("link", name="mine").first.click()
        expect(reach(page.locator("#pod-rows tr"), PODS)).to_contain_text("600 of 600")
    finally:
        place.cluster.rights.granted = granted


def test_audit_entries_and_releases_by_tenant(opens: Opens, place: Served) -> None:
    page = live(opens, place, "audit", now=NOW)
    entries = page.get_by_role("table", name="Audit entries").locator("tbody tr")
    expect(reach(entries, 2 * TENANTS)).to_contain_text("old-00/job-1")
    page = live(opens, place, "history", now=NOW)
    sums = page.get_by_role("table", name="Releases by tenant").locator("tbody tr")
    expect(reach(sums, TENANTS)).to_contain_text("old-69")
