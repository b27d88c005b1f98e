"""The page end to end: a browser, the real server, a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from urllib.parse import urlencode

import pytest
from playwright.sync_api import Browser, expect

from app.core import events as ev
from app.core.explain.views import PublishedReservation
from app.core.model import Node, NodeName, Phase, Pool, PoolName, Quota, TenantName, Uid
from app.core.safe_text import csv_cell, escape_hidden
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live, sign_in
from tests.fakes.fake_api_cluster import (
    GPU,
    NOW,
    ApiCluster,
    Served,
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
def town() -> ApiCluster:
    return ApiCluster(leader_message=LED)


@pytest.fixture
def place(town: ApiCluster) -> Iterator[Served]:
    with served(town, QUICK) as place:
        place.deliver(*busy())
        yield place


# --- sign-in ---


def test_no_data_is_shown_before_sign_in(opens: Opens, place: Served) -> None:
    page = opens(place)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.get_by_label("Token of audience")).to_be_focused()
    for way in ("kubectl fairgate open", "kubectl create token", "corporate login"):
        expect(page.locator("main")).to_contain_text(way)
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
    opens: Opens, town: ApiCluster, place: Served
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
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    town.rights.granted = set()
    town.rights.name = "erin@example.com"
    page = opens(place)
    sign_in(page)
    expect(page.get_by_role("heading", name="My work")).to_be_visible()
    expect(page.get_by_text("You see your own work only.")).to_be_visible()
    expect(page.get_by_text("The missing right: get stream.fairgate.io")).to_be_visible()
    for view, objects in (("nodes", "nodes"), ("audit", "audit entries"), ("history", "history")):
        go(page, view)
        sentence = f"You may not see the {objects}; here is your own work."
        expect(page.get_by_text(sentence)).to_be_visible()
    go(page, "nothing")
    expect(page.get_by_text("There is no view nothing.")).to_be_visible()
    page.get_by_role("link", name="Open the first view").click()
    expect(page.get_by_role("table", name="My waiting pods").get_by_role("row")).to_have_count(8)
    expect(page.get_by_role("table", name="My waiting pods")).to_contain_text("limit")
    pods = page.get_by_role("table", name="My waiting pods").get_by_role("row")
    expect(pods.nth(1)).to_contain_text("not known yet")
    expect(page.get_by_text("There is no estimate yet.")).to_have_count(1)
    assert "dave@example.com" not in page.content()
    # Place, reason, share and use are in the view. The time and what helps are in the drawer.
    for text in ("You use 18 % of the cluster (h100: 12 GPUs)", "fair share", "11 %", "1 of 7"):
        expect(page.locator("main")).to_contain_text(text)
    page.get_by_role("link", name="robotics/wait-0").click()
    for text in ("waits for 8 GPUs", "Estimated start", "GPUs limit", "What would help"):
        expect(page.get_by_role("dialog")).to_contain_text(text)


# --- views ---


def test_first_row_shows_used_free_and_waiting_gpus(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    tiles = page.locator(".tile")
    expect(tiles.nth(0)).to_contain_text("h100")
    expect(tiles.nth(0)).to_contain_text("54 of 64")
    expect(tiles.nth(0)).to_contain_text("10 free")
    expect(page.locator(".tile", has_text="Waiting")).to_contain_text("692 GPUs")
    expect(page.locator(".tile", has_text="Waiting")).to_contain_text("90 pods, all pools")
    expect(page.locator(".tile", has_text="Longest wait")).to_be_visible()
    text = page.locator("main").inner_text()
    assert "epoch" not in text
    assert "Jain" not in text


def test_the_first_row_shows_the_releases_of_the_last_hour(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    record_releases(town.stream, "vision", 8, [300], minutes=90)
    record_releases(town.stream, "vision", 8, [30, 60, 600])
    page = live(opens, place)
    tile = page.locator(".tile", has_text="Released in the last hour")
    expect(tile).to_contain_text("24 GPUs")
    expect(tile).to_contain_text("3 pods in all pools, half waited at most 60 s")
    town.rights.granted -= {("get", "tenants/usage")}
    page = live(opens, place)
    expect(page.locator("#tenant-rows tr")).to_have_count(4)
    expect(page.locator(".tile", has_text="Released")).to_have_count(0)


def test_a_tenant_shows_waiting_gpus_and_no_link_to_a_hidden_parent(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    page = live(opens, place, "tenants/research")
    facts = page.locator("main dl.facts")
    expect(facts).to_contain_text("43 pods, 316 GPUs")
    expect(facts).to_contain_text("Namespaces")
    bare = replace(tenant("research", 3).tenant, namespaces=())
    place.deliver(ev.TenantObserved(NOW, bare))
    expect(facts).not_to_contain_text("Namespaces")
    go(page, "tenants/vision")
    expect(page.get_by_role("link", name="Parent: research")).to_be_visible()
    town.rights.granted = {("get", "stream"), ("get", "tenants/queue/vision")}
    page = live(opens, place, "tenants/vision")
    expect(page.get_by_text("Parent: research")).to_be_visible()
    expect(page.get_by_role("link", name="Parent: research")).to_have_count(0)


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
    parts = {"Used": "80 (29 %)", "Fair share": "61.3"}
    parts |= {"Guarantee": "h100: 8 of 8", "Limit": "h100: 20 of 24"}
    for column, text in parts.items():
        expect(row.locator(f"td[data-label='{column}']")).to_have_text(text)
    expect(row.locator("td[data-label='By pool']")).to_have_text("h100: 20")
    expect(page.get_by_text("Weighted GPUs: one of h100 counts 4")).to_be_visible()
    # The bar adds h100 and t4. So it has no mark for a quota in h100 alone, nor has the legend.
    expect(row.locator(".mark")).to_have_count(1)
    legend = page.get_by_role("list", name="Meaning of the bars")
    expect(legend).to_contain_text("fair share")
    expect(legend).not_to_contain_text("limit")


def test_tenant_row_names_the_pool_where_the_limit_is_reached(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    row = page.locator("#tenant-rows tr", has_text="robotics")
    expect(row).not_to_contain_text("at its limit")
    place.deliver(tenant("robotics", quotas={"h100": Quota({GPU: 8}, {GPU: 20})}))
    expect(row).to_contain_text("at its limit in h100")
    go(page, "tenants/robotics")
    quota = page.get_by_text("guarantee: 8 of 8 GPUs used; limit: 20 of 20 GPUs used")
    expect(quota).to_be_visible()


def test_queues_show_reasons_and_group_by_rule(opens: Opens, place: Served) -> None:
    page = live(opens, place, "queues")
    queue = page.locator("#queue-rows tr", has_text="erin@example.com")
    expect(queue.get_by_role("listitem")).to_have_text("▲ limit 7")
    page.get_by_role("button", name="limit 7").click()
    expect(page.locator("#queue-rows tr")).to_have_count(1)
    assert "rule=limit" in page.url
    rules = page.get_by_role("list", name="Pods by wait reason").get_by_role("button")
    expect(rules).to_have_text(["▲ limit 7", "fair order 43", "capacity 40"])
    page.get_by_label("Filter").fill("erin")
    expect(rules).to_have_text(["▲ limit 7"])


def test_nodes_show_devices_by_tenant(opens: Opens, place: Served) -> None:
    page = live(opens, place, "nodes")
    node = page.locator(".node", has_text="h100-02")
    expect(node.locator("i.free")).to_have_count(2)
    expect(node.locator("i.device:not(.free)")).to_have_count(6)
    expect(node).to_contain_text("6 of 8 used; vision 6 GPUs")
    expect(page.get_by_role("list", name="Colours of tenants")).to_contain_text("vision")


def test_nodes_that_take_no_pod_differ_without_colour(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    place.deliver(
        ev.PoolObserved(NOW, Pool(PoolName("t4"), {"kind": "t4"}, topology=("rack",))),
        *(
            ev.NodeObserved(NOW, Node(NodeName(name), labels, {GPU: 4}, ready, cordoned=cordoned))
            for name, labels, ready, cordoned in (
                ("t4-00", {"kind": "t4", "rack": "r2"}, False, False),
                ("t4-03", {"kind": "t4", "rack": "r1"}, False, True),
            )
        ),
    )
    held_back = {NodeName("h100-02"): {GPU: 1}}
    kept = PublishedReservation(PoolName("h100"), Uid("x"), TenantName("vision"), held_back)
    town.leader_message = replace(LED, reservations=(kept,))
    page = live(opens, place, "nodes")
    expect(page.locator(".node", has_text="t4-00")).to_contain_text("✕ t4-00: 4 of 4 used, not")
    expect(page.locator(".node", has_text="t4-03")).to_contain_text("⊘ t4-03")
    expect(page.locator(".node", has_text="t4-03")).to_contain_text("0 of 4 used, cordoned")
    node = page.locator(".node", has_text="h100-02")
    expect(node).to_contain_text("6 of 8 used, 1 reserved")
    expect(node.locator("i.reserved")).to_have_count(1)
    racks = page.get_by_role("region", name="Pool t4").get_by_role("heading", level=3)
    expect(racks).to_have_text(["r1", "r2"])


def test_use_without_a_node_is_not_use_of_a_node(opens: Opens, place: Served) -> None:
    """15 of 16 T4s are in use on nodes. One of two pods without a node has room on a node."""
    place.deliver(
        runs("a", "teaching", "judy@example.com", "t4-01"),
        runs("b", "teaching", "judy@example.com", "t4-02", 2),
        runs("c", "teaching", "judy@example.com", "t4-03", 3),
    )
    for name in ("d", "e"):
        event = runs(name, "teaching", "judy@example.com", "t4-03")
        place.deliver(ev.PodObserved(NOW, replace(event.pod, node=None, phase=Phase.PENDING)))
    page = live(opens, place)
    tile = page.locator(".tile", has_text="t4")
    expect(tile).to_contain_text("16 of 16")
    expect(tile).to_contain_text("100 %, and 1 of released pods without a node yet")
    go(page, "nodes/t4")
    words = "16 of 16 GPUs used, and 1 of released pods without a node yet · 100 %"
    expect(page.get_by_text(words)).to_be_visible()


def test_nodes_are_in_natural_order(opens: Opens, place: Served) -> None:
    place.deliver(
        *(
            ev.NodeObserved(NOW, Node(NodeName(name), {"kind": "t4"}, {GPU: 4}, True))
            for name in ("t4-5", "t4-45")
        )
    )
    page = live(opens, place, "nodes/t4")
    names = page.locator(".node-name")
    expect(names).to_have_text(["t4-00", "t4-01", "t4-02", "t4-03", "t4-5", "t4-45"])


def test_a_node_lists_its_pods_with_links_to_their_drawers(opens: Opens, place: Served) -> None:
    page = live(opens, place, "nodes")
    page.get_by_role("link", name="h100-06").first.click()
    expect(page.get_by_role("heading", name="Node h100-06")).to_be_visible()
    row = page.locator("#node-pods tr")
    expect(row).to_have_count(1)
    for part in ("robotics/run-6", "erin@example.com", "8 GPUs"):
        expect(row).to_contain_text(part)
    assert page.title() == "h100-06 · Fairgate"
    row.get_by_role("link", name="robotics/run-6").click()
    expect(page.get_by_role("dialog")).to_contain_text("released")
    page.go_back()
    expect(row).to_be_visible()


def test_a_node_hides_pods_of_other_tenants(opens: Opens, town: ApiCluster, place: Served) -> None:
    town.rights.granted = {("get", "stream"), ("list", "pools"), ("get", "tenants/queue/robotics")}
    place.deliver(runs("more", "teaching", "judy@example.com", "h100-07", 2))
    page = live(opens, place, "nodes/h100/h100-07")
    expect(page.locator("#node-pods tr")).to_have_count(1)
    expect(page.get_by_text("1 pod of other tenants is not shown")).to_be_visible()
    assert "judy@example.com" not in page.content()


def test_a_change_is_seen_without_reloading(opens: Opens, place: Served) -> None:
    page = live(opens, place, "nodes")
    node = page.locator(".node", has_text="t4-03")
    expect(node.locator("i.free")).to_have_count(4)
    place.deliver(runs("new", "teaching", "judy@example.com", "t4-03", 4))
    expect(node.locator("i.free")).to_have_count(0)
    place.deliver(ev.PodGone(NOW, Uid("teaching/new")))
    expect(node.locator("i.free")).to_have_count(4)


def test_names_are_shown_as_text(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    place.deliver(held("p", "teaching", HOSTILE), tenant(HOSTILE), runs("q", "a", HOSTILE, "t4-03"))
    expect(page.locator("#tenant-rows")).to_contain_text(HOSTILE)
    go(page, "queues")
    page.get_by_role("link", name=HOSTILE).first.click()
    expect(page.get_by_role("heading", name="Queue of")).to_contain_text(HOSTILE)
    expect(page.locator("#pod-rows")).to_contain_text("teaching/p")
    go(page, "nodes")
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
    assert page.locator("img").count() == 1  # the logo of Fairgate, in the head
    assert page.title() == "Nodes · Fairgate"


def test_names_of_javascript_properties_are_shown_as_names(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    """No value of a name may come from the prototype of a JSON object."""
    town.rights.granted |= {("update", "tenants"), ("update", "tenants/users")}
    place.deliver(
        tenant("constructor", 2, users={"toString": 3}),
        tenant("valueof", parent="constructor"),
    )
    page = live(opens, place, "tenants?open=*")
    rows = page.locator("#tenant-rows tr")
    expect(rows.filter(has_text="constructor")).to_contain_text("weight 2")
    expect(rows.filter(has_text="toString")).to_contain_text("weight 3")
    expect(page.locator("#tenant-rows")).not_to_contain_text("NaN")
    place.deliver(tenant("constructor", 2, parent="research"))
    place.deliver(held("p", "constructor", "hasOwnProperty"))
    go(page, "queues?sort=distance")
    expect(page.locator("#queue-rows tr").filter(has_text="hasOwnProperty")).to_be_visible()
    go(page, "tenants/research")
    field = page.get_by_role("spinbutton", name="constructor")
    expect(field).to_have_value("2")
    expect(page.get_by_role("button", name="Apply")).to_be_disabled()


MIRRORED = "no\u202eon"
"""A text that a browser shows in another order. The page shows the character as an escape."""


@pytest.mark.parametrize("view", ["tenants", "nodes"])
def test_a_filter_without_a_match_is_shown_with_escapes(
    opens: Opens, place: Served, view: str
) -> None:
    key = "filter" if view == "tenants" else "node"
    page = live(opens, place, f"{view}?{urlencode({key: MIRRORED})}")
    expect(page.get_by_text('contains "no\\u202eon"').first).to_be_visible()


@pytest.mark.parametrize(
    ("view", "path"),
    [
        ("me", "me"),
        ("queues?tenant=robotics", "tenants/robotics/queue?*"),
        ("pods/robotics/wait-0", "workloads/robotics/wait-0"),
        ("", "search?*"),
    ],
)
def test_an_error_of_the_api_is_shown_with_escapes(
    opens: Opens, place: Served, view: str, path: str
) -> None:
    page = live(opens, place)
    told = {"detail": f"There is no {MIRRORED}."}
    page.route(f"**/v1/{path}", lambda route: route.fulfill(status=500, json=told))
    if view:
        go(page, view)
    else:
        page.get_by_role("combobox").fill("robotics")
    expect(page.get_by_text("There is no no\\u202eon.")).to_be_visible()


def test_only_visible_tenants_are_shown(opens: Opens, town: ApiCluster, place: Served) -> None:
    town.rights.granted = {("get", "stream"), ("get", "tenants/queue/robotics")}
    page = live(opens, place)
    expect(page.locator("#tenant-rows tr")).to_have_count(1)
    expect(page.get_by_text("Other tenants are not shown")).to_be_visible()
    # Without the right to see pools, shares are percentages.
    expect(page.locator("td[data-label=Used]")).to_have_text("29 %")
    expect(page.get_by_role("columnheader", name="Part of the cluster, 0 to 30 %")).to_be_visible()
    go(page, "nodes")
    expect(page.get_by_text("You may not see the nodes; here is your own work.")).to_be_visible()
    go(page, "tenants/research")
    expect(page.get_by_text("get tenants/queue.fairgate.io research")).to_be_visible()
    assert "vision" not in page.content()


def test_history_chart_and_table_show_usage_records(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
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
    chart.hover(position={"x": 300, "y": 100})
    expect(page.locator(".values")).to_contain_text("research 256; capacity 272")
    table = page.get_by_role("table", name="GPUs in use over time")
    expect(table.get_by_role("columnheader")).to_have_text(["Time", "research"])
    expect(table.get_by_role("cell").nth(-2)).to_have_text("256")
    with page.expect_download() as saved:
        page.get_by_role("link", name="Download as CSV").click()
    assert saved.value.suggested_filename == "fairgate-history.csv"


def test_history_shows_releases_and_waits_by_tenant(
    opens: Opens, town: ApiCluster, place: Served
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
    page.reload()
    expect(page.get_by_role("button", name="24 hours")).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_text("some releases were not recorded")).to_be_visible()
    go(page, "history?tenant=vision")
    expect(total).to_contain_text("3 pods released")
    expect(rows).to_have_count(2)


def test_history_sums_small_tenants_and_shows_one_tenants_fair_share(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    for number in range(11):
        run = ran(f"team-{number}", 1 + number, since=60, until=30)
        town.past.runs.ended[run.id] = run
    run = ran("robotics", 20, since=60, until=30)
    town.past.runs.ended[run.id] = run
    page = live(opens, place, "history", now=NOW)
    lines = page.get_by_role("list", name="Lines of the chart").first.get_by_role("listitem")
    expect(lines).to_have_count(10)
    expect(lines.first).to_have_text("robotics")
    expect(lines.nth(8)).to_have_text("4 others")
    go(page, "history?tenant=robotics")
    expect(lines).to_have_text(["robotics", "capacity now", "fair share now"])
    page.get_by_role("group", name="Weighted GPUs in use").press("ArrowLeft")
    expect(page.locator(".values").first).to_contain_text("; capacity 272; fair share 61.3")
    town.rights.granted -= {("list", "pools")}
    page = live(opens, place, "history?tenant=robotics", now=NOW)
    lines = page.get_by_role("list", name="Lines of the chart").first.get_by_role("listitem")
    expect(lines).to_have_text(["robotics"])
    page.get_by_text("As a table").first.click()
    cells = page.get_by_role("table", name="GPUs in use over time").get_by_role("cell")
    expect(cells.nth(-2)).to_have_text("20")


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
        "a\U000e0041b",
        'plain "q"',
    ]
    run = "async names => names.map((await import('/static/format.js')).csvCell)"
    quoted = [f'"{csv_cell(name)}"'.replace('"q"', '""q""') for name in names]
    assert page.evaluate(run, names) == quoted


def test_the_page_escapes_the_characters_that_the_server_escapes(
    opens: Opens, place: Served
) -> None:
    run = """async () => {
      const { visible } = await import('/static/format.js');
      const codes = Array.from({ length: 0x110000 }, (_, code) => code);
      return codes.filter((code) => visible(String.fromCodePoint(code)).length > 2);
    }"""
    hidden = [code for code in range(0x110000) if len(escape_hidden(chr(code))) > 2]
    assert live(opens, place).evaluate(run) == hidden


def test_an_estimate_names_two_times_and_the_date_if_it_is_not_today(
    opens: Opens, place: Served
) -> None:
    page = opens(place, now=NOW, locale="en-GB", timezone_id="UTC")
    run = "async each => (await import('/static/format.js')).estimateText(each)"
    estimate = {"at": "2026-09-21T14:13:20Z", "p50": 900, "p90": 86400}
    assert page.evaluate(run, estimate) == (
        "about 15 min: half of such pods start by 14:28, nine in ten by 22 Sept, 14:13"
    )
    assert page.evaluate(run, estimate | {"p50": 0, "p90": 60}) == (
        "any moment: half of such pods start by 14:13, nine in ten by 14:14"
    )


def test_marks_of_a_chart_differ_and_only_the_first_of_a_day_has_a_date(
    opens: Opens, place: Served
) -> None:
    page = opens(place, now=NOW, locale="en-GB", timezone_id="UTC")
    times = [1_789_948_200 + 300 * number for number in range(3)]  # 23:50 of the day before
    run = """async times => {
        const { label } = await import('/static/chart.js');
        return times.map((at, index) => label(at, times[index - 1], times));
    }"""
    assert page.evaluate(run, times) == ["20 Sept, 23:50", "23:55", "00:00"]
    times = [1_789_862_400 + 43_200 * number for number in range(8)]
    assert page.evaluate(run, times)[:4] == ["20 Sept", "", "21 Sept", ""]
    run = """async () => {
        const { SECONDS } = await import('/static/chart.js');
        const { lasting } = await import('/static/format.js');
        const marks = step => [...Array(9)].map((_, index) => lasting(index * step));
        return SECONDS.filter(step => new Set(marks(step)).size < 9);
    }"""
    assert page.evaluate(run) == []


def test_only_names_of_gpu_resources_become_gpus(opens: Opens, place: Served) -> None:
    run = "async texts => texts.map((await import('/static/format.js')).sentence)"
    texts = {
        "1 nvidia.com/gpu asked, 2 amd.com/gpu free.": "1 GPU asked, 2 GPUs free.",
        "the end of a pod that uses nvidia.com/gpu.": "the end of a pod that uses GPUs.",
    }
    kept = ["1 nvidia.com/gpu.shared asked", "nvidia.com/gpu.product=A100", "job/gpu-train"]
    texts |= {
        each: each for each in [*kept, "nvidia.com/gpu-memory", "pod team-a/gpu, pod a/gpu-0"]
    }
    assert live(opens, place).evaluate(run, list(texts)) == list(texts.values())


def test_history_without_the_right_names_the_right(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    town.rights.granted -= {("get", "tenants/usage")}
    page = live(opens, place, "history")
    expect(page.get_by_text("You may not see the history; here is your own work.")).to_be_visible()
    expect(page.get_by_text("The missing right: get tenants/usage.fairgate.io")).to_be_visible()
    expect(page.get_by_role("heading", name="My work")).to_be_visible()


def test_views_that_the_caller_may_not_see_have_no_tab(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    names = ["My work", "Tenants", "Queues", "Nodes", "History", "Audit"]
    town.rights.granted |= {("get", "audit")}
    tabs = live(opens, place).get_by_role("navigation").get_by_role("link")
    expect(tabs).to_have_text(names)
    town.rights.granted -= {("get", "audit"), ("list", "pools")}
    page = opens(place)
    refused: list[str] = []
    page.on("response", lambda answer: refused.append(answer.url) if answer.status == 403 else None)
    sign_in(page)
    tabs = page.get_by_role("navigation").get_by_role("link")
    expect(tabs).to_have_text([name for name in names if name not in ("Nodes", "Audit")])
    assert refused == []


def test_glossary_states_that_a_low_jains_index_is_no_fault(opens: Opens, place: Served) -> None:
    page = live(opens, place, "glossary?term=Jain%27s index")
    expect(page.locator("main [aria-current=true]")).to_contain_text("a low value is no fault")


def test_an_empty_cluster_teaches_the_first_step(opens: Opens) -> None:
    with served(ApiCluster(leader_message=LED), QUICK) as place:
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
    go(page, "pods/robotics/wait-0")
    expect(page.get_by_role("dialog")).to_contain_text("1 of 7")
    assert all(url.startswith(place.url) for url in asked), asked
    assert not [url for url in [*asked, page.url] if "alices" in url]


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
