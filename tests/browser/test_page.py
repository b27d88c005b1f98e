"""The dashboard end to end: a browser, the real server, a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Page, expect

from app.core import events as ev
from app.core.model import Uid
from app.web.api.stream import StreamTiming
from tests.browser.conftest import Opens
from tests.fakes.fake_api_cluster import NOW, Served, Town, busy, held, ran, runs, served, tenant

QUICK = StreamTiming(beat=0.05, quiet=0.5, trust=0.2)
FOCUSED = "document.activeElement.textContent || document.activeElement.id"
HOSTILE = '<img src=x onerror="document.title=1">'


@pytest.fixture
def town() -> Town:
    return Town()


@pytest.fixture
def place(town: Town) -> Iterator[Served]:
    with served(town, QUICK) as place:
        place.tell(*busy())
        yield place


def sign_in(page: Page, token: str = "alices") -> None:
    page.get_by_label("Token of audience").fill(token)
    page.get_by_role("button", name="Sign in").click()


def live(opens: Opens, place: Served, **options: object) -> Page:
    """Return the page after sign-in, when it shows data."""
    page = opens(place, **options)
    sign_in(page)
    expect(page.get_by_role("status")).to_have_text("Live")
    return page


def row(page: Page, name: str) -> str:
    return page.locator(
        "#tenant-rows tr", has=page.get_by_role("rowheader", name=name)
    ).inner_text()


def test_nothing_is_shown_before_somebody_signs_in(opens: Opens, place: Served) -> None:
    page = opens(place)
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    expect(page.locator("#board")).to_be_hidden()
    expect(page.get_by_label("Token of audience")).to_be_focused()


def test_it_shows_what_tenants_and_users_are_owed_and_use(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    expect(page.get_by_text("alice@example.com").first).to_be_visible()
    expect(page.locator("#tenant-rows tr")).to_have_count(15)
    said = row(page, "robotics")
    for part in ("uses 29 %", "is owed 23 %", "guarantee 12 %", "limit 41 %", "h100: 20 gpu", "7"):
        assert part in said, said
    assert "uses 18 %" in row(page, "erin@example.com")


def test_it_shows_queues_with_their_reasons(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    queue = page.locator("#queue-rows tr", has_text="erin@example.com")
    expect(queue).to_contain_text("robotics")
    expect(queue.get_by_role("listitem")).to_have_text("limit 7")


def test_it_shows_nodes_and_their_devices(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    node = page.locator(".node", has_text="h100-02")
    expect(node.locator("i.full")).to_have_count(6)
    expect(node.locator("i.free")).to_have_count(2)
    expect(node).to_contain_text("6 of 8 gpu in use")


def test_a_change_is_seen_without_reloading(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    place.tell(runs("new", "teaching", "judy@example.com", "t4-03", 4))
    expect(page.locator(".node", has_text="t4-03").locator("i.full")).to_have_count(4)
    expect(page.locator("#tenant-rows")).to_contain_text("judy@example.com")
    place.tell(ev.PodGone(NOW, Uid("teaching/new")))
    expect(page.locator("#tenant-rows")).not_to_contain_text("judy@example.com")


def test_names_are_shown_as_text_whatever_they_are(opens: Opens, town: Town, place: Served) -> None:
    page = live(opens, place)
    place.tell(held("p", "teaching", HOSTILE), tenant(HOSTILE), runs("q", "a", HOSTILE, "t4-03"))
    queue = page.locator("#queue-rows tr", has_text=HOSTILE)
    expect(queue).to_be_visible()
    queue.get_by_role("button").click()
    expect(page.get_by_role("region", name="Pods of a queue")).to_contain_text(HOSTILE)
    page.get_by_text("Shares as a table").click()
    assert page.locator("img").count() == 1  # the logo of Fairgate, in the head
    assert page.title() == "Fairgate"


def test_pods_of_a_queue_are_shown_on_demand(opens: Opens, town: Town, place: Served) -> None:
    page = live(opens, place)
    button = page.get_by_role("button", name="Show the pods of robotics, erin@example.com")
    expect(button).to_have_attribute("aria-expanded", "false")
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    pods = page.get_by_role("region", name="Pods of a queue")
    expect(pods).to_be_focused()
    expect(pods.get_by_role("row")).to_have_count(8)
    expect(pods).to_contain_text("robotics/wait-0")
    expect(pods.get_by_role("row").nth(1)).to_contain_text("limit queued: 1 of 7")
    button.click()
    expect(pods).to_be_hidden()


def test_only_what_the_caller_may_see_is_shown(opens: Opens, town: Town, place: Served) -> None:
    town.rights.granted = {("get", "stream"), ("get", "tenants/queue/robotics")}
    page = live(opens, place)
    expect(page.locator("#tenant-rows tr")).to_have_count(3)
    expect(page.locator("#tenants")).to_contain_text("Other tenants are not shown")
    expect(page.locator("#pools")).to_contain_text("You may not see pools")
    assert "research" not in page.content()


def test_who_may_not_listen_is_told_which_right_is_missing(
    opens: Opens, town: Town, place: Served
) -> None:
    town.rights.granted = set()
    page = opens(place)
    sign_in(page)
    expect(page.get_by_role("alert")).to_contain_text("may not get stream.fairgate.io")
    expect(page.locator("#board")).to_be_hidden()


def test_a_wrong_token_is_refused_and_forgotten(opens: Opens, place: Served) -> None:
    page = opens(place)
    sign_in(page, "mallorys")
    expect(page.get_by_role("alert")).to_contain_text("This token is not valid")
    expect(page.get_by_label("Token of audience")).to_be_focused()
    assert page.evaluate("sessionStorage.length") == 0


def test_a_token_that_expires_signs_out_and_shows_nothing_any_more(
    opens: Opens, town: Town, place: Served
) -> None:
    page = live(opens, place)
    town.rights.token = "another"
    expect(page.get_by_role("alert")).to_contain_text("You were signed out")
    expect(page.locator("#board")).to_be_hidden()
    assert "robotics" not in page.content()
    assert page.evaluate("sessionStorage.length") == 0


def test_signing_out_forgets_everything(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("status")).to_have_text("Signed out")
    assert page.evaluate("[sessionStorage.length, localStorage.length]") == [0, 0]
    assert "robotics" not in page.content()
    page.reload()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_token_lasts_for_the_tab_and_no_longer(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.reload()
    expect(page.get_by_role("status")).to_have_text("Live")
    assert page.evaluate("localStorage.length") == 0
    assert page.context.cookies() == []


def test_a_lost_connection_is_said_and_tried_again(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.context.set_offline(True)
    place.town.stays = False  # closes the open stream
    expect(page.get_by_role("status")).to_have_text("Connection lost, retrying")
    expect(page.get_by_role("alert")).to_contain_text("What you see is of")
    place.town.stays = True
    page.context.set_offline(False)
    expect(page.get_by_role("status")).to_have_text("Live")
    expect(page.get_by_role("alert")).to_be_hidden()


def test_an_empty_cluster_says_so(opens: Opens) -> None:
    with served(Town(), QUICK) as place:
        page = live(opens, place)
        expect(page.locator("#tenants")).to_contain_text("There are no tenants")
        expect(page.locator("#queues")).to_contain_text("Nothing waits")
        expect(page.locator("#pools")).to_contain_text("It has no node")


def test_the_filter_narrows_tenants_and_queues(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.get_by_label("Filter").fill("ERIN")
    expect(page.locator("#queue-rows tr")).to_have_count(1)
    expect(page.locator("#tenant-rows tr")).to_have_count(2)  # the user, below the tenant
    page.get_by_label("Filter").fill("nobody at all")
    expect(page.locator("#queues")).to_contain_text("No queue matches")


def test_history_comes_from_the_ledger(opens: Opens, town: Town, place: Served) -> None:
    # The tenant uses all H100s for half an hour: 64 GPUs worth 4 units each, of 272 units in total.
    run = ran("vision", 64, since=60, until=30)
    town.past.runs.ended[run.id] = run
    page = live(opens, place, now=NOW)
    expect(page.get_by_role("button", name="1 hour")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#history canvas")).to_be_visible()
    page.get_by_text("Shares as a table").click()
    shares = page.get_by_role("table", name="Shares of the cluster over time")
    expect(shares.get_by_role("columnheader")).to_have_text(["Time", "research"])
    expect(shares.get_by_role("cell").first).to_have_text("0 %")
    expect(shares.get_by_role("cell").last).to_have_text("94 %")


def test_without_the_ledger_history_is_what_the_page_saw(
    opens: Opens, town: Town, place: Served
) -> None:
    town.rights.granted -= {("get", "tenants/usage")}
    page = live(opens, place)
    came = page.get_by_role("button", name="Since you came")
    expect(came).to_have_attribute("aria-pressed", "true")
    page.get_by_text("Shares as a table").click()
    expect(page.locator("#history table")).to_contain_text("robotics")
    expect(page.locator("#history table")).to_contain_text("29 %")
    page.get_by_role("button", name="7 days").click()
    expect(page.locator("#history")).to_contain_text("may not get tenants/usage.fairgate.io")


def test_no_page_is_wider_than_a_phone(opens: Opens, place: Served) -> None:
    page = live(opens, place, width=360, height=740)
    page.get_by_role("button", name="Show the pods of robotics, erin@example.com").click()
    for summary in page.locator("summary").all():
        summary.click()
    expect(page.get_by_role("table", name="Nodes of h100")).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_theme_follows_the_system_until_it_is_chosen(
    opens: Opens, place: Served, scheme: str
) -> None:
    page = opens(place, color_scheme=scheme)
    ground = "getComputedStyle(document.body).backgroundColor"
    first = page.evaluate(ground)
    assert first == {"light": "rgb(245, 246, 248)", "dark": "rgb(18, 22, 28)"}[scheme]
    page.get_by_role("button", name="Theme: system").click()
    if scheme == "light":
        page.get_by_role("button", name="Theme: light").click()
    assert page.evaluate(ground) != first
    page.reload()
    assert page.evaluate(ground) != first


def test_it_can_be_used_by_keyboard_alone(opens: Opens, place: Served) -> None:
    page = opens(place)
    page.keyboard.type("alices")
    page.keyboard.press("Enter")
    expect(page.get_by_role("status")).to_have_text("Live")
    expect(page.locator("main")).to_be_focused()
    reached = []
    for _ in range(12):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate("document.activeElement.textContent || document.activeElement.id")
        )
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") != "none"
    assert {"filter", "1 hour", "Show pods"} <= set(reached)


def test_everything_has_a_name_for_who_cannot_see_it(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    for region in ("Tenants and users", "Shares over time", "Queues", "Pools and nodes"):
        expect(page.get_by_role("region", name=region)).to_be_visible()
    for name in ("What tenants and users are owed and use", "How many pods wait, and for what"):
        expect(page.get_by_role("table", name=name)).to_be_visible()
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, input, summary, a')].filter(
            (one) => !(one.textContent.trim() || one.ariaLabel || one.labels?.length)
        ).length"""
    )
    assert nameless == 0
    assert page.locator("[aria-live], [role=status], [role=alert]").count() == 2


def test_nothing_but_our_own_files_is_let_in(opens: Opens, place: Served) -> None:
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
    expect(page.get_by_role("status")).to_have_text("Live")
    page.reload()
    expect(page.get_by_role("status")).to_have_text("Live")
    assert all(url.startswith(place.url) for url in asked), asked


def test_the_policy_stops_scripts_that_are_not_ours(browser: Browser, place: Served) -> None:
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
