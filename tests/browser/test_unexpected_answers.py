"""Errors that must not end the session or stop the page, and races of its controls."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Page, Route, expect

from app.core.explain.views import LeaderStateMessage
from app.core.model import Millis
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live, settled, sign_in
from tests.browser.tapped_stream import push, tapped
from tests.fakes.fake_api_cluster import NOW, ApiCluster, Served, busy, held, served

POD = "robotics/wait-0"
FAULTS = {
    "502": {"status": 502, "body": "Bad Gateway"},
    "429": {"status": 429, "json": {"detail": "too many requests"}},
    "no network": None,
}
PAUSED = [{"code": "RedisUnreachable", "text": "Redis is unreachable.", "since": None}]
RELOAD = "Reload the page."


@pytest.fixture
def place() -> Iterator[Served]:
    with served(ApiCluster(leader_message=LED), QUICK) as place:
        place.deliver(*busy())
        yield place


def fail(page: Page, answer: dict[str, object] | None) -> None:
    """Let the requests of the session and of the stream fail."""

    def reply(route: Route) -> None:
        route.abort() if answer is None else route.fulfill(**answer)  # type: ignore[arg-type]

    for path in ("me", "stream"):
        page.route(f"**/v1/{path}", reply)


@pytest.mark.parametrize("fault", FAULTS)
def test_reload_during_a_fault_does_not_sign_out(opens: Opens, place: Served, fault: str) -> None:
    page = live(opens, place)
    fail(page, FAULTS[fault])
    page.reload()
    expect(page.get_by_role("status").first).to_have_text("Connection lost")
    page.unroute_all()
    expect(page.get_by_role("status").first).to_have_text("Live")
    expect(page.locator(".caller")).to_have_text("alice@example.com")


@pytest.mark.parametrize(
    "answer",
    [
        {"status": 504, "json": {"kind": "Status", "message": "the replica does not answer"}},
        {"status": 502, "content_type": "text/plain", "body": "the replica does not answer"},
    ],
    ids=["Kubernetes", "proxy"],
)
def test_error_of_another_server_is_shown(
    opens: Opens, place: Served, answer: dict[str, object]
) -> None:
    page = live(opens, place)
    fail(page, answer)
    page.reload()
    expect(page.get_by_role("alert")).to_contain_text("the replica does not answer")


def test_text_that_cannot_be_a_token_is_refused(opens: Opens, place: Served) -> None:
    page = opens(place)
    sign_in(page, "alice\u2019s")
    expect(page.get_by_role("alert")).to_contain_text("copy the token again")


def test_unexpected_data_stops_only_the_part_that_shows_it(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.evaluate("console.error = () => {}")  # this test expects an error
    page.route(f"**/v1/workloads/{POD}", lambda route: route.fulfill(json={"state": "held"}))
    go(page, f"pods/{POD}")
    drawer = page.get_by_role("dialog")
    expect(drawer.get_by_text("This part cannot be shown")).to_be_visible()
    page.unroute_all()
    expect(drawer.locator(".sentence")).to_be_visible()
    drawer.get_by_role("button", name="Close").click()
    place.deliver(held("more", "robotics", "erin@example.com"))
    expect(page.locator("tr[data-name=robotics] td[data-label=Pods]")).to_have_text("8")


def test_sign_out_stops_requests_that_have_begun(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.evaluate("console.error = () => {}")
    page.route("**/v1/usage**", lambda route: None)  # never answered
    with page.expect_event("requestfailed", lambda request: "/v1/usage" in request.url):
        with page.expect_request("**/v1/usage**"):
            go(page, "history")
        page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_second_click_on_close_does_not_leave_the_view(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.get_by_role("link", name="Queues", exact=True).click()
    page.evaluate("document.querySelector('a[href=\"#/queues\"]').focus()")
    page.get_by_role("combobox", name="Search").fill("wait-0")
    page.get_by_role("option").first.click()
    close = page.get_by_role("dialog").get_by_role("button", name="Close")
    close.evaluate("button => { button.click(); button.click(); }")
    expect(page.get_by_role("dialog")).to_have_count(0)
    settled(page, "location.hash === '#/queues'")
    page.go_back()
    settled(page, "location.hash !== '#/queues'")


def test_enter_opens_no_hit_of_an_older_text(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    field = page.get_by_role("combobox", name="Search")
    field.fill("wait-0")
    expect(page.get_by_role("option").first).to_be_visible()
    page.route("**/v1/search?q=wait-0x*", lambda route: None)  # never answered
    field.press("x")
    field.press("Enter")
    expect(field).to_have_value("wait-0x")
    expect(page.get_by_role("dialog")).to_have_count(0)


def test_slash_does_not_leave_the_drawer(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    go(page, f"pods/{POD}")
    heading = page.get_by_role("dialog").get_by_role("heading", name=POD)
    expect(heading).to_be_focused()
    page.keyboard.press("/")
    expect(heading).to_be_focused()


@pytest.mark.parametrize("ahead", [-3600, 900])
def test_waits_do_not_depend_on_the_clock_of_the_browser(
    opens: Opens, place: Served, ahead: int
) -> None:
    place.cluster.now = Millis(NOW + 1_800_000)
    place.cluster.leader_message = LeaderStateMessage(place.cluster.now, 3, 0.5)
    page = live(opens, place, "queues", now=NOW + 1000 * (1800 + ahead), locale="en-GB")
    expect(page.locator("#queue-rows td[data-label=Waits]").first).to_have_text("30 min")


def test_the_stream_begins_again_when_the_right_is_given(opens: Opens, place: Served) -> None:
    page = live(opens, place, now=NOW)
    place.cluster.rights.granted.discard(("get", "stream"))
    expect(page.get_by_role("status").first).to_have_text("My work only")
    place.cluster.rights.granted.add(("get", "stream"))
    page.clock.fast_forward(75_000)
    expect(page.get_by_role("status").first).to_have_text("Live")


LISTENERS = """async () => {
    const { listen } = await import("/static/stream.js");
    let left = 0;
    for (const [name, change] of [["addEventListener", 1], ["removeEventListener", -1]]) {
        const real = EventTarget.prototype[name];
        EventTarget.prototype[name] = function (kind, ...rest) {
            if (kind === "abort") left += change;
            return real.call(this, kind, ...rest);
        };
    }
    const wait = window.setTimeout;
    window.setTimeout = (end) => wait(end, 1);
    window.fetch = async () => { throw new TypeError("no network"); };
    let lost = 0;
    await new Promise((done) => listen("t", () => (lost += 1) === 20 && done()));
    return left;
}"""


def test_failed_attempts_leave_no_listeners(opens: Opens, place: Served) -> None:
    assert opens(place).evaluate(LISTENERS) <= 2


CHUNKS = """async () => {
    const { listen } = await import("/static/stream.js");
    const text = `event: a\\ndata: "${"x".repeat(3000)}"\\n\\nevent: b\\ndata: 2\\n\\n`;
    const bytes = new TextEncoder().encode(text);
    let at = 0;
    const pull = (stream) => at < bytes.length && stream.enqueue(bytes.slice(at, ++at));
    window.fetch = async () => new Response(new ReadableStream({ pull }));
    let searched = 0;
    const split = String.prototype.split;
    String.prototype.split = function (by, ...rest) {
        if (by === "\\n\\n") searched += this.length;
        return split.call(this, by, ...rest);
    };
    const names = [];
    await new Promise((done) => {
        listen("t", (item) => {
            if (item.kind === "event") names.push(item.name);
            if (names.length === 2) done();
        });
    });
    return [names, searched <= 2 * bytes.length];
}"""


def test_a_large_event_in_small_chunks_is_searched_once(opens: Opens, place: Served) -> None:
    assert opens(place).evaluate(CHUNKS) == [["a", "b"], True]


def test_waits_grow_if_nothing_changes(opens: Opens, place: Served) -> None:
    page = live(opens, place, "queues", now=NOW)
    waits = page.locator("td[data-label=Waits]").first
    before = waits.text_content()
    assert before
    page.clock.set_fixed_time(NOW / 1000 + 7200)
    expect(waits).not_to_have_text(before)


def test_absent_parts_of_a_state_are_empty(opens: Opens, place: Served) -> None:
    page = tapped(opens, place)
    lists = dict.fromkeys(["tenants", "queues", "pools", "problems"])
    push(page, "state", **lists, **dict.fromkeys(["users", "owed", "waiting", "leftOut"]))
    expect(page.get_by_text("There are no tenants")).to_be_visible()
    expect(page.get_by_role("status").first).to_have_text("Live")
    push(page, "hello", everyTenant=False, queues=None)
    push(page, "state", problems=PAUSED)
    expect(page.get_by_role("status").first).to_have_text("Releases paused")
    expect(page.get_by_role("navigation").get_by_role("link")).to_have_count(5)


def test_a_fault_of_the_status_is_shown_as_a_fault(opens: Opens, place: Served) -> None:
    page = tapped(opens, place)
    push(page, "state", problems={"code": "a list that became an object"})
    expect(page.get_by_role("status").first).to_have_text("Fault")
    page.get_by_role("link", name="Queues", exact=True).click()
    expect(page.locator("#queue-rows tr").first).to_be_visible()
    push(page, "state", problems=PAUSED)
    expect(page.get_by_role("status").first).to_have_text("Releases paused")


@pytest.mark.parametrize("text", ["null", "[1]]", '{"tenants": 5}'])
def test_an_event_that_cannot_be_read_is_no_lost_connection(
    opens: Opens, place: Served, text: str
) -> None:
    page = tapped(opens, place)
    page.evaluate("text => window.send(`event: state\\ndata: ${text}\\n\\n`)", text)
    expect(page.get_by_role("alert")).to_contain_text(RELOAD)
    expect(page.get_by_role("status").first).to_have_text("Fault")
    push(page, "hello")
    expect(page.get_by_role("alert")).to_contain_text(RELOAD)
    push(page, "state")
    expect(page.get_by_role("status").first).to_have_text("Live")
    expect(page.get_by_role("alert")).not_to_contain_text(RELOAD)
    assert page.evaluate("window.connections") == 1
