"""Twins of PriorityClasses: the twins that should exist, and the twin of a pod."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.admission.priority_class_twins import (
    NEVER,
    NO_CLASS_TWIN,
    PriorityClass,
    Unfit,
    missing_twins,
    priority_patch,
    replacement_class,
    restore_twin_patch,
    surplus_twins,
    twin_name,
    wanted_twins,
)

PREEMPTS = "PreemptLowerPriority"
HIGH = PriorityClass("high", 1000)
TWIN = PriorityClass("fairgate-high", 1000, never_preempts=True, is_ours=True)
NONE = PriorityClass(NO_CLASS_TWIN, 0, never_preempts=True, is_ours=True)
OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

names = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,20}[a-z0-9])?(\.[a-z0-9]{1,9})?", fullmatch=True)
long_names = st.integers(200, 253).map(lambda length: "a" * length)
classes = st.builds(
    PriorityClass,
    name=st.one_of(names, names.map(lambda n: f"fairgate-{n}"), long_names, st.just(NO_CLASS_TWIN)),
    value=st.integers(-5, 5),
    never_preempts=st.booleans(),
    is_default=st.booleans(),
    is_ours=st.booleans(),
)


def known(*each: PriorityClass) -> dict[str, PriorityClass]:
    return {one.name: one for one in each}


def kept(of: dict[str, PriorityClass]) -> dict[str, PriorityClass]:
    """Return the classes after the changes of `surplus` and `missing`."""
    for each in surplus_twins(of):
        del of[each.name]
    for twin in missing_twins(of):
        of[twin.name] = PriorityClass(twin.name, twin.value, never_preempts=True, is_ours=True)
    return of


# --- twins that should exist ---


def test_each_preempting_class_has_a_twin_with_its_value() -> None:
    polite = PriorityClass("polite", 5, never_preempts=True)
    system = PriorityClass("system-node-critical", 2_000_001_000)
    wanted = wanted_twins(known(HIGH, TWIN, polite, system))
    assert {name: twin.value for name, twin in wanted.items()} == {
        "fairgate-high": 1000,
        NO_CLASS_TWIN: 0,
    }


def test_foreign_class_with_the_name_of_a_twin_gets_its_own_twin() -> None:
    assert "fairgate-fairgate-high" in wanted_twins(known(PriorityClass("fairgate-high", 3)))


@given(st.sets(st.one_of(names, long_names, st.just("")), max_size=20))
def test_no_two_classes_share_a_twin_and_its_name_is_legal(chosen: set[str]) -> None:
    given_names = {twin_name(name) for name in chosen}
    assert len(given_names) == len(chosen)
    assert all(OBJECT_NAME.fullmatch(name) and len(name) <= 253 for name in given_names)


@given(st.lists(classes, max_size=12, unique_by=lambda each: each.name))
def test_keeping_them_once_is_enough_and_touches_only_our_own(chosen: list[PriorityClass]) -> None:
    before = known(*chosen)
    after = kept(dict(before))
    assert surplus_twins(after) == []
    assert missing_twins(after) == []
    for name, each in before.items():
        if not each.is_ours or not name.startswith("fairgate"):
            assert after[name] == each


@pytest.mark.parametrize(
    "spoilt",
    [replace(TWIN, value=999), replace(TWIN, never_preempts=False), replace(TWIN, is_default=True)],
    ids=["value", "policy", "default"],
)
def test_changed_twin_is_replaced(spoilt: PriorityClass) -> None:
    assert surplus_twins(known(HIGH, spoilt, NONE)) == [spoilt]
    assert kept(known(HIGH, spoilt, NONE)) == known(HIGH, TWIN, NONE)


def test_twin_of_a_deleted_class_is_surplus() -> None:
    assert surplus_twins(known(TWIN, NONE)) == [TWIN]


def test_class_that_only_has_the_fairgate_label_is_not_surplus() -> None:
    labelled = PriorityClass("batch", 3, never_preempts=True, is_ours=True)
    assert surplus_twins(known(labelled, NONE)) == []


# --- the class of a pod ---


def test_a_pod_gets_the_twin_of_its_class() -> None:
    assert priority_patch("high", PREEMPTS, known(HIGH, TWIN)) == [
        {"op": "add", "path": "/spec/priorityClassName", "value": "fairgate-high"},
        {"op": "add", "path": "/spec/preemptionPolicy", "value": "Never"},
    ]


@pytest.mark.parametrize("name", [None, ""])
def test_a_pod_without_a_class_gets_the_twin_of_none(name: str | None) -> None:
    assert replacement_class(name, PREEMPTS, known(NONE)) == NO_CLASS_TWIN


def test_non_preempting_pod_keeps_its_class() -> None:
    assert priority_patch("polite", NEVER, {}) == []
    assert priority_patch("fairgate-high", NEVER, known(HIGH, TWIN)) == []


@pytest.mark.parametrize(
    "of",
    [
        known(),
        known(HIGH),
        known(TWIN),
        known(HIGH, replace(TWIN, value=999)),
        known(HIGH, replace(TWIN, never_preempts=False)),
    ],
    ids=["nothing", "no twin", "no class", "old value", "no policy"],
)
def test_pod_is_refused_with_503_until_its_twin_exists(
    of: dict[str, PriorityClass],
) -> None:
    refused = replacement_class("high", PREEMPTS, of)
    assert refused == Unfit(
        503,
        "Fairgate: the twin of PriorityClass high is not there yet; try again in a moment.",
    )


def test_pod_is_refused_if_the_name_of_its_twin_is_taken() -> None:
    refused = replacement_class("high", PREEMPTS, known(HIGH, PriorityClass("fairgate-high", 3)))
    assert isinstance(refused, Unfit)
    assert refused.code == 403
    assert "PriorityClass fairgate-high stands where Fairgate keeps the twin" in refused.message


def test_a_class_in_the_twins_place_that_does_its_work_will_do() -> None:
    same = replace(TWIN, is_ours=False)
    assert replacement_class("high", PREEMPTS, known(HIGH, same)) == "fairgate-high"


def test_classes_of_the_system_are_refused() -> None:
    system = PriorityClass("system-cluster-critical", 2_000_000_000)
    refused = replacement_class(system.name, PREEMPTS, known(system))
    assert isinstance(refused, Unfit)
    assert refused.code == 403
    assert system.name in refused.message


@given(
    st.lists(classes, max_size=8, unique_by=lambda each: each.name),
    st.one_of(st.none(), names),
    st.sampled_from([PREEMPTS, None, ""]),
)
def test_replacement_class_has_the_same_value_and_never_preempts(
    chosen: list[PriorityClass], name: str | None, policy: str | None
) -> None:
    of = known(*chosen)
    got = replacement_class(name, policy, of)
    assert got is not None
    if not isinstance(got, Unfit):
        assert of[got].never_preempts
        assert of[got].value == (of[name].value if name else 0)


# --- changes that an update may not revert ---


@pytest.mark.parametrize(
    "new",
    [("high", NEVER), ("high", PREEMPTS), ("high", None), ("fairgate-high", PREEMPTS)],
)
def test_a_twin_is_put_back_where_its_class_is_named_again(new: tuple[str, str | None]) -> None:
    assert restore_twin_patch(("fairgate-high", NEVER), new) == [
        {"op": "add", "path": "/spec/priorityClassName", "value": "fairgate-high"},
        {"op": "add", "path": "/spec/preemptionPolicy", "value": "Never"},
    ]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (("fairgate-high", NEVER), ("fairgate-high", NEVER)),
        (("fairgate-high", NEVER), ("low", PREEMPTS)),
        (("fairgate-high", NEVER), (None, PREEMPTS)),
        (("polite", NEVER), ("polite", PREEMPTS)),
        (("high", PREEMPTS), ("fairgate-high", NEVER)),
        ((None, None), ("high", PREEMPTS)),
    ],
)
def test_any_other_change_is_left_to_the_api_server(
    old: tuple[str | None, str | None], new: tuple[str | None, str | None]
) -> None:
    assert restore_twin_patch(old, new) == []
