"""The known kinds: the chart has the same paths, and each path finds its templates."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from app.core.admission.pod_templates import (
    find_templates,
    group_by_resource,
    read_stamps,
    stamp_templates,
)
from app.core.admission.workload_kinds import BUILT_IN, WORKLOAD_KINDS, WorkloadKind
from app.core.model import UserName
from app.devcluster.fairgate_install import CHART
from tests.support.json_patch import apply

ALICE = UserName("alice")
KUBERNETES = ("", "apps", "batch")
KINDS = group_by_resource(BUILT_IN)


def test_the_chart_has_the_known_kinds() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    rows = [(row["group"], row["resource"], row["path"]) for row in values["podTemplates"]]
    assert rows == [(kind.group, kind.resource, kind.path) for kind in BUILT_IN]
    for row in values["podTemplates"]:
        assert row["versions"] == (["v1"] if row["group"] in KUBERNETES else ["*"])


def test_every_operator_is_a_service_account() -> None:
    for kind in WORKLOAD_KINDS:
        assert bool(kind.operators) == (kind.group not in KUBERNETES)
        assert all(who.startswith("system:serviceaccount:") for who in kind.operators)


def example(kind: WorkloadKind) -> dict[str, Any]:
    """Return an object with one item at each wildcard, and a GPU in each template."""
    document: dict[str, Any] = {"metadata": {}, "spec": {}}
    container = {"name": "c", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    for path in kind.paths:
        at: Any = document
        keys = path.removesuffix(".annotations").split(".")
        for place, key in enumerate(keys):
            name = key.removesuffix("[*]").removesuffix("{*}")
            empty: Any = [{}] if key.endswith("[*]") else {"Worker": {}} if "{*}" in key else {}
            if place == len(keys) - 1 and not path.endswith(".annotations"):
                empty = {"spec": {"containers": [container]}}
            at = at.setdefault(name, empty)
            at = at[0] if key.endswith("[*]") else at["Worker"] if "{*}" in key else at
    return document


def asks(template: dict[str, Any]) -> bool:
    return "nvidia.com/gpu" in str(template)


@pytest.mark.parametrize("kind", WORKLOAD_KINDS, ids=lambda kind: kind.kind)
def test_every_place_of_a_kind_is_stamped(kind: WorkloadKind) -> None:
    places, document = KINDS[kind.group, kind.resource], example(kind)
    assert len(find_templates(places, document)) == len(kind.paths)

    patch, overruled = stamp_templates(places, None, document, ALICE, asks)

    assert read_stamps(places, apply(document, patch)) == ["alice"] * len(kind.paths)
    assert overruled == ()
    assert stamp_templates(places, None, apply(document, patch), ALICE, asks) == ([], ())


def test_one_template_with_devices_causes_all_templates_to_be_stamped() -> None:
    places = KINDS["ray.io", "rayclusters"]
    gpu = {"template": {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 1}}}]}}}
    document = {"spec": {"headGroupSpec": {"template": {"spec": {}}}, "workerGroupSpecs": [gpu]}}
    patch, _ = stamp_templates(places, None, document, ALICE, asks)
    assert read_stamps(places, apply(document, patch)) == ["alice", "alice"]


def test_annotations_of_an_existing_object_are_not_stamped() -> None:
    """A stamp on an object of before the installation would not reach its pods."""
    places, document = KINDS["argoproj.io", "workflows"], {"spec": {"entrypoint": "main"}}
    assert stamp_templates(places, document, {"spec": {"entrypoint": "b"}}, ALICE, asks) == ([], ())


def test_a_lost_stamp_of_annotations_is_restored() -> None:
    places = KINDS["argoproj.io", "workflows"]
    before = {"spec": {"podMetadata": {"annotations": {"fairgate.io/submitter": "alice"}}}}
    after: dict[str, Any] = {"spec": {"podMetadata": {"labels": {"a": "b"}}}}
    patch, _ = stamp_templates(places, before, after, UserName("bob"), asks)
    assert read_stamps(places, apply(after, patch)) == ["alice"]
