"""The submitter of an object that a controller created."""

from __future__ import annotations

from typing import Any

import pytest

from app.core.admission.pod_templates import group_by_resource
from app.core.admission.submitters import (
    OwnerRef,
    controller_of,
    counts_for_controller,
    submitter_in,
)
from app.core.admission.workload_kinds import BUILT_IN
from app.core.model import UserName

KINDS = group_by_resource(BUILT_IN)
REFERENCE = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": "r", "uid": "u"}
POD = OwnerRef("v1", "Pod", "p", "u")


def owned(*references: Any) -> dict[str, Any]:
    return {"metadata": {"ownerReferences": list(references)}}


def test_the_controller_among_the_owners_counts() -> None:
    other = {**REFERENCE, "name": "other"}
    found = controller_of(owned(other, {**REFERENCE, "controller": True}))
    assert found == OwnerRef("ray.io/v1", "RayCluster", "r", "u")
    assert (found.group, found.resource) == ("ray.io", "rayclusters")


@pytest.mark.parametrize(
    "document",
    [
        None,
        {},
        owned(),
        owned(REFERENCE),
        owned({**REFERENCE, "controller": "true"}),
        owned({**REFERENCE, "controller": True, "uid": ""}),
        owned("nonsense"),
        {"metadata": {"ownerReferences": "nonsense"}},
    ],
)
def test_an_object_may_have_no_controller(document: Any) -> None:
    assert controller_of(document) is None


def test_the_stamp_of_a_pod_counts_only_if_fairgate_manages_it() -> None:
    stamps = {"fairgate.io/submitter": "alice"}
    managed = {"metadata": {"annotations": {**stamps, "fairgate.io/release": "1.1"}}}
    assert submitter_in(managed, POD, KINDS) == "alice"
    assert submitter_in({"metadata": {"annotations": stamps}}, POD, KINDS) is None


def test_a_kind_that_is_not_known_has_no_stamp() -> None:
    document = {"spec": {"template": {"metadata": {"annotations": {"fairgate.io/submitter": "a"}}}}}
    assert submitter_in(document, OwnerRef("batch/v1", "Job", "j", "u"), KINDS) == "a"
    assert submitter_in(document, OwnerRef("acme.io/v1", "Job", "j", "u"), KINDS) is None


@pytest.mark.parametrize(
    ("user", "counts"),
    [
        ("alice", False),
        ("system:serviceaccount:team-a:pipeline", False),
        ("system:serviceaccount:argo:argo", True),
        ("system:serviceaccount:kube-system:job-controller", True),
        ("system:kube-controller-manager", True),
        ("system:serviceaccount:", False),
    ],
)
def test_an_account_of_another_namespace_is_a_controller(user: str, counts: bool) -> None:
    assert counts_for_controller(UserName(user), "team-a") is counts
