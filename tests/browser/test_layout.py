"""Size, contrast, marks and accessibility, with a small and with a large cluster."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from app.core.model import Millis, Quota
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, TEAMS, USERS, go, large, live, sign_in
from tests.fakes.fake_api_cluster import (
    GPU,
    NOW,
    ApiCluster,
    Served,
    busy,
    record_releases,
    runs,
    served,
    tenant,
)

HEIGHT = "document.documentElement.scrollHeight"
VIEWS = ("tenants", "tenants/robotics", "queues", "nodes", "nodes/h100/h100-06", "history", "me")
VIEWS += ("glossary", "audit?tenant=vision", "pods/robotics/wait-0")

CONTRAST = """(pairs) => {
    const probe = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
    const channel = (value) =>
        value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const luminance = (name) => {
        const element = document.createElement("span");
        element.style.color = `var(--${name})`;
        document.body.append(element);
        probe.fillStyle = getComputedStyle(element).color;
        element.remove();
        probe.fillRect(0, 0, 1, 1);
        const { data } = probe.getImageData(0, 0, 1, 1);
        const [red, green, blue] = [...data].map((value) => channel(value / 255));
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    return pairs.map(([one, other]) => {
        const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
        return (high + 0.05) / (low + 0.05);
    });
}"""
MARKS = [("mark", "used"), ("mark", "free"), ("used", "free"), ("edge", "card")]
TEXTS = [("text", "card"), ("soft", "card"), ("soft", "ground"), ("accent", "card")]
TEXTS += [("bad", "bad-ground"), ("bad", "card"), ("warn", "warn-ground"), ("on-accent", "accent")]


@pytest.fixture
def place() -> Iterator[Served]:
    town = ApiCluster(leader_message=LED)
    record_releases(town.stream, "robotics", 8, [30, 600])
    with served(town, QUICK) as place:
        place.deliver(*busy())
        yield place


@pytest.fixture(scope="module")
def crowded() -> Iterator[Served]:
    with served(ApiCluster(leader_message=LED), QUICK) as place:
        place.deliver(*large())
        yield place


@pytest.mark.parametrize(("width", "height"), [(1440, 900), (1920, 1080), (1280, 800)])
def test_the_overview_of_25_teams_has_at_most_two_screens(
    opens: Opens, crowded: Served, width: int, height: int
) -> None:
    page = live(opens, crowded, width=width, height=height)
    expect(page.locator("#tenant-rows tr")).to_have_count(TEAMS)
    assert page.evaluate(HEIGHT) <= 2 * height
    rows = page.locator("#tenant-rows")
    box = rows.bounding_box()
    assert box is not None
    assert box["height"] <= 850
    heights = rows.locator("tr").evaluate_all("rows => rows.map((row) => row.offsetHeight)")
    assert max(heights) <= 32
    assert page.locator("main").evaluate("main => main.offsetWidth") >= 0.85 * width
    heading = page.get_by_role("heading", name="Tenants").bounding_box()
    assert heading is not None
    assert box["y"] - heading["y"] - heading["height"] <= 90


def test_unfolding_a_team_moves_no_row_above_it(opens: Opens, crowded: Served) -> None:
    page = live(opens, crowded)
    rows = page.locator("#tenant-rows tr")
    expect(rows).to_have_count(TEAMS)
    page.get_by_role("button", name="Unfold team-07").click()
    expect(rows).to_have_count(TEAMS + USERS)
    names = rows.locator("th .label").all_inner_texts()
    assert names[:8] == [f"team-{number:02}" for number in range(8)]
    assert names[8:12] == [f"user-{number}@team-07.example.com" for number in range(USERS)]


def test_every_queue_can_be_reached(opens: Opens, crowded: Served) -> None:
    page = live(opens, crowded, "queues")
    expect(page.locator("#queue-rows tr")).to_have_count(TEAMS * USERS)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_queue_has_two_lines_on_a_phone_and_opens_with_a_tap(
    opens: Opens, crowded: Served, scheme: str
) -> None:
    # axe needs `bypass_csp`, as below.
    look = {"color_scheme": scheme, "bypass_csp": True}
    page = live(opens, crowded, "queues", width=390, height=844, **look)
    rows = page.locator("#queue-rows tr")
    expect(rows).to_have_count(TEAMS * USERS)
    heights = "rows => rows.map((row) => row.offsetHeight)"
    assert max(rows.evaluate_all(heights)) <= 60
    row = rows.filter(has_text="user-3@team-07.example.com")
    shown = "row => row.innerText.replace(/\\s+/g, ' ')"
    for text in ("team-07", "user-3@team-07.example.com", "60", "15"):
        assert text in row.evaluate(shown)
    details = row.locator(".detail")
    expect(details.filter(visible=True)).to_have_count(0)
    assert serious(page) == []
    button = row.get_by_role("button", name="Details of team-07, user-3@team-07.example.com")
    box = button.bounding_box()
    assert box is not None
    assert min(box["width"], box["height"]) >= 40
    button.click()
    expect(button).to_have_attribute("aria-expanded", "true")
    expect(details.filter(visible=True)).to_have_count(2)
    expect(details.last).to_contain_text("15")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert serious(page) == []


def test_a_queue_shows_all_cells_on_a_large_screen_only(opens: Opens, place: Served) -> None:
    page = live(opens, place, "queues")
    row = page.locator("#queue-rows tr", has_text="erin@example.com")
    expect(row.get_by_role("cell")).to_have_count(6)
    expect(row.get_by_role("button")).to_have_count(0)
    page.set_viewport_size({"width": 360, "height": 740})
    expect(row.get_by_role("button")).to_have_count(1)
    # The waits grow with the real time, so the longest text is set here.
    page.locator('#queue-rows td[data-label="Waits"]').evaluate_all(
        "cells => cells.forEach((cell) => { cell.textContent = '365.9 days'; })"
    )
    heights = page.locator("#queue-rows tr").evaluate_all("rows => rows.map((r) => r.offsetHeight)")
    assert max(heights) <= 60


@pytest.mark.parametrize("view", VIEWS)
def test_no_view_is_wider_than_a_phone(opens: Opens, place: Served, view: str) -> None:
    page = live(opens, place, view, width=360, height=740)
    expect(page.locator("main .card, [role=dialog]").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth") == 360


@pytest.mark.parametrize("width", [1920, 360])
def test_pod_panel_has_no_horizontal_overflow(opens: Opens, place: Served, width: int) -> None:
    place.deliver(tenant("teaching", quotas={"h100": Quota({GPU: 16})}))
    page = live(opens, place, "pods/language/wait-0", width=width, height=1080)
    panel = page.get_by_role("dialog")
    expect(panel).to_contain_text("tenant teaching is within its guarantee (0 of it), which goes")
    assert panel.evaluate("panel => panel.scrollWidth <= panel.clientWidth")


def test_long_names_and_their_weights_are_whole(opens: Opens, place: Served) -> None:
    name = "alice.vision@example.com"
    place.deliver(tenant("vision", 2, parent="research", users={name: 3}))
    place.deliver(runs("mine", "vision", name, "t4-03", 1))
    page = live(opens, place, "tenants/vision")
    label = page.locator(".weights label", has_text=name)
    height = label.evaluate("label => label.querySelector('input').offsetHeight")
    assert label.evaluate("label => label.offsetHeight") == height
    cell = page.locator("#tenant-rows th", has_text=name)
    right = "part => part.getBoundingClientRect().right"
    assert cell.locator(".tag").evaluate(right) <= cell.evaluate(right)
    assert cell.locator(".label").evaluate("part => part.scrollWidth <= part.clientWidth + 1")


@pytest.mark.parametrize(("width", "place_of_name"), [(1280, ".caller"), (360, ".account")])
def test_the_name_of_the_caller_is_shown_once(
    opens: Opens, place: Served, width: int, place_of_name: str
) -> None:
    page = live(opens, place, width=width, height=740)
    name = page.get_by_text("alice@example.com", exact=True).locator("visible=true")
    shown = name.and_(page.locator(".caller, .account"))
    expect(shown).to_have_count(1)
    expect(page.locator(place_of_name)).to_be_visible()


def test_the_first_tenant_is_on_the_first_screen_of_a_phone(opens: Opens, place: Served) -> None:
    page = live(opens, place, width=360, height=740)
    box = page.locator("#tenant-rows tr").first.bounding_box()
    assert box is not None
    assert box["y"] < 740
    header = page.locator("header").bounding_box()
    assert header is not None
    assert header["height"] <= 84  # two lines


def test_nodes_have_a_pattern_from_the_ninth_tenant_on(opens: Opens, crowded: Served) -> None:
    page = live(opens, crowded, "nodes")
    legend = page.get_by_role("list", name="Colours of tenants").get_by_role("listitem")
    expect(legend.nth(7).locator(".pattern")).to_have_count(0)
    expect(legend.nth(8).locator(".pattern")).to_have_count(1)


def test_forced_colours_keep_the_marks_apart_from_the_bar(opens: Opens, place: Served) -> None:
    page = live(opens, place, forced_colors="active")
    row = page.locator("tr[data-name=robotics]")
    fill = "part => getComputedStyle(part).fill"
    expect(row.locator(".mark").first).to_be_attached()
    marks = set(
        row.locator(".mark").evaluate_all("marks => marks.map((m) => getComputedStyle(m).fill)")
    )
    assert len(marks) == 1
    assert row.locator("rect.used").evaluate(fill) not in marks
    assert row.locator("rect.ground").evaluate(fill) not in marks


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_marks_and_text_have_enough_contrast(opens: Opens, place: Served, scheme: str) -> None:
    page = live(opens, place, color_scheme=scheme)
    marks = dict(zip(MARKS, page.evaluate(CONTRAST, MARKS), strict=True))
    texts = dict(zip(TEXTS, page.evaluate(CONTRAST, TEXTS), strict=True))
    assert {pair: ratio for pair, ratio in marks.items() if ratio < 3} == {}
    assert {pair: ratio for pair, ratio in texts.items() if ratio < 4.5} == {}


def test_marks_differ_in_shape_and_show_values_beyond_the_scale(
    opens: Opens, place: Served
) -> None:
    both = {name: Quota({GPU: 8}, {GPU: 12}) for name in ("h100", "t4")}
    wide = {"h100": Quota({GPU: 16}, {GPU: 56}), "t4": Quota({}, {GPU: 16})}
    place.deliver(tenant("robotics", quotas=both), tenant("research", 3, quotas=wide))
    page = live(opens, place)
    marks = page.locator("tr[data-name=robotics] .mark")
    expect(marks.nth(2)).to_be_attached()
    shapes = marks.evaluate_all(
        "marks => marks.map((mark) => mark.getAttribute('d').replace(/[0-9. -]/g, ''))"
    )
    assert len(set(shapes)) == 3
    expect(page.locator("tr[data-name=research] .mark.limit.beyond")).to_have_count(1)
    legend = page.get_by_role("list", name="Meaning of the bars")
    for mark in ("fair share", "guarantee", "limit", "limit beyond the bar"):
        expect(legend).to_contain_text(mark)


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


def serious(page: Page) -> list[str]:
    found = Axe().run(page).response["violations"]
    return [each["id"] for each in found if each["impact"] in ("serious", "critical")]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_view_has_a_serious_violation_of_accessibility(
    opens: Opens, place: Served, scheme: str
) -> None:
    # axe is injected into the page, which the content security policy of the page forbids.
    page = live(opens, place, color_scheme=scheme, bypass_csp=True)
    found = {}
    for view in VIEWS:
        go(page, view)
        expect(page.locator("main .card").first).to_be_visible()
        found[view] = serious(page)
    assert found == {view: [] for view in VIEWS}


def test_times_follow_the_language_of_the_browser(opens: Opens, place: Served) -> None:
    place.cluster.now = Millis(NOW + 9_000_000)
    page = opens(place, locale="de-DE")
    sign_in(page)
    expect(page.locator(".tile", has_text="Longest wait")).to_contain_text("2,5 h")
