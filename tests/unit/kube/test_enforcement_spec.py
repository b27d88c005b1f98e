"""The enforced objects as values: parsing the documents and comparing objects."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest
import yaml

from app.core.errors import InvalidInput
from app.core.policy import Mode
from app.kube.enforcement_spec import (
    BINDING,
    Object,
    Ref,
    desired_object,
    differences,
    is_denying,
    last_writer,
    read_documents,
    read_mode,
)

CA = b"a certificate"


def document(kind: str, name: str = "fairgate", **contents: Any) -> Object:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {"a": "b"}, "annotations": {}},
        **contents,
    }


def hooks() -> Object:
    return document(
        "MutatingWebhookConfiguration",
        webhooks=[{"name": name, "failurePolicy": "Fail", "clientConfig": {}} for name in "xy"],
    )


def binding() -> Object:
    return document(BINDING, spec={"policyName": "p", "validationActions": ["Deny"]})


def test_one_key_can_contain_many_documents() -> None:
    stream = "---\n" + yaml.safe_dump_all([binding(), document(BINDING, "second", spec={})])
    found = read_documents({"b": stream, "a": yaml.safe_dump(hooks())})
    assert list(found) == [
        Ref("MutatingWebhookConfiguration", "fairgate"),
        Ref(BINDING, "fairgate"),
        Ref(BINDING, "second"),
    ]


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"a": ""},
        {"a": "# nothing\n---\n"},
        {"a": "{"},
        {"a": "- 1"},
        {"a": "text"},
        {"a": yaml.safe_dump({**binding(), "metadata": None})},
        {"a": yaml.safe_dump({**binding(), "metadata": {"name": ["x"]}})},
        {"a": yaml.safe_dump(document(BINDING))},
        {"a": yaml.safe_dump({**binding(), "kind": "Secret"})},
        {"a": yaml.safe_dump({**binding(), "apiVersion": "v1"})},
        {"a": yaml.safe_dump(binding()), "b": yaml.safe_dump(binding())},
    ],
)
def test_incomplete_documents_are_refused(data: dict[str, str] | None) -> None:
    with pytest.raises(InvalidInput, match="fairgate-enforcement"):
        read_documents(data)


def test_every_webhook_has_our_ca() -> None:
    normal = hooks()
    wanted = desired_object(normal, CA, denies=True)
    written = [base64.b64decode(each["clientConfig"]["caBundle"]) for each in wanted["webhooks"]]
    assert written == [CA, CA]
    assert [each["failurePolicy"] for each in wanted["webhooks"]] == ["Fail", "Fail"]
    assert normal == hooks()


def test_mode_observe_removes_only_the_denial() -> None:
    wanted = desired_object(hooks(), CA, denies=False)
    assert [each["failurePolicy"] for each in wanted["webhooks"]] == ["Ignore", "Ignore"]
    spec = desired_object(binding(), CA, denies=False)["spec"]
    assert spec == {"policyName": "p", "validationActions": ["Audit"]}
    policy = document("ValidatingAdmissionPolicy", spec={"failurePolicy": "Fail"})
    assert desired_object(policy, CA, denies=False) == policy


def test_metadata_of_other_clients_is_no_difference() -> None:
    live = copy.deepcopy(binding())
    live["metadata"] |= {"uid": "u", "labels": {"a": "b", "c": "d"}, "annotations": {"e": "f"}}
    live["status"] = {"observedGeneration": 1}
    assert differences(live, binding()) == []


@pytest.mark.parametrize(
    ("change", "where"),
    [
        (lambda live: live["metadata"].pop("labels"), "metadata.labels.a"),
        (lambda live: live["spec"].update(policyName="q"), "spec.policyName"),
        (lambda live: live["spec"].update(paramRef={}), "spec.paramRef"),
        (lambda live: live["spec"].pop("policyName"), "spec.policyName"),
        (lambda live: live["spec"]["validationActions"].append("x"), "spec.validationActions"),
        (lambda live: live["spec"].update(validationActions=["x"]), "spec.validationActions[0]"),
        (lambda live: live.pop("spec"), "spec"),
    ],
)
def test_other_changes_are_differences_with_their_path(change: Any, where: str) -> None:
    live = binding()
    change(live)
    assert differences(live, binding()) == [where]


def test_only_objects_that_mode_observe_weakens_can_be_denying() -> None:
    for item in (hooks(), binding()):
        assert is_denying(desired_object(item, CA, denies=True))
        assert not is_denying(desired_object(item, CA, denies=False))
    for name in ("fairgate-authors", "fairgate-templates", "fairgate-tenants"):
        always = document(BINDING, name, spec=binding()["spec"])
        assert not is_denying(always)
        assert desired_object(always, CA, denies=False) == always


@pytest.mark.parametrize("written", ["Observe", "Enforce", " Observe\n"])
def test_the_mode_is_read(written: str) -> None:
    assert read_mode({"mode": written}).value == written.strip()
    assert read_documents({"mode": written, "a": yaml.safe_dump(binding())})


def test_without_a_mode_it_is_enforce_and_another_is_refused() -> None:
    assert read_mode(None) is Mode.ENFORCE
    with pytest.raises(InvalidInput, match="'observe'; write Enforce or Observe"):
        read_mode({"mode": "observe"})


def test_the_last_writer_is_not_us() -> None:
    entries = [
        {"manager": "kubectl-edit", "time": "2026-01-01T00:00:02Z"},
        {"manager": "helm", "time": "2026-01-01T00:00:01Z"},
        {"manager": "fairgate", "time": "2026-01-01T00:00:03Z"},
        {"manager": "kube-apiserver", "time": "2026-01-01T00:00:04Z", "subresource": "status"},
    ]
    live = {"metadata": {"managedFields": entries}}
    assert last_writer(live, "fairgate") == "kubectl-edit at 2026-01-01T00:00:02Z"
    assert last_writer({"metadata": {}}, "fairgate") == "unknown"
