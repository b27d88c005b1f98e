"""Addresses, the drawer of a pod, search, sorting and the keyboard."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from playwright.sync_api import Page, Route, expect

from app.core import events as ev
from app.core.model import Millis, Uid
from app.ports.api import PodEvent
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live, settled, sign_in
from tests.fakes.fake_api_cluster import NOW, ApiCluster, Served, busy, held, pool, served, tenant

POD = "robotics/wait-0"

UNFOCUSED = """() => [...document.querySelectorAll("a, button, input, summary, tr[tabindex]")]
    .filter((each) => each.checkVisibility({ visibilityProperty: true }) && !each.disabled)
    .filter((each) => {
        each.focus({ focusVisible: true });
        const style = getComputedStyle(each).outlineStyle;
        return document.activeElement !== each || style === "none";
    })
    .map((each) => each.outerHTML.slice(0, 80))"""
"""Controls that cannot have the focus, or show no ring."""

DUPLICATE_KEYS = """() => {
    const found = [];
    const walk = (node) => {
        const children = (node?.__k ?? []).filter(Boolean);
        const keys = children.map((each) => each.key).filter((key) => key != null);
        found.push(...keys.filter((key, place) => keys.indexOf(key) !== place));
        children.forEach(walk);
    };
    walk(document.getElementById("app").__k);
    return found;
}"""
"""Keys of Preact that two neighbours share, so that it may confuse them. `__k`: the children."""

SORTED = {
    "tenants": [
        ("ascending", "default"),
        ("ascending", "default"),
        ("descending", "teaching"),
        ("descending", "research"),
    ],
    "queues": [
        ("ascending", "language"),
        ("ascending", "alice@example.com"),
        ("descending", "teaching"),
        ("descending", "language"),
    ],
}
"""Direction and first row of each sort key."""


@pytest.fixture
def place() -> Iterator[Served]:
    with served(ApiCluster(leader_message=LED), QUICK) as place:
        place.deliver(*busy())
        yield place


# --- addresses ---


@pytest.mark.parametrize(
    ("view", "title", "text"),
    [
        ("tenants", "Tenants", "research"),
        ("tenants/robotics", "robotics", "erin@example.com"),
        ("queues", "Queues", "carol@example.com"),
        ("queues?tenant=robotics&user=erin@example.com", "Queues", "robotics/wait-0"),
        ("nodes", "Nodes", "h100-00"),
        ("nodes/t4", "t4", "t4-00"),
        ("glossary", "Terms and figures", "guarantee"),
        (f"pods/{POD}", POD, "1 of 7 of erin@example.com"),
    ],
)
def test_each_view_has_an_address_that_survives_sign_in_and_reload(
    opens: Opens, place: Served, view: str, title: str, text: str
) -> None:
    page = opens(place)
    page.goto(f"{place.url}/#/{view}")
    page.reload()
    sign_in(page)
    expect(page.get_by_text(text).first).to_be_visible()
    page.reload()
    expect(page.get_by_text(text).first).to_be_visible()
    expect(page).to_have_title(f"{title} · Fairgate")


def test_filter_sort_and_unfolded_rows_are_part_of_the_address(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.get_by_role("button", name="Unfold robotics").click()
    page.get_by_role("button", name="Waiting GPUs").click()
    page.get_by_label("Filter").fill("robo")
    rows = page.locator("#tenant-rows tr")
    expect(rows).to_have_count(3)
    page.reload()
    expect(rows).to_have_count(3)
    expect(page.get_by_label("Filter")).to_have_value("robo")
    expect(page.get_by_role("columnheader", name="Waiting GPUs")).to_have_attribute(
        "aria-sort", "descending"
    )


def test_two_buttons_unfold_and_fold_all_tenants_by_keyboard(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    rows = page.locator("#tenant-rows tr")
    tops = ["default", "research", "robotics", "teaching"]
    expect(rows.locator(".label")).to_have_text(tops)
    page.get_by_label("Filter").focus()
    for _ in range(6):  # over the terms of the legend
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.textContent") == "Unfold all":
            break
    page.keyboard.press("Enter")
    users = rows.and_(page.locator(".user"))
    expect(users.filter(has_text="heidi@example.com")).to_be_visible()  # of default/ns.notebooks
    expect(page.locator("#tenant-rows tr[aria-expanded=false]")).to_have_count(0)
    page.reload()
    expect(users.filter(has_text="heidi@example.com")).to_be_visible()
    page.get_by_role("button", name="Fold robotics").click()
    expect(users.filter(has_text="erin@example.com")).to_have_count(0)
    expect(users.filter(has_text="heidi@example.com")).to_be_visible()
    page.get_by_role("button", name="Fold all", exact=True).press("Enter")
    expect(rows.locator(".label")).to_have_text(tops)
    # The tenant itself is always unfolded, so a tenant without child tenants has no such buttons.
    go(page, "tenants/research")
    expect(page.get_by_role("button", name="Unfold all")).to_be_visible()
    go(page, "tenants/robotics")
    expect(page.get_by_role("heading", name="robotics")).to_be_visible()
    expect(page.get_by_role("button", name="Unfold all")).to_have_count(0)


def test_back_returns_to_the_view_at_its_scroll_position(opens: Opens, place: Served) -> None:
    place.deliver(*pool("wide", 90))
    page = live(opens, place, "nodes", height=500)
    expect(page.locator(".node", has_text="wide-89")).to_be_visible()
    page.evaluate("scrollTo(0, 300)")
    # A click of Playwright would scroll to the link first.
    page.get_by_role("link", name="Queues").evaluate("link => link.click()")
    expect(page.get_by_role("heading", name="Queues")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("heading", name="Nodes")).to_be_visible()
    settled(page, "Math.abs(scrollY - 300) <= 2")


def test_unknown_tenant_view_or_pod_in_the_address_is_reported(opens: Opens, place: Served) -> None:
    page = live(opens, place, "tenants/none")
    expect(page.get_by_text("There is no such tenant")).to_be_visible()
    go(page, "nothing")
    expect(page.get_by_text("There is no view nothing.")).to_be_visible()
    expect(page).to_have_title("No such view · Fairgate")
    go(page, "pods/team/none")
    expect(page.get_by_role("dialog")).to_contain_text("may not get pods none")


@pytest.mark.parametrize(
    ("view", "text"),
    [
        ("tenants/none", "The right is: get tenants/queue.fairgate.io none"),
        ("queues?tenant=none", "There is no tenant none"),
        ("queues?tenant=none&user=erin@example.com", "There is no tenant none"),
        ("nodes/none", "There is no pool none"),
        ("nodes/h100/none", "Pool h100 has no node none"),
        ("pods/robotics/none", "may not get pods none"),
    ],
)
def test_each_view_reports_an_unknown_object_in_the_address(
    opens: Opens, place: Served, view: str, text: str
) -> None:
    page = live(opens, place, view)
    expect(page.locator("main, [role=dialog]").get_by_text(text)).to_be_visible()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()


@pytest.mark.parametrize(
    ("view", "right"),
    [
        ("tenants/robotics", "get tenants/queue.fairgate.io robotics"),
        ("queues", "get tenants/queue"),
        ("queues?tenant=robotics", "get tenants/queue.fairgate.io robotics"),
        ("queues?tenant=robotics&user=erin@example.com", "get tenants/queue"),
        ("nodes", "list pools.fairgate.io"),
        ("nodes/h100", "list pools.fairgate.io"),
        ("nodes/h100/h100-06", "list pools.fairgate.io"),
        ("history", "get tenants/usage.fairgate.io"),
        ("history?tenant=robotics", "get tenants/usage.fairgate.io robotics"),
        ("audit", "get audit.fairgate.io"),
        ("pods/robotics/wait-0", "may not get pods wait-0"),
    ],
)
def test_a_forbidden_address_names_the_missing_right(
    opens: Opens, place: Served, view: str, right: str
) -> None:
    place.cluster.rights.granted = {("get", "stream")}
    page = live(opens, place, view)
    expect(page.locator("main, [role=dialog]").get_by_text(right).first).to_be_visible()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    assert "erin@example.com" not in page.locator("table").all_inner_texts()


# --- the drawer of a pod ---


def drawer(page: Page) -> None:
    go(page, "queues?tenant=robotics&user=erin@example.com")
    page.get_by_role("link", name=POD).click()


def test_the_drawer_shows_the_reason_the_numbers_and_the_command(
    opens: Opens, place: Served
) -> None:
    page = live(opens, place, permissions=["clipboard-read", "clipboard-write"])
    drawer(page)
    dialog = page.get_by_role("dialog", name=POD)
    expect(dialog).to_contain_text("1 of 7 of erin@example.com")
    expect(dialog).to_contain_text("limit")
    expect(dialog).to_contain_text("Numbers that were compared")
    expect(dialog).to_contain_text("What would help")
    expect(dialog).to_contain_text("There is no estimate yet")
    expect(dialog).to_contain_text("As of now. It is read again")
    command = "kubectl fairgate why wait-0 -n robotics"
    expect(dialog).to_contain_text(command)
    dialog.get_by_role("button", name="Copy as command").click()
    expect(dialog.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == command
    page.reload()  # view and drawer stay
    expect(dialog).to_contain_text("1 of 7 of erin@example.com")
    expect(page.get_by_role("heading", name="Queue of robotics, erin")).to_be_visible()


def test_the_drawer_shows_the_answer_of_the_api(opens: Opens, place: Served) -> None:
    page = live(opens, place, "pods/language/wait-0")
    told = page.request.get(
        f"{place.url}/v1/workloads/language/wait-0", headers={"authorization": "Bearer alices"}
    ).json()
    assert told["ahead"]
    dialog = page.get_by_role("dialog")
    rules = [each["reason"] for each in told["ahead"]]
    remedies = [each.replace("nvidia.com/gpu", "GPUs") for each in told["remedies"]]
    expect(dialog.get_by_role("listitem")).to_have_text([*rules, *remedies])
    text = dialog.inner_text()
    assert told["rule"] in text
    for amount in told["numbers"].values():
        assert amount.replace("nvidia.com/gpu", "GPUs") in text
    dialog.get_by_role("link", name=f"What is {told['rule']}?").click()
    expect(page.locator("[aria-current=true] dt")).to_have_text(told["rule"])


def test_drawer_shows_the_events_of_the_pod(opens: Opens, place: Served) -> None:
    events = place.cluster.events
    place.cluster.rights.granted |= {("list", "events/robotics"), ("get", "pods")}
    page = live(opens, place, "pods/robotics/wait-0")
    dialog = page.get_by_role("dialog", name=POD)
    expect(dialog).to_contain_text("There is no event. Kubernetes deletes events after an hour")
    told = "queued: 1 of 7; more: kubectl fairgate why wait-0 -n robotics"
    events.add("robotics", "wait-0", PodEvent(NOW, "Held", told, "fairgate", False, 1))
    taint, later = "0/4 nodes: <b>taint</b>", Millis(NOW + 60_000)
    failed = PodEvent(later, "FailedScheduling", taint, "default-scheduler", True, 3)
    events.add("robotics", "wait-0", failed)
    place.deliver(ev.PodGone(NOW, Uid("robotics/wait-0")))
    page.reload()
    expect(dialog).to_contain_text("This pod is gone, or requests no GPU.")
    happened = dialog.locator(".happened li")
    expect(happened).to_have_count(2)
    first, second = happened.all_inner_texts()
    assert f"Warning: FailedScheduling (3 times) from default-scheduler: {taint}" in first
    assert second.endswith("Held: queued: 1 of 7")
    at = f"{datetime.fromtimestamp(later / 1000, UTC):%Y-%m-%dT%H:%M:%SZ}"
    assert happened.first.locator("time").get_attribute("datetime") == at


def test_refused_events_request_is_repeated_after_retry_after(opens: Opens, place: Served) -> None:
    place.cluster.rights.granted |= {("list", "events/robotics"), ("get", "pods")}
    refusals = [{"title": "Too Many Requests", "status": 429, "detail": "Wait for them."}]

    def refuse_once(route: Route) -> None:
        if refusals:
            route.fulfill(status=429, headers={"Retry-After": "1"}, json=refusals.pop())
        else:
            route.continue_()

    page = live(opens, place)
    page.route("**/events", refuse_once)
    page.evaluate(
        """() => {
            const real = window.setTimeout;
            window.pauses = [];
            window.setTimeout = (call, pause) => {
                window.pauses.push(pause);
                return real(call, pause);
            };
        }"""
    )
    go(page, "pods/robotics/wait-0")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Wait for them.")
    assert 1000 in page.evaluate("window.pauses")
    expect(dialog).to_contain_text("There is no event.")


def test_without_the_right_the_drawer_names_it(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    go(page, "pods/robotics/wait-0")
    expect(page.get_by_role("dialog")).to_contain_text(
        "To see the events of this pod, you need the right to list events in namespace robotics."
    )


def test_no_two_entries_of_a_list_have_the_same_key(opens: Opens, place: Served) -> None:
    def repeat(route: Route) -> None:
        """Answer as if two users of the same tenant go first: both are `another user`."""
        answer = route.fetch()
        told = answer.json()
        route.fulfill(response=answer, json=told | {"ahead": told["ahead"] * 2})

    page = live(opens, place)
    page.route("**/v1/workloads/*/*", repeat)
    go(page, "pods/language/wait-0")
    expect(page.get_by_role("dialog").get_by_role("listitem").first).to_be_visible()
    assert page.evaluate(DUPLICATE_KEYS) == []


def test_focus_moves_into_the_drawer_and_returns(opens: Opens, place: Served) -> None:
    # Low enough that the page is longer than the window also after a row has gone.
    page = live(opens, place, height=300)
    go(page, "queues?tenant=robotics&user=erin@example.com")
    link = page.get_by_role("link", name=POD)
    expect(link).to_be_visible()
    page.evaluate("scrollTo(0, 40)")
    before = page.evaluate("scrollY")
    link.focus()
    page.keyboard.press("Enter")
    heading = page.get_by_role("heading", name=POD)
    expect(heading).to_be_focused()
    place.deliver(ev.PodGone(NOW, Uid("robotics/wait-6")))
    expect(page.get_by_role("dialog")).to_contain_text("1 of 6")
    expect(heading).to_be_focused()
    assert page.evaluate("scrollY") == before
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(link).to_be_focused()


def test_tab_key_moves_the_focus_within_the_drawer(opens: Opens, place: Served) -> None:
    page = live(opens, place, f"pods/{POD}")
    dialog = page.get_by_role("dialog")
    copy = dialog.get_by_role("button", name="Copy as command")
    expect(copy).to_be_visible()
    page.keyboard.press("Shift+Tab")
    expect(copy).to_be_focused()
    page.keyboard.press("Tab")
    expect(dialog.get_by_role("button", name="Close")).to_be_focused()
    for _ in range(15):
        page.keyboard.press("Tab")
        assert page.evaluate("document.querySelector('.drawer').contains(document.activeElement)")


def test_focus_returns_to_the_search_that_opened_a_pod(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    search = page.get_by_role("combobox", name="Search")
    search.fill("wait-3")
    expect(page.get_by_role("option").first).to_contain_text("pod")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog").get_by_role("heading").first).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(search).to_be_focused()


def test_a_deleted_pod_is_shown_as_such(opens: Opens, place: Served) -> None:
    place.cluster.rights.granted |= {("get", "pods")}
    page = live(opens, place)
    drawer(page)
    expect(page.get_by_role("dialog")).to_contain_text("1 of 7")
    place.deliver(ev.PodGone(NOW, Uid(POD)))
    expect(page.get_by_role("dialog")).to_contain_text("This pod is gone. Its last state, of")
    expect(page.get_by_role("dialog")).not_to_contain_text("What would help")
    expect(page.get_by_role("dialog")).not_to_contain_text("It is read again")


def test_a_pod_that_may_not_be_seen_any_more_is_not_called_gone(
    opens: Opens, place: Served
) -> None:
    page = live(opens, place)
    drawer(page)
    expect(page.get_by_role("dialog")).to_contain_text("1 of 7")
    place.cluster.rights.everything, place.cluster.rights.granted = False, set()
    told = "This pod is gone, or you may not see it any more. Its last state, of"
    expect(page.get_by_role("dialog")).to_contain_text(told)


# --- search ---


@pytest.mark.parametrize(
    ("text", "kind", "address"),
    [
        ("wait-3", "pod", "#/pods/"),
        ("annex", "namespace", "#/tenants/lab"),
        ("train", "job", "#/queues?tenant=vision&user=bob"),
        ("mine", "job", "#/me"),
        ("carol", "user", "#/queues?tenant=language&user=carol"),
        ("robo", "tenant", "#/tenants/robotics"),
        ("t4-02", "node", "#/nodes?node=t4-02"),
    ],
)
def test_search_finds_each_kind_and_enter_opens_it(
    opens: Opens, place: Served, text: str, kind: str, address: str
) -> None:
    pod = held("wait-99", "vision", "bob@example.com").pod
    place.deliver(ev.PodObserved(NOW, replace(pod, owner="Job/train-a-model")))
    own = held("own", "vision", "alice@example.com").pod
    place.deliver(ev.PodObserved(NOW, replace(own, owner="Job/mine")))
    lab = replace(tenant("lab").tenant, namespaces=("annex",))
    place.deliver(ev.TenantObserved(NOW, lab), held("one", "annex", "ivan@example.com"))
    page = live(opens, place)
    page.keyboard.press("/")
    expect(page.get_by_role("combobox", name="Search")).to_be_focused()
    page.keyboard.type(text)
    expect(page.get_by_role("option").first).to_contain_text(kind)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_function(
        "address => decodeURIComponent(location.hash).startsWith(address)", arg=address
    )


def test_the_list_of_a_search_closes_when_the_focus_leaves(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.keyboard.press("/")
    page.keyboard.press("/")  # the field has the focus already
    page.keyboard.type("wait-3")
    expect(page.get_by_role("option").first).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("option").first).to_be_hidden()


def test_search_without_a_result_names_the_searched_kinds(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.get_by_role("combobox", name="Search").fill("zzz")
    expect(page.get_by_text("No pod, job, user, tenant, namespace or node")).to_be_visible()


def test_a_filter_does_not_change_the_length_of_a_bar(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    used = page.locator("tr[data-name=robotics] rect.used")
    before = used.get_attribute("width")
    page.get_by_label("Filter").fill("robotics")
    expect(page.locator("#tenant-rows tr")).to_have_count(1)
    expect(used).to_have_attribute("width", before or "")


@pytest.mark.parametrize("view", ["tenants", "queues"])
def test_tables_sort_by_each_key(opens: Opens, place: Served, view: str) -> None:
    page = live(opens, place, view)
    heads = page.locator("main thead th", has=page.locator("button.sort"))
    expect(heads).to_have_count(4)
    rows = page.locator("#tenant-rows tr, #queue-rows tr")
    for index, (word, first) in enumerate(SORTED[view]):
        heads.nth(index).get_by_role("button").click()
        expect(heads.nth(index)).to_have_attribute("aria-sort", word)
        expect(rows.first).to_contain_text(first)


# --- keyboard and updates ---


def test_the_tree_grid_follows_the_arrow_keys(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    row = page.locator("tr[data-name=robotics]")
    row.focus()
    page.keyboard.press("ArrowRight")
    expect(row).to_have_attribute("aria-expanded", "true")
    page.keyboard.press("ArrowLeft")
    expect(row).to_have_attribute("aria-expanded", "false")
    page.keyboard.press("ArrowDown")
    expect(page.locator("tr[data-name=teaching]")).to_be_focused()


def test_updates_move_neither_focus_nor_scroll_nor_rows(opens: Opens, place: Served) -> None:
    page = live(opens, place, height=300)
    page.get_by_role("button", name="Unfold robotics").click()
    row = page.locator("tr[data-name=robotics]")
    row.focus()
    page.evaluate("scrollTo(0, 50)")
    for number in range(10):
        place.deliver(held(f"more-{number}", "robotics", "erin@example.com"))
        expect(row.locator("td[data-label=Pods]")).to_have_text(str(8 + number))
    expect(row).to_be_focused()
    expect(row).to_have_attribute("aria-expanded", "true")
    assert page.evaluate("scrollY") == 50


def test_each_control_can_have_focus_and_shows_it(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    hidden = {}
    for view in ("tenants/robotics", "queues", "nodes", "history", "me", "glossary", "audit"):
        go(page, view)
        expect(page.locator("main .card").first).to_be_visible()
        hidden[view] = page.evaluate(UNFOCUSED)
    assert hidden == {view: [] for view in hidden}


def test_sign_in_and_views_work_by_keyboard_alone(opens: Opens, place: Served) -> None:
    page = opens(place)
    expect(page.get_by_label("Token of audience")).to_be_focused()
    page.keyboard.type("alices")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status").first).to_have_text("Live")
    reached = set()
    for _ in range(25):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("document.activeElement.textContent || document.activeElement.id")
        )
        style = "getComputedStyle(document.activeElement).outlineStyle"
        assert page.evaluate(f"document.activeElement === document.body || {style}") != "none"
    assert {"search", "Queues", "filter"} <= reached
