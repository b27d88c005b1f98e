"""Only the webhook writes the user that changed a resource or removed a gate."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.admission import changed_by as stamps
from app.core.model import UserName
from app.k8s_types import objects
from app.kube.convert_custom import changed_by
from tests.support.json_patch import apply

ALICE, ROOT, API = UserName("alice"), UserName("root"), UserName("fairgate-api")
BY, AT = "fairgate.io/changed-by", "fairgate.io/changed"

Document = dict[str, Any]


def resource(spec: Document, generation: int = 1, **written: str) -> Document:
    metadata: Document = {"name": "a", "generation": generation}
    if written:
        metadata["annotations"] = dict(written)
    return {"kind": "Tenant", "metadata": metadata, "spec": spec, "status": {}}


def stored(before: Document | None, after: Document, caller: str, speaks: bool = False) -> Document:
    """Return the stored object: stamped, with the API server's own generation."""
    patch = stamps.author_patch(before, after, UserName(caller), speaks)
    signed = apply(after, patch)
    generation = 1
    if before is not None:
        changed = signed["spec"] != before["spec"]
        generation = before["metadata"]["generation"] + changed
    signed["metadata"]["generation"] = generation
    return signed


def by(document: Document) -> str:
    meta = document["metadata"]
    return changed_by(
        objects.Metadata(generation=meta["generation"], annotations=meta.get("annotations"))
    )


def test_author_of_a_new_resource_is_recorded() -> None:
    made = stored(None, resource({"weight": "1"}), ALICE)
    assert by(made) == "alice"


def test_author_of_a_change_replaces_the_creator() -> None:
    made = stored(None, resource({"weight": "1"}), ROOT)
    changed = stored(made, {**made, "spec": {"weight": "2"}}, ALICE)
    assert by(changed) == "alice"


def test_a_change_of_labels_alone_leaves_the_name() -> None:
    made = stored(None, resource({"weight": "1"}), ROOT)
    labelled = {**made, "metadata": {**made["metadata"], "labels": {"x": "y"}}}
    assert by(stored(made, labelled, ALICE)) == "root"
    bare = {**made, "metadata": {"name": "a", "generation": 1}}
    assert by(stored(made, bare, ALICE)) == "root"


def test_author_is_not_trusted_after_an_unsigned_change() -> None:
    made = stored(None, resource({"weight": "1"}), ROOT)
    made["spec"], made["metadata"]["generation"] = {"weight": "9"}, 2
    assert by(made) == ""


def test_user_cannot_record_another_author() -> None:
    forged = resource({"weight": "1"}, **{BY: "root", AT: "1"})
    assert by(stored(None, forged, ALICE)) == "alice"
    made = stored(None, resource({"weight": "1"}), ROOT)
    again = {**made, "metadata": {**made["metadata"], "annotations": {BY: "bob", AT: "1"}}}
    assert by(stored(made, again, ALICE)) == "root"


def test_api_of_fairgate_records_the_user_of_the_request() -> None:
    named = resource({"weight": "1"}, **{BY: "alice"})
    assert by(stored(None, named, API, speaks=True)) == "alice"
    assert by(stored(None, resource({"weight": "1"}), API, speaks=True)) == "fairgate-api"
    assert by(stored(None, named, ROOT)) == "root"


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b"]), st.integers(0, 2), st.booleans(), st.booleans()),
        max_size=8,
    )
)
def test_the_name_is_that_of_the_last_change_or_none(
    steps: list[tuple[str, int, bool, bool]],
) -> None:
    """True with and without the webhook, and for any stamps in the request."""
    now = stored(None, resource({"weight": "0"}), "root")
    truth = "root"
    for caller, weight, signed, forges in steps:
        sent = {**now, "metadata": dict(now["metadata"]), "spec": {"weight": str(weight)}}
        if forges and signed:
            sent["metadata"]["annotations"] = {BY: "another", AT: str(weight)}
        changes = sent["spec"] != now["spec"]
        if signed:
            now = stored(now, sent, caller)
        else:
            sent["metadata"]["generation"] += changes
            now = sent
        if changes:
            truth = caller if signed else ""
        assert by(now) == truth


@pytest.mark.parametrize("annotations", [None, {}, {"mine": "1"}, {BY: "another", "mine": "1"}])
def test_remover_of_the_gate_is_recorded_on_the_pod(annotations: dict[str, str] | None) -> None:
    pod = {"metadata": {"annotations": annotations} if annotations is not None else {}}
    patch = stamps.gate_remover_patch(annotations, ROOT)
    assert apply(pod, patch)["metadata"]["annotations"] == {**(annotations or {}), BY: "root"}


@pytest.mark.parametrize("broken", [None, 7, [], {"metadata": 1}, {"spec": []}])
def test_malformed_resource_causes_no_error(broken: Any) -> None:
    stamps.author_patch(broken, broken, ALICE, False)
