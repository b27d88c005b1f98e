"""Faults on the page: banner, status, and the lost connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from app.core import events as ev
from app.core.explain.leader_state import OLD_MS
from app.core.explain.views import LeaderStateMessage
from app.core.model import Millis
from app.core.policy import Mode, Policy
from app.ports.api import EnforcementResult
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, live, sign_in
from tests.fakes.fake_api_cluster import NOW, ApiCluster, Served, busy, held, served

COUNT = """alert => new MutationObserver((changes) => {
    alert.dataset.changes = Number(alert.dataset.changes ?? 0) + changes.length;
}).observe(alert, { childList: true, characterData: true, subtree: true })"""
"""Counts the changes of a live region: a screen reader speaks at each one."""


@pytest.fixture
def town() -> ApiCluster:
    return ApiCluster(leader_message=LED)


@pytest.fixture
def place(town: ApiCluster) -> Iterator[Served]:
    with served(town, QUICK) as place:
        place.deliver(*busy())
        yield place


def test_banner_and_status_report_a_missing_leader(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    page = live(opens, place)
    expect(page.get_by_role("alert")).to_be_empty()
    town.now = Millis(NOW + 61_000)
    expect(page.get_by_role("alert")).to_contain_text("No controller leads")
    expect(page.get_by_role("alert")).to_contain_text("Since")
    expect(page.get_by_role("status").first).to_have_text("Releases paused")
    town.now = NOW
    expect(page.get_by_role("alert")).to_be_empty()
    expect(page.get_by_role("status").first).to_have_text("Live")


def test_failed_enforcement_and_a_silent_webhook_are_reported(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    page = live(opens, place)
    town.enforcement = EnforcementResult(NOW, 10, {"hold": "a pod is not held."})
    expect(page.get_by_role("alert")).to_contain_text("Enforcement does not work: a pod is not")
    expect(page.get_by_role("status").first).to_have_text("Fault")
    town.enforcement = EnforcementResult(
        Millis(NOW - 18_000), 60, last_heartbeat=Millis(NOW - 16_000)
    )
    expect(page.get_by_role("alert")).to_contain_text("No webhook replica reports")
    expect(page.get_by_role("alert")).to_contain_text("Since")
    town.enforcement = EnforcementResult(NOW, 10)
    expect(page.get_by_role("alert")).to_be_empty()
    expect(page.get_by_role("status").first).to_have_text("Live")


def test_unreachable_redis_and_old_data_are_reported_with_a_glossary_link(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    page = live(opens, place)
    alert = page.get_by_role("alert")
    alert.evaluate(COUNT)
    town.reachable = False
    expect(alert).to_contain_text("Redis is unreachable")
    expect(page.get_by_role("status").first).to_have_text("Releases paused")
    for number in range(3):  # states that change, while the fault stays
        place.deliver(held(f"more-{number}", "robotics", "erin@example.com"))
        expect(page.locator("tr[data-name=robotics] td[data-label=Pods]")).to_have_text(
            str(8 + number)
        )
    expect(alert).to_have_attribute("data-changes", "1")
    page.get_by_role("link", name="What is RedisUnreachable?").click()
    expect(page.locator("[aria-current=true] dt")).to_have_text("RedisUnreachable")
    town.reachable = True
    town.age = 61_000
    expect(alert).to_contain_text("The API server has sent no changes")
    town.age = 0
    expect(alert).to_be_empty()


def test_banner_and_status_report_observe_mode(opens: Opens, place: Served) -> None:
    place.deliver(ev.PolicyObserved(NOW, Policy(mode=Mode.OBSERVE)))
    page = opens(place)
    sign_in(page)
    expect(page.get_by_role("alert")).to_contain_text("Observe mode")
    expect(page.get_by_role("status").first).to_have_text("Observing")


ENDS = """
async () => {
  const { listen } = await import("/static/stream.js");
  const [real, clock, told] = [window.fetch, Date.now, []];
  let [calls, now] = [0, clock()];
  Date.now = () => now;
  window.fetch = async (path, options) => {
    if (!String(path).includes("/v1/stream")) return real(path, options);
    calls += 1;
    if (calls === 3) throw new TypeError("no route");
    now += 60000;
    const text = new TextEncoder().encode('event: hello\\ndata: {}\\n\\n');
    const pull = async (c) => {
      while (told.at(-1) !== "event") await new Promise((next) => setTimeout(next));
      END
    };
    return new Response(new ReadableStream({ start(c) { c.enqueue(text); }, pull }));
  };
  let stop;
  await new Promise((done) => {
    stop = listen(null, ({ kind }) => { told.push(kind); if (kind === "lost") done(); });
  });
  stop();
  [window.fetch, Date.now] = [real, clock];
  return told;
}
"""
"""Connections that a proxy ends after a minute by `END`; the third one fails."""


@pytest.mark.parametrize("end", ["c.close();", "c.error(new TypeError('network error'));"])
def test_a_connection_that_a_proxy_ends_begins_again_without_a_word(
    opens: Opens, place: Served, end: str
) -> None:
    """By the last chunk of the answer, or by a cut without it.

    Nobody is signed in, so the page has no connection of its own.
    """
    page = opens(place)
    assert page.evaluate(ENDS.replace("END", end)) == ["live", "event", "live", "event", "lost"]


def test_user_without_stream_right_sees_that_releases_are_paused(
    opens: Opens, place: Served
) -> None:
    town = place.cluster
    town.rights.granted = set()
    town.leader_message = LeaderStateMessage(NOW, 3, 0.5)
    page = opens(place)
    sign_in(page)
    expect(page.get_by_role("status").first).to_have_text("My work only")
    expect(page.get_by_role("alert")).to_be_empty()
    town.now = Millis(NOW + OLD_MS + 1)
    expect(page.get_by_role("status").first).to_have_text("Releases paused", timeout=15_000)
    expect(page.get_by_role("alert")).to_contain_text("No controller leads")
    town.now = NOW
    expect(page.get_by_role("status").first).to_have_text("My work only", timeout=15_000)
    expect(page.get_by_role("alert")).to_be_empty()


def test_a_lost_connection_is_reported_and_tried_again(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    page.context.set_offline(True)
    place.cluster.stays = False  # closes the open stream
    expect(page.get_by_role("status").first).to_have_text("Connection lost")
    expect(page.get_by_role("alert")).to_contain_text("The data is from")
    place.cluster.stays = True
    page.context.set_offline(False)
    expect(page.get_by_role("status").first).to_have_text("Live")
    expect(page.get_by_role("alert")).to_be_empty()
