"""Unusual data and addresses: the page remains usable and shows true values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import expect

from app.core import events as ev
from app.core.engine import Engine
from app.core.engine_options import EngineOptions
from app.core.model import Resource
from app.core.quantities import ManagedResources
from app.sim.cluster.virtual_cluster import held_pod
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live
from tests.fakes.fake_api_cluster import (
    ALICE,
    GPU,
    NOW,
    ApiCluster,
    Served,
    busy,
    held,
    runs,
    served,
    tenant,
)

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


def test_waiting_devices_of_all_vendors_and_kinds_are_shown(opens: Opens) -> None:
    devices = {GPU: 8, Resource("amd.com/gpu"): 2, Resource("nvidia.com/mig-1g.5gb"): 4}
    town = ApiCluster(leader_message=LED)
    town.engine = Engine(ManagedResources(devices), EngineOptions(emits_audit_records=False))
    pods = [
        held_pod(f"pod-{count}", "vision", count, user=ALICE, since=NOW, resource=name)
        for name, count in devices.items()
    ]
    shown = "10 GPUs, 4 mig-1g.5gb"
    with served(town, QUICK) as place:
        place.deliver(tenant("vision"), *(ev.PodObserved(NOW, pod) for pod in pods))
        page = live(opens, place)
        expect(page.locator(".tile", has_text="Waiting").locator(".value")).to_have_text(shown)
        row = page.locator("#tenant-rows tr", has_text="vision")
        expect(row.locator("td[data-label='Waiting GPUs']")).to_have_text(shown)
        go(page, "queues")
        expect(page.locator("#queue-rows td[data-label=GPUs]")).to_have_text(shown)
        go(page, "tenants/vision")
        expect(page.locator("main dl.facts")).to_contain_text(f"3 pods, {shown}")


def test_devices_are_text_with_a_unit_if_not_all_are_gpus(opens: Opens, place: Served) -> None:
    run = """async each => {
        const { devicesShort, devicesText } = await import('/static/format.js');
        return [devicesText(each), devicesShort(each)];
    }"""
    page = opens(place, locale="en-GB")
    assert page.evaluate(run, {}) == ["0 GPUs", "0"]
    assert page.evaluate(run, {"nvidia.com/gpu": "1"}) == ["1 GPU", "1"]
    assert page.evaluate(run, {"nvidia.com/gpu": "8", "amd.com/gpu": "2"}) == ["10 GPUs", "10"]
    slices = {"nvidia.com/gpu": "0", "nvidia.com/mig-1g.5gb": "4"}
    assert page.evaluate(run, slices) == ["4 mig-1g.5gb"] * 2


# --- parents ---


def test_tenants_whose_parents_form_a_circle_are_shown(opens: Opens, place: Served) -> None:
    page = live(opens, place)
    waiting = page.locator(".tile", has_text="Waiting")
    expect(waiting).to_contain_text("90 pods")
    place.deliver(
        tenant("loop-a", parent="loop-b"),
        tenant("loop-b", parent="loop-a"),
        held("circular", "loop-a", ALICE),
    )
    for name in ("loop-a", "loop-b"):
        row = page.locator(f"tr[data-name={name}]")
        expect(row).to_contain_text("its parents form a circle")
    expect(waiting).to_contain_text("91 pods")
    go(page, "tenants/loop-a")
    expect(page.get_by_role("heading", name="loop-a", exact=True)).to_be_visible()


# --- addresses ---


@pytest.mark.parametrize(
    "view",
    [
        "tenants?open=%25",
        "tenants?sort=__proto__",
        "tenants?sort=hasOwnProperty",
        "queues?sort=__proto__",
        "queues?sort=hasOwnProperty",
    ],
)
def test_a_wrong_query_shows_the_table(opens: Opens, place: Served, view: str) -> None:
    page = live(opens, place, view)
    page.reload()
    expect(page.locator("main tbody tr").first).to_be_visible()


@pytest.mark.parametrize(
    ("view", "text", "asked"),
    [
        ("pods/../me", "There is no such pod.", "/v1/me"),
        ("pods/robotics/", "There is no such pod.", "/v1/workloads"),
        ("nodes/h100/..", "Pool h100 has no node ...", "/v1/pods"),
        ("queues?tenant=..", "There is no tenant ...", "/v1/queue"),
    ],
)
def test_a_name_that_changes_the_path_is_not_asked_for(
    opens: Opens, place: Served, view: str, text: str, asked: str
) -> None:
    """A browser turns `/v1/workloads/../me` into `/v1/me`."""
    page = live(opens, place)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url.removeprefix(place.url)))
    go(page, view)
    expect(page.get_by_text(text, exact=True)).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0)
    page.evaluate("() => fetch('/v1/nodes')")  # a later request
    assert [path for path in sent if path.startswith(asked)] == []


# --- the clipboard ---


def test_a_refused_copy_is_reported(opens: Opens, place: Served) -> None:
    page = live(opens, place, "pods/robotics/wait-0")
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error()); }")
    page.get_by_role("button", name="Copy as command").click()
    expect(page.get_by_role("button", name="The browser refuses: copy it by hand")).to_be_visible()
