"""Each technical term of each view has a "?" that opens its entry in the glossary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect

from app.core import events as ev
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live
from tests.fakes.fake_api_cluster import (
    NOW,
    ApiCluster,
    Served,
    busy,
    held,
    ran,
    record_releases,
    served,
)

VIEWS = {
    "me": "Released: 2 pods",
    "tenants": "By pool",
    "tenants/robotics": "Quota in h100",
    "queues": "Reasons",
    "queues?tenant=robotics": "Place",
    "queues?tenant=vision&user=bob@example.com": "gang",
    "nodes": "not ready",
    "nodes/h100/h100-06": "Requests",
    "history": "Releases",
    "history?tenant=vision": "fair share now",
    "audit": "Facts",
    "pods/robotics/wait-0": "What would help",
    "pods/vision/member-0": "of gang",
    "pods/language/wait-0": "Who goes first",
}
"""Addresses, with a text that each one shows when it is complete."""

TERMS = {
    "Tenant, user": {"tenant"},
    "Tenant": {"tenant"},
    "Tenants": {"tenant"},
    "By tenant": {"tenant"},
    "Weighted GPUs": {"weighted GPUs"},
    "Used, of fair share": {"fair share", "weighted GPUs"},
    "fair share": {"fair share"},
    "Fair share": {"fair share"},
    "fair share now": {"fair share"},
    "guarantee": {"guarantee"},
    "Guarantee": {"guarantee"},
    "limit": {"limit"},
    "Limit": {"limit"},
    "GPUs limit": {"limit"},
    "weight": {"weight"},
    "Weight": {"weight"},
    "weight 1 if not shown": {"weight"},
    "Quota in h100": {"quota"},
    "By pool": {"pool"},
    "Pool": {"pool"},
    "Pools": {"pool"},
    "pool": {"pool"},
    "Waiting GPUs": {"held"},
    "Place": {"place"},
    "Reason": {"wait reason"},
    "Reasons": {"wait reason"},
    "Estimated start": {"estimate"},
    "Released": {"released"},
    "Released in the last hour": {"released"},
    "released pods": {"released"},
    "half waited at most": {"half, nine in ten"},
    "nine in ten waited at most": {"half, nine in ten"},
    "Half waited at most": {"half, nine in ten"},
    "Nine in ten at most": {"half, nine in ten"},
    "free, but reserved": {"reservation"},
    "not ready": {"not ready"},
    "cordoned": {"cordoned"},
    "own score": {"score"},
    "its score": {"score"},
    "gang": {"gang"},
}
"""The terms that a label needs."""

PLAIN = {"h100", "t4", "waiting", "longest wait", "used within the fair share", "used beyond it"}
PLAIN |= {"used", "uses", "pods", "pod", "namespaces", "user", "requests", "waits", "state"}
PLAIN |= {"other tenants", "free", "node", "capacity", "capacity now", "time", "gpus", "event"}
PLAIN |= {"object", "facts", "tenant", "gpus used", "gpus asked", "pods there", "pods needed"}
PLAIN |= {"gpus free in h100", "first", "nodes of h100"}
PLAIN |= {"research", "vision", "robotics", "language", "teaching", "ns.notebooks"}
"""Labels that every reader knows, and names of objects."""

LABELS = """() => [...document.querySelectorAll(
        "main :is(th[scope=col], dt, .legend li), [role=dialog] :is(th[scope=col], dt)")]
    .map((label) => label.textContent.replace(/[▴▾✕⊘?]|, 0 to .*/g, "").trim())"""
HELP = "links => links.map((link) => [link.getAttribute('aria-label'), link.getAttribute('href')])"


@pytest.fixture
def place() -> Iterator[Served]:
    town = ApiCluster(leader_message=LED, now=NOW)
    town.rights.granted |= {("get", "audit")}
    record_releases(town.stream, "vision", 8, [30, 600], minutes=5)
    run = ran("vision", 22, since=50, until=0)
    town.past.runs.ended[run.id] = run
    with served(town, QUICK) as place:
        place.deliver(*busy())
        for number in range(2):
            pod = held(f"member-{number}", "vision", "bob@example.com").pod
            place.deliver(ev.PodObserved(NOW, replace(pod, gang="pair", gang_size=2)))
        yield place


def terms_of(page: Page) -> set[tuple[str, str]]:
    """Return the terms of the view, with the address of the glossary entry of each."""
    found = page.locator("main, [role=dialog]").locator("a.help").evaluate_all(HELP)
    return {(label.removeprefix("What is ").rstrip("?"), href) for label, href in found}


def test_each_term_of_each_view_opens_its_entry(opens: Opens, place: Served) -> None:
    page = live(opens, place, now=NOW, width=1440)
    missing: dict[str, set[str]] = {}
    entries: set[tuple[str, str]] = set()
    for view, text in VIEWS.items():
        go(page, "glossary?term=gang")
        expect(page.locator("main [aria-current=true]")).to_be_visible()
        if view.startswith("pods/"):
            go(page, "audit")
            expect(page.get_by_role("heading", name="Audit")).to_be_visible()
        go(page, view)
        shown = page.locator("main, [role=dialog]")
        expect(shown.get_by_text(text).locator("visible=true").first).to_be_visible()
        for summary in page.locator("main summary").all():
            summary.click()
        labels = set(page.evaluate(LABELS))
        needed = set().union(*(TERMS[label] for label in labels & TERMS.keys()))
        unknown = {each for each in labels - TERMS.keys() if each.lower() not in PLAIN}
        rules = set(page.locator("main ul.rules .chip, .sentence .chip").all_inner_texts())
        needed |= {rule.lstrip("▲ ").rstrip(" 0123456789") for rule in rules}
        known = terms_of(page)  # last, because later answers bring labels and their terms
        missing[view] = (needed - {term for term, _ in known}) | unknown
        entries |= known
    faults = {view: sorted(labels) for view, labels in missing.items() if labels}
    assert faults == {}, str(faults)
    for term, href in sorted(entries):
        go(page, "tenants")
        go(page, href.removeprefix("#/"))
        expect(page.locator("main [aria-current=true] dt")).to_have_text(term)
