"""Data and addresses that nobody expects: the page stays usable, and shows what is true."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, live
from tests.fakes.fake_api_cluster import NOW, ApiCluster, Served, busy, runs, served

BILLION = 10**9


@pytest.fixture
def town() -> ApiCluster:
    return ApiCluster(leader_message=LED)


@pytest.fixture
def place(town: ApiCluster) -> Iterator[Served]:
    with served(town, QUICK) as place:
        place.deliver(*busy())
        yield place


# --- texts ---


def test_text_that_looks_like_a_time_is_shown_as_it_is(opens: Opens, place: Served) -> None:
    """A user can name a gang or a scheduling gate like this."""
    page = opens(place, now=NOW, locale="en-GB", timezone_id="UTC")
    run = "async texts => texts.map((await import('/static/format.js')).sentence)"
    texts = {
        "gang 2026-99-99T99Z waits": "gang 2026-99-99T99Z waits",
        "gate 2026-01-01T::Z, since 2026-09-21T14:00:00Z": "gate 2026-01-01T::Z, since 14:00",
    }
    assert page.evaluate(run, list(texts)) == list(texts.values())


def test_an_invalid_time_is_unknown(opens: Opens, place: Served) -> None:
    run = """async () => {
        const format = await import('/static/format.js');
        const dates = ['moment', 'exactMoment', 'dated', 'time', 'clockTime', 'day'];
        return [...dates.map((name) => format[name](new Date('none'))), format.ago('none')];
    }"""
    assert opens(place).evaluate(run) == ["unknown"] * 7


# --- amounts ---


def test_a_request_of_a_billion_gpus_draws_few_cells(opens: Opens, place: Served) -> None:
    """The scheduler does not check a pod that names its node."""
    place.deliver(runs("huge", "teaching", "judy@example.com", "t4-03", BILLION))
    page = live(opens, place, "nodes/t4")
    node = page.locator(".node", has_text="t4-03")
    expect(node).to_contain_text(f"{BILLION:,} of 4 used")
    expect(node.locator("i.device")).to_have_count(32)
