"""Rows 10 and 13: being counted as somebody else, or as nobody."""

from __future__ import annotations

import pytest

from app.core import guard
from tests.e2e.attacks.ground import RED, Ground, Object, layer_of, path
from tests.e2e.attacks.means import CHANGED, rule, somebody
from tests.e2e.attacks.outcomes import Outcomes
from tests.e2e.stage import RELEASE
from tests.people import Person

SUBMITTER = "fairgate.io/submitter"


CHANGES = (
    {"labels": {"fairgate.io/tenant": "ns.blue"}},
    {"labels": {"fairgate.io/user": "bob"}},
    {"labels": {"fairgate.io/user": None}},
    {"labels": {"fairgate.io/pool": "other"}},
    {"annotations": {SUBMITTER: "bob"}},
    {"annotations": {RELEASE: "9.9"}},
    {"annotations": {RELEASE: None}},
    {"annotations": {"fairgate.io/gang": "x"}},
    {"annotations": {"fairgate.io/gang-size": "2"}},
)


@pytest.fixture(scope="module")
def clerk(ground: Ground) -> Person:
    """Somebody who was given the right to write the status of pods."""
    return somebody(ground, "clerk", rule("patch update", "pods/status"))


def test_10_nobody_changes_what_a_pod_is_counted_by(ground: Ground, outcomes: Outcomes) -> None:
    for name in (ground.held(), ground.released()):
        before = ground.pod(name)
        for change in CHANGES:
            for who in (ground.mallory, ground.chief):
                said = who.refused("PATCH", path(RED, name), {"metadata": change})
                assert said is not None, change
                assert layer_of(said) == CHANGED[ground.mode]
                assert guard.STAMPS_KEPT in said
        assert stamps(ground.pod(name)) == stamps(before)
    outcomes(10, ground.mode, "tenant, user, pool, gang of a pod", layer_of(said), said)


def test_10_nor_through_the_status(ground: Ground, outcomes: Outcomes, clerk: Person) -> None:
    name = ground.held()
    before = ground.pod(name)
    for change in CHANGES:
        patch = {"metadata": change}
        said = ground.mallory.refused("PATCH", path(RED, name, "status"), patch)
        assert said is not None
        assert layer_of(said) == "R"
        by_right = clerk.refused("PATCH", path(RED, name, "status"), patch)
        assert by_right is not None, change
        assert layer_of(by_right) == CHANGED[ground.mode]
        assert guard.STAMPS_KEPT in by_right
    assert stamps(ground.pod(name)) == stamps(before)
    outcomes(10, ground.mode, "through pods/status", "R", said)
    outcomes(10, ground.mode, "through pods/status, by right", layer_of(by_right), by_right)


def stamps(pod: Object) -> Object:
    """Return what Fairgate reads of a pod's labels and annotations."""
    written = {**pod["metadata"].get("labels", {}), **pod["metadata"].get("annotations", {})}
    return {key: value for key, value in written.items() if key.startswith("fairgate.io/")}
