"""What is kept in force, as values: reading the documents, and telling what differs."""

from __future__ import annotations

import base64
import copy
from typing import Any

import pytest
import yaml

from app.core.errors import InvalidInput
from app.kube.enforcement import (
    BINDING,
    Object,
    Ref,
    differences,
    in_force,
    lacks_only_ca,
    last_writer,
    read_documents,
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


def test_one_key_holds_many_documents() -> None:
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
def test_what_is_not_whole_is_not_taken(data: dict[str, str] | None) -> None:
    with pytest.raises(InvalidInput, match="fairgate-enforcement"):
        read_documents(data)


def test_every_webhook_has_our_ca() -> None:
    normal = hooks()
    wanted = in_force(normal, CA, observing=False)
    written = [base64.b64decode(each["clientConfig"]["caBundle"]) for each in wanted["webhooks"]]
    assert written == [CA, CA]
    assert [each["failurePolicy"] for each in wanted["webhooks"]] == ["Fail", "Fail"]
    assert normal == hooks()


def test_observing_takes_the_teeth_and_no_more() -> None:
    wanted = in_force(hooks(), CA, observing=True)
    assert [each["failurePolicy"] for each in wanted["webhooks"]] == ["Ignore", "Ignore"]
    spec = in_force(binding(), CA, observing=True)["spec"]
    assert spec == {"policyName": "p", "validationActions": ["Warn", "Audit"]}
    policy = document("ValidatingAdmissionPolicy", spec={"failurePolicy": "Fail"})
    assert in_force(policy, CA, observing=True) == policy


def test_what_others_add_to_metadata_is_no_difference() -> None:
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
def test_anything_else_is_a_difference_and_is_named(change: Any, where: str) -> None:
    live = binding()
    change(live)
    assert differences(live, binding()) == [where]


def test_a_configuration_without_its_ca_is_told_from_one_that_was_touched() -> None:
    wanted = in_force(hooks(), CA, observing=False)
    assert lacks_only_ca(hooks(), wanted, None)
    touched = hooks()
    touched["webhooks"][0]["failurePolicy"] = "Ignore"
    assert not lacks_only_ca(touched, wanted, None)
    assert not lacks_only_ca(in_force(hooks(), b"another", observing=False), wanted, None)


def test_a_new_webhook_may_lack_its_ca_but_an_old_one_has_lost_it() -> None:
    wanted = in_force(hooks(), CA, observing=False)
    first = {**wanted, "webhooks": wanted["webhooks"][:1]}
    live = {**wanted, "webhooks": [wanted["webhooks"][0], hooks()["webhooks"][1]]}
    assert lacks_only_ca(live, wanted, first)
    assert not lacks_only_ca(live, wanted, wanted)


def test_the_last_writer_is_not_us() -> None:
    entries = [
        {"manager": "kubectl-edit", "time": "2026-01-01T00:00:02Z"},
        {"manager": "helm", "time": "2026-01-01T00:00:02Z"},
        {"manager": "fairgate", "time": "2026-01-01T00:00:03Z"},
        {"manager": "kube-apiserver", "time": "2026-01-01T00:00:04Z", "subresource": "status"},
    ]
    live = {"metadata": {"managedFields": entries}}
    assert last_writer(live, "fairgate") == "kubectl-edit at 2026-01-01T00:00:02Z"
    assert last_writer({"metadata": {}}, "fairgate") == "unknown"
