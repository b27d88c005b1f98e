"""The page end to end: a browser, the real server, a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, expect

from app.core import events as ev
from app.core.model import Uid
from app.core.safe_text import csv_cell
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live, sign_in
from tests.fakes.fake_api_cluster import (
    NOW,
    Served,
    Town,
    busy,
    held,
    ran,
    record_releases,
    runs,
    served,
    tenant,
)

HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture
def town() -> Town:
    return Town(bulletin=LED)


@pytest.fixture
def place(town: Town) -> Iterator[Served]:
    with served(town, QUICK) as place:
        place.tell(*busy())
        yield place


# --- sign-in ---


def test_no_data_is_shown_before_sign_in(opens: Opens, place: Served) -> None:
    page = opens(place)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_label("Token of audience")).to_be_focused()
    assert "robotics" not in page.content()


def test_a_wrong_token_is_refused_with_the_next_step_and_forgotten(
    opens: Opens, place: Served
) -> None:
    page = opens(place)
    sign_in(page, "mallorys")
    expect(page.get_by_role("alert")).to_contain_text("kubectl create token NAME --audience")
    expect(page.get_by_label("Token of audience")).to_be_focused()
    assert page.evaluate("sessionStorage.length") == 0


def test_an_expired_token_signs_out_and_removes_all_data(
    opens: Opens, town: Town, place: Served
) -> None:
    page = live(opens, place)
    town.rights.token = "another"
    expect(page.get_by_role("alert")).to_contain_text("You were signed out")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    assert "robotics" not in page.content()
    assert page.evaluate("sessionStorage.length") == 0


def test_signing_out_removes_all_data(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("status")).to_have_text("Signed out")
    assert page.evaluate("[sessionStorage.length, localStorage.length]") == [0, 0]
    assert "robotics" not in page.content()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_token_lasts_for_the_tab(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.reload()
    expect(page.get_by_role("status").first).to_have_text("Live")
    assert page.evaluate("localStorage.length") == 0
    assert page.context.cookies() == []
    assert "alices" not in page.url


def test_a_caller_without_rights_sees_own_work_and_the_missing_right(
    opens: Opens, town: Town, place: Served
) -> None:
    town.rights.granted = set()
    town.rights.name = "erin@example.com"
    page = opens(place)
    sign_in(page)
    expect(page.get_by_role("heading", name="My work")).to_be_visible()
    expect(page.get_by_text("may not get stream.fairgate.io")).to_be_visible()
    expect(page.get_by_role("table", name="My waiting pods").get_by_role("row")).to_have_count(8)
    expect(page.get_by_role("table", name="My waiting pods")).to_contain_text("limit")
    assert "dave@example.com" not in page.content()


# --- views ---


def test_the_first_row_answers_before_anything_else(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    tiles = page.locator(".tile")
    expect(tiles.nth(0)).to_contain_text("h100")
    expect(tiles.nth(0)).to_contain_text("54 of 64")
    expect(tiles.nth(0)).to_contain_text("10 free")
    expect(page.locator(".tile", has_text="Waiting")).to_contain_text("692 GPUs")
    expect(page.locator(".tile", has_text="Waiting")).to_contain_text("90 pods")
    expect(page.locator(".tile", has_text="Longest wait")).to_be_visible()
    text = page.locator("main").inner_text()
    assert "epoch" not in text
    assert "Jain" not in text


def test_the_first_row_shows_the_releases_of_the_last_hour(
    opens: Opens, town: Town, place: Served
) -> None:
    record_releases(town.stream, "vision", 8, [300], minutes=90)
    record_releases(town.stream, "vision", 8, [30, 60, 600])
    page = live(opens, place)
    tile = page.locator(".tile", has_text="Released in the last hour")
    expect(tile).to_contain_text("24 GPUs")
    expect(tile).to_contain_text("3 pods, half waited at most 60 s")
    town.rights.granted -= {("get", "tenants/usage")}
    page = live(opens, place)
    expect(page.locator("#tenant-rows tr")).to_have_count(4)
    expect(page.locator(".tile", has_text="Released")).to_have_count(0)


def test_users_are_folded_below_their_tenant(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    rows = page.locator("#tenant-rows tr")
    expect(rows).to_have_count(4)
    page.get_by_role("button", name="Unfold robotics").click()
    expect(rows).to_have_count(6)
    names = rows.locator("th .label").all_inner_texts()
    at = names.index("robotics")
    assert names[at + 1 : at + 3] == ["dave@example.com", "erin@example.com"]


def test_a_row_shows_use_fair_share_guarantee_and_limit(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    row = page.locator("#tenant-rows tr", has_text="robotics")
    for part in ("uses 80 (29 %)", "fair share 61.3", "guarantee 32", "limit 112", "h100: 20 gpu"):
        expect(row).to_contain_text(part)
    expect(page.get_by_text("Weighted GPUs: one of h100 counts 4")).to_be_visible()


def test_queues_show_reasons_and_group_by_rule(opens: Opens, place: Served) -> None:
    page = live(opens, place, "queues")
    queue = page.locator("#queue-rows tr", has_text="erin@example.com")
    expect(queue.get_by_role("listitem")).to_have_text("▲ limit 7")
    page.get_by_role("button", name="limit 7").click()
    expect(page.locator("#queue-rows tr")).to_have_count(1)
    assert "rule=limit" in page.url


def test_nodes_show_devices_by_tenant(opens: Opens, place: Served) -> None:
    page = live(opens, place, "nodes")
    node = page.locator(".node", has_text="h100-02")
    expect(node.locator("i.free")).to_have_count(2)
    expect(node.locator("i.device:not(.free)")).to_have_count(6)
    expect(node).to_contain_text("6 of 8 used; vision 6 gpu")
    expect(page.get_by_role("list", name="Colours of tenants")).to_contain_text("vision")


def test_a_node_lists_its_pods_with_links_to_their_drawers(opens: Opens, place: Served) -> None:
    page = live(opens, place, "nodes")
    page.get_by_role("link", name="h100-06").first.click()
    expect(page.get_by_role("heading", name="Node h100-06")).to_be_visible()
    row = page.locator("#node-pods tr")
    expect(row).to_have_count(1)
    for part in ("robotics/run-6", "erin@example.com", "8 gpu"):
        expect(row).to_contain_text(part)
    assert page.title() == "h100-06 · Fairgate"
    row.get_by_role("link", name="robotics/run-6").click()
    expect(page.get_by_role("dialog")).to_contain_text("released")
    page.go_back()
    expect(row).to_be_visible()


def test_a_node_hides_pods_of_other_tenants(opens: Opens, town: Town, place: Served) -> None:
    town.rights.granted = {("get", "stream"), ("list", "pools"), ("get", "tenants/queue/robotics")}
    place.tell(runs("more", "teaching", "judy@example.com", "h100-07", 2))
    page = live(opens, place, "nodes/h100/h100-07")
    expect(page.locator("#node-pods tr")).to_have_count(1)
    expect(page.get_by_text("1 pod of other tenants is not shown")).to_be_visible()
    assert "judy@example.com" not in page.content()


def test_a_change_is_seen_without_reloading(opens: Opens, place: Served) -> None:
    page = live(opens, place, "nodes")
    node = page.locator(".node", has_text="t4-03")
    expect(node.locator("i.free")).to_have_count(4)
    place.tell(runs("new", "teaching", "judy@example.com", "t4-03", 4))
    expect(node.locator("i.free")).to_have_count(0)
    place.tell(ev.PodGone(NOW, Uid("teaching/new")))
    expect(node.locator("i.free")).to_have_count(4)


def test_names_are_shown_as_text(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    place.tell(held("p", "teaching", HOSTILE), tenant(HOSTILE), runs("q", "a", HOSTILE, "t4-03"))
    expect(page.locator("#tenant-rows")).to_contain_text(HOSTILE)
    go(page, "queues")
    page.get_by_role("link", name=HOSTILE).first.click()
    expect(page.get_by_role("heading", name="Queue of")).to_contain_text(HOSTILE)
    expect(page.locator("#pod-rows")).to_contain_text("teaching/p")
    go(page, "nodes")
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
    assert page.locator("img").count() == 1  # the logo of Fairgate, in the head
    assert page.title() == "Nodes · Fairgate"


def test_only_visible_tenants_are_shown(opens: Opens, town: Town, place: Served) -> None:
    town.rights.granted = {("get", "stream"), ("get", "tenants/queue/robotics")}
    page = live(opens, place)
    expect(page.locator("#tenant-rows tr")).to_have_count(1)
    expect(page.get_by_text("Other tenants are not shown")).to_be_visible()
    go(page, "nodes")
    expect(page.get_by_text("You may not see pools")).to_be_visible()
    go(page, "tenants/research")
    expect(page.get_by_text("get tenants/queue.fairgate.io research")).to_be_visible()
    assert "vision" not in page.content()


def test_history_comes_from_usage_records(opens: Opens, town: Town, place: Served) -> None:
    # The tenant uses all H100s for half an hour: 64 GPUs that count 4 each.
    run = ran("vision", 64, since=60, until=30)
    town.past.runs.ended[run.id] = run
    page = live(opens, place, "history", now=NOW)
    chart = page.get_by_role("group", name="Weighted GPUs in use")
    expect(chart.locator("canvas")).to_be_visible()
    chart.focus()
    page.keyboard.press("ArrowLeft")
    expect(page.locator(".values")).to_contain_text("research 0; capacity 272")
    page.get_by_text("As a table").click()
    table = page.get_by_role("table", name="GPUs in use over time")
    expect(table.get_by_role("columnheader")).to_have_text(["Time", "research"])
    expect(table.get_by_role("cell").nth(-2)).to_have_text("256")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download as CSV").click()
    assert saved.value.suggested_filename == "fairgate-history.csv"


def test_history_shows_releases_and_waits_by_tenant(
    opens: Opens, town: Town, place: Served
) -> None:
    record_releases(town.stream, "teaching", 1, [10], minutes=600)
    record_releases(town.stream, "vision", 8, [60, 120, 7200])
    record_releases(town.stream, "teaching", 1, [10])
    page = live(opens, place, "history", now=NOW)
    total = page.locator(".releases-total")
    expect(total).to_have_text(
        "4 pods released, with 25 GPUs. Half waited at most 60 s, nine in ten at most 2 h."
    )
    rows = page.get_by_role("table", name="Releases by tenant").get_by_role("row")
    expect(rows.nth(1)).to_contain_text("teaching")
    expect(rows.nth(2).get_by_role("cell")).to_have_text(["3", "24", "2 min", "2 h"])
    pools = page.get_by_role("table", name="Releases by pool").get_by_role("row")
    expect(pools.nth(1)).to_contain_text("not recorded")
    expect(pools.nth(1).get_by_role("cell").first).to_have_text("4")
    expect(page.get_by_role("group", name="Wait of released pods")).to_be_visible()
    page.get_by_role("button", name="24 hours").click()
    expect(total).to_contain_text("5 pods released")
    expect(page.get_by_text("some releases were not recorded")).to_be_visible()
    go(page, "history?tenant=vision")
    expect(total).to_contain_text("3 pods released")
    expect(rows).to_have_count(2)


def test_the_page_writes_csv_cells_as_the_server_does(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    names = [
        "=1+1",
        " \ufeff@SUM(A1)",
        "'=x",
        "\uff1dx",
        "|cmd",
        "%x",
        "\tx",
        "a\u202eb",
        'plain "q"',
    ]
    run = "async names => names.map((await import('/static/format.js')).csvCell)"
    quoted = [f'"{csv_cell(name)}"'.replace('"q"', '""q""') for name in names]
    assert page.evaluate(run, names) == quoted


def test_history_without_the_right_names_the_right(opens: Opens, town: Town, place: Served) -> None:
    town.rights.granted -= {("get", "tenants/usage")}
    page = live(opens, place, "history")
    expect(page.get_by_role("alert").last).to_contain_text("may not get tenants/usage.fairgate.io")


def test_the_audit_view_without_the_right_names_the_right(opens: Opens, place: Served) -> None:
    page = live(opens, place, "audit")
    expect(page.get_by_role("alert").last).to_contain_text("may not get audit.fairgate.io")


def test_an_empty_cluster_teaches_the_first_step(opens: Opens) -> None:
    with served(Town(bulletin=LED), QUICK) as place:
        page = live(opens, place, now=NOW)
        expect(page.get_by_text("There are no tenants")).to_be_visible()
        expect(page.get_by_text("kubectl apply -f docs/examples/two-teams.yaml")).to_be_visible()
        go(page, "queues")
        expect(page.get_by_text("No pod waits")).to_be_visible()
        go(page, "nodes")
        expect(page.get_by_text("The pool has no node yet")).to_be_visible()
        go(page, "history")
        expect(page.get_by_text("No pod used a GPU")).to_be_visible()
        assert page.locator("canvas").count() == 0


# --- safety ---


def test_only_own_files_are_requested(opens: Opens, place: Served) -> None:
    page = opens(place)
    with page.expect_response(place.url + "/") as loaded:
        page.reload()
    policy = loaded.value.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert loaded.value.headers["x-content-type-options"] == "nosniff"
    assert loaded.value.headers["referrer-policy"] == "no-referrer"
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    sign_in(page)
    expect(page.get_by_role("status").first).to_have_text("Live")
    page.reload()
    expect(page.get_by_role("status").first).to_have_text("Live")
    assert all(url.startswith(place.url) for url in asked), asked


def test_the_policy_stops_foreign_scripts(browser: Browser, place: Served) -> None:
    page = browser.new_page()
    page.goto(place.url)
    ran = page.evaluate(
        """() => new Promise((tell) => {
            document.addEventListener('securitypolicyviolation', () => tell('stopped'));
            const script = document.createElement('script');
            script.textContent = 'document.title = "ran"';
            document.head.append(script);
            if (document.title === 'ran') tell('ran');
        })"""
    )
    page.close()
    assert ran == "stopped"
