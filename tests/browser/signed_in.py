"""Pages of signed-in callers, and the fixture of a large cluster."""

from __future__ import annotations

from playwright.sync_api import Locator, Page, expect

from app.core import events as ev
from app.core.explain.views import LeaderStateMessage
from app.web.api.stream import StreamTiming
from tests.browser.conftest import Opens
from tests.fakes.fake_api_cluster import NOW, Served, held, pool, runs, tenant

QUICK = StreamTiming(state_interval=0.05, keep_alive_interval=0.5, rights_interval=0.2)
LED = LeaderStateMessage(NOW, 3, 0.5)
"""State of a leader, so that the page shows no fault."""

SETTLED = """() => new Promise((done, fail) => {
    const end = performance.now() + 30_000;
    const look = () => {
        try {
            if (CONDITION) done();
            else if (performance.now() < end) requestAnimationFrame(look);
            else fail(new Error("the condition stays false"));
        } catch (error) {
            fail(error);
        }
    };
    look();
})"""

TEAMS, USERS = 25, 4
WAITING = (3, 7, 11, 15)


def sign_in(page: Page, token: str = "alices") -> None:
    page.get_by_label("Token of audience").fill(token)
    page.get_by_role("button", name="Sign in").click()


def live(opens: Opens, place: Served, view: str = "", **options: object) -> Page:
    """Return the page after sign-in, when it shows data."""
    page = opens(place, **options)
    sign_in(page)
    expect(page.get_by_role("status").first).to_have_text("Live")
    if view:
        go(page, view)
    return page


def go(page: Page, view: str) -> None:
    """Open an address such as `tenants/robotics`."""
    page.evaluate("view => { location.hash = `#/${view}`; }", view)


def settled(page: Page, condition: str) -> None:
    """Wait until a JavaScript expression is true. Playwright's own wait needs `unsafe-eval`.

    Fails after 30 s, or if the expression throws.
    """
    page.evaluate(SETTLED.replace("CONDITION", condition))


def reach(rows: Locator, last: int) -> Locator:
    """Press "Show more" of a table until it has gone, and return the last of `last` rows."""
    expect(rows.first).to_be_visible()
    more = rows.last.locator("xpath=following::p[@class='more'][1]//button")
    while rows.count() < last:
        before = rows.count()
        more.click()
        expect(rows).not_to_have_count(before)
    expect(rows).to_have_count(last)
    # Not Playwright's own scrolling, which waits until updates of the page have moved no row.
    rows.last.evaluate("row => row.scrollIntoView()")
    return rows.last


def large() -> list[ev.ClusterEvent]:
    """Return 3 pools of 500 GPUs, 25 teams of 4 users, and 900 waiting pods."""
    news = [*pool("a100", 48), *pool("h100", 12), *pool("t4", 5, devices=4)]
    nodes = [f"a100-{number:02}" for number in range(48)] + [f"h100-{n:02}" for n in range(12)]
    for team in range(TEAMS):
        name = f"team-{team:02}"
        news.append(tenant(name, weight=1 + team % 3))
        for user in range(USERS):
            person = f"user-{user}@{name}.example.com"
            if user < 2:
                node = nodes[(2 * team + user) % len(nodes)]
                news.append(runs(f"run-{team}-{user}", name, person, node, 8))
            news += [
                held(f"job-{team}-{user}-{n}", name, person, 1 + user) for n in range(WAITING[user])
            ]
    return news
