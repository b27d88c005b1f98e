"""Weights of a tenant: preview, apply after a confirmation, and refusal without the right."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import pytest
from playwright.sync_api import Dialog, Page, Route, expect

from app.core.model import TenantName, UserName
from app.ports.forecasts import Comparison, TenantForecast, WeightChanges
from tests.browser.conftest import Opens
from tests.browser.signed_in import LED, QUICK, go, live, settled
from tests.fakes.fake_api_cluster import ApiCluster, Served, busy, held, served, tenant

MAY_WEIGH = {("update", "tenants/users"), ("update", "tenants"), ("create", "simulations")}


class Waits:
    """Implements `ports.forecasts.Simulations`: vision waits 600 s now, and 300 s then."""

    def __init__(self) -> None:
        self.asked: list[WeightChanges] = []

    async def compare(self, changes: WeightChanges, hours: float) -> Comparison:
        self.asked.append(changes)
        now, then = (TenantForecast(Fraction(1), 0.5, 12, 6, mean, mean) for mean in (600, 300))
        return Comparison(12, 0.1, "nothing", {TenantName("vision"): (now, then)})


@pytest.fixture
def waits() -> Waits:
    return Waits()


@pytest.fixture
def town(waits: Waits) -> ApiCluster:
    town = ApiCluster(leader_message=LED, simulations=waits)
    town.rights.granted |= MAY_WEIGH
    users = [{"name": "alice@example.com", "weight": "3"}]
    town.resources.put("tenants", "vision", {"weight": "2", "parent": "research", "users": users})
    for name, weight in (("research", "3"), ("language", "1")):
        parent = {"parent": "research"} if name == "language" else {}
        town.resources.put("tenants", name, {"weight": weight, **parent})
    return town


@pytest.fixture
def place(town: ApiCluster) -> Iterator[Served]:
    with served(town, QUICK) as place:
        place.deliver(*busy())
        yield place


def weigh(opens: Opens, place: Served) -> Page:
    """Return the page with a new weight for bob, which is not applied yet."""
    page = live(opens, place, "tenants/vision")
    field = page.get_by_role("spinbutton", name="bob@example.com")
    expect(field).to_have_value("1")
    expect(page.get_by_text("a user named")).to_have_count(0)
    for button in ("Preview", "Apply"):
        expect(page.get_by_role("button", name=button)).to_be_disabled()
    field.fill("9")
    return page


def answer(page: Page, accepts: bool) -> list[str]:
    """Answer the next confirmation, and return the list that receives its text."""
    texts: list[str] = []

    def reply(dialog: Dialog) -> None:
        texts.append(dialog.message)
        dialog.accept() if accepts else dialog.dismiss()

    page.once("dialog", reply)
    return texts


def weights(town: ApiCluster) -> dict[str, str]:
    spec = town.resources.spec("tenants", "vision")
    assert spec is not None
    return {user["name"]: user["weight"] for user in spec["users"]}


def test_preview_shows_shares_and_waits_without_changing_weights(
    opens: Opens, town: ApiCluster, waits: Waits, place: Served
) -> None:
    page = weigh(opens, place)
    before = weights(town)
    page.get_by_role("button", name="Preview").click()
    shares = page.get_by_role("table", name="Shares by weight before and after")
    row = shares.get_by_role("row", name="bob@example.com")
    expect(row.get_by_role("cell")).to_have_count(2)
    now, then = (float(cell.rstrip(" %")) for cell in row.get_by_role("cell").all_inner_texts())
    assert then > now
    row = page.get_by_role("table", name="Mean waits before and after").get_by_role("row").last
    expect(row.get_by_role("cell")).to_have_text(["10 min", "5 min"])
    expect(page.get_by_text("Waits of the 12 pods that wait now")).to_be_visible()
    assert waits.asked == [
        WeightChanges({}, {TenantName("vision"): {UserName("bob@example.com"): Fraction(9)}})
    ]
    assert weights(town) == before


def shares_shown(page: Page) -> dict[str, list[str]]:
    """Return the rows of the preview: the share now and the share then, by name."""
    page.get_by_role("button", name="Preview").click()
    rows = page.get_by_role("table", name="Shares by weight before and after").get_by_role("row")
    expect(rows.nth(1)).to_be_visible()
    found: dict[str, list[str]] = {}
    for row in rows.all()[1:]:
        name = row.get_by_role("rowheader").inner_text()
        assert name not in found
        found[name] = row.get_by_role("cell").all_inner_texts()
    return found


def test_the_preview_of_two_edits_shows_the_shares_with_both(opens: Opens, place: Served) -> None:
    page = live(opens, place, "tenants/vision")
    for user, weight in (("alice", "1"), ("bob", "3")):
        page.get_by_role("spinbutton", name=user).fill(weight)
    shown = shares_shown(page)
    # The weights were 3 and 1, so the shares change places.
    alice, bob = shown["alice@example.com"], shown["bob@example.com"]
    assert alice == bob[::-1]
    assert alice[0] != alice[1]
    assert len(shown) == 2


@pytest.mark.parametrize("seen", [True, False])
def test_the_preview_of_a_user_and_a_child_counts_their_siblings(
    opens: Opens, town: ApiCluster, place: Served, seen: bool
) -> None:
    """Alice, language and vision share half the cluster as 1 : 1 : 2, then as 3 : 1 : 0."""
    place.deliver(held("one", "research", "alice@example.com"))
    if not seen:
        town.rights.granted -= {("get", "tenants/queue"), ("list", "tenants")}
        town.rights.granted |= {("get", f"tenants/queue/{name}") for name in ("research", "vision")}
    page = live(opens, place, "tenants/research")
    page.get_by_role("spinbutton", name="alice@example.com").fill("3")
    page.get_by_role("spinbutton", name="vision").fill("0")
    shown = {
        name: [cell.replace("\u00a0", " ") for cell in cells]
        for name, cells in shares_shown(page).items()
    }
    language = {"language": ["13 %", "13 %"]} if seen else {}
    assert shown == {
        "alice@example.com": ["13 %", "38 %"],
        "vision": ["25 %", "0 %"],
        **language,
    }


def test_a_weight_is_set_only_after_the_confirmation(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    page = weigh(opens, place)
    before = weights(town)
    refused = answer(page, accepts=False)
    page.get_by_role("button", name="Apply").click()
    assert refused == ["Set these weights?\n\nbob@example.com: 1 → 9"]
    assert weights(town) == before
    accepted = answer(page, accepts=True)
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("1 weight set. The page shows it in a moment.")).to_be_visible()
    expect(page.get_by_role("button", name="Apply")).to_be_focused()
    assert accepted == refused
    assert weights(town) == {"alice@example.com": "3", "bob@example.com": "9"}
    assert town.resources.by("tenants", "vision") == "alice@example.com"
    # The watch brings the change, as it does in a cluster.
    place.deliver(tenant("vision", 2, parent="research", users={"bob@example.com": 9}))
    expect(page.get_by_text("weight 9")).to_be_visible()
    expect(page.get_by_role("spinbutton", name="bob@example.com")).to_have_value("9")
    expect(page.get_by_text("in a moment")).to_have_count(0)


def test_a_weight_that_is_typed_during_apply_stays(opens: Opens, place: Served) -> None:
    held_back, passes = list[Route](), list[bool]()

    def hold(route: Route) -> None:
        if passes:
            route.continue_()
        else:
            held_back.append(route)

    page = weigh(opens, place)
    page.route("**/weight", hold)
    answer(page, accepts=True)
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_role("button", name="Working …")).to_be_visible()
    page.get_by_role("spinbutton", name="alice@example.com").fill("7")
    passes.append(True)
    for route in held_back:
        route.continue_()
    expect(page.get_by_text("1 weight set.")).to_be_visible()
    expect(page.get_by_role("spinbutton", name="alice@example.com")).to_have_value("7")
    expect(page.get_by_role("button", name="Apply")).to_be_enabled()


def test_the_confirmation_shows_hidden_characters_of_names_as_escapes(
    opens: Opens, place: Served
) -> None:
    place.deliver(held("one", "vision", "eve\u202ebob"))
    page = live(opens, place, "tenants/vision")
    page.get_by_role("spinbutton", name="eve").fill("7")
    told = answer(page, accepts=False)
    page.get_by_role("button", name="Apply").click()
    assert told == ["Set these weights?\n\neve\\u202ebob: 1 → 7"]


@pytest.mark.parametrize("name", [".", ".."])
def test_the_page_sends_no_weight_for_a_user_whose_name_no_path_can_have(
    opens: Opens, place: Served, name: str
) -> None:
    """A browser turns `/users/../weight` into the path of the tenant's own weight."""
    place.deliver(held("one", "research", name))
    page = live(opens, place)
    sent: list[str] = []
    page.on("request", lambda request: sent.append(request.url.removeprefix(place.url)))
    go(page, "tenants/research")
    expect(page.get_by_role("spinbutton", name="language")).to_be_enabled()
    expect(page.get_by_role("spinbutton", name=name, exact=True)).to_be_disabled()
    expect(page.get_by_text("You cannot set the weight of a user named . or ..")).to_be_visible()
    tried = {path.removesuffix("?dryRun=true") for path in sent if "/weight" in path}
    assert tried == {"/v1/tenants/language/weight"}


def test_an_edit_removes_the_preview_and_weight_0_is_explained(opens: Opens, place: Served) -> None:
    page = weigh(opens, place)
    page.get_by_role("button", name="Preview").click()
    shares = page.get_by_role("table", name="Shares by weight before and after")
    expect(shares).to_be_visible()
    expect(page.get_by_text("Weight 0")).to_have_count(0)
    page.get_by_role("spinbutton", name="bob@example.com").fill("0")
    expect(shares).to_have_count(0)
    expect(page.get_by_text("Weight 0: only its guarantee, and what others leave.")).to_be_visible()


@pytest.mark.parametrize("button", ["Preview", "Apply"])
def test_if_the_right_is_lost_the_answer_names_it_and_no_weight_changes(
    opens: Opens, town: ApiCluster, place: Served, button: str
) -> None:
    page = weigh(opens, place)
    town.rights.granted -= MAY_WEIGH
    before = weights(town)
    answer(page, accepts=True)
    page.get_by_role("button", name=button).click()
    right = "may not update tenants/users.fairgate.io vision"
    expect(page.get_by_role("status").get_by_text(right)).to_be_visible()
    expect(page.get_by_role("spinbutton", name="bob@example.com")).to_have_value("9")
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    assert weights(town) == before


def test_without_the_right_weights_are_read_only_and_the_right_is_named(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    town.rights.granted -= MAY_WEIGH
    before = weights(town)
    page = live(opens, place, "tenants/vision")
    refused = "You cannot set weights of users: alice@example.com may not update tenants/users"
    expect(page.get_by_text(refused)).to_be_visible()
    fields = page.get_by_role("spinbutton")
    expect(fields.first).to_be_visible()
    for field in fields.all():
        expect(field).to_be_disabled()
    expect(page.get_by_text("A preview changes nothing")).to_have_count(0)
    expect(page.get_by_role("button", name="Preview")).to_have_count(0)
    assert weights(town) == before


def test_weights_are_read_only_until_the_right_is_known(opens: Opens, place: Served) -> None:
    held_back, passes = list[Route](), list[bool]()

    def hold(route: Route) -> None:
        if passes:  # a late request
            route.continue_()
        else:
            held_back.append(route)

    page = live(opens, place)
    page.route("**/weight?dryRun=true", hold)
    go(page, "tenants/vision")
    field = page.get_by_role("spinbutton", name="bob@example.com")
    expect(field).to_be_disabled()
    settled(page, "document.querySelectorAll('input[type=number]').length > 0")
    passes.append(True)
    for route in held_back:
        route.continue_()
    expect(field).to_be_enabled()


def test_with_the_right_on_users_only_weights_of_child_tenants_are_read_only(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    town.rights.granted -= {("update", "tenants")}
    place.deliver(held("one", "research", "alice@example.com"))
    page = live(opens, place, "tenants/research")
    expect(page.get_by_text("You cannot set weights of child tenants")).to_be_visible()
    expect(page.get_by_role("spinbutton", name="language")).to_be_disabled()
    expect(page.get_by_role("spinbutton", name="alice@example.com")).to_be_enabled()


def test_failed_child_weight_change_names_the_weights_already_set(
    opens: Opens, town: ApiCluster, place: Served
) -> None:
    town.rights.granted -= {("update", "tenants")}
    town.rights.granted |= {("update", "tenants/research"), ("get", "tenants")}
    page = live(opens, place, "tenants/research")
    page.get_by_role("spinbutton", name="language").fill("4")
    page.get_by_role("spinbutton", name="vision").fill("0007")  # the API server refuses it
    answer(page, accepts=True)
    page.get_by_role("button", name="Apply").click()
    expect(page.get_by_text("1 weight is set: language. The others are not.")).to_be_visible()
    expect(page.get_by_text("must be a decimal number")).to_be_visible()
    spec = town.resources.spec("tenants", "language")
    assert spec is not None
    assert spec["weight"] == "4"
