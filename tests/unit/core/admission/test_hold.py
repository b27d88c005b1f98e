"""The two patches: one holds a pod, and the other releases it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from app.core.admission.hold import (
    DenyDecision,
    HoldDecision,
    IgnoreDecision,
    NamespaceOwner,
    PodCreateRequest,
    decide_hold,
)
from app.core.admission.validation import PodValidator, ValidationRules
from app.core.model import Resource, TenantName, UserName
from app.core.podspec.annotations import may_be_evicted, named_pools
from app.core.podspec.constraints import Toleration
from app.core.quantities import ManagedResources
from app.core.release_patch import (
    fence_patch,
    label_value,
    release_patch,
    restore_annotation_patch,
)
from app.core.well_known import ANNOTATION_PREEMPTIBLE, GATE
from tests.support.json_patch import PatchFailed, apply
from tests.support.release_orders import ALICE, GPU, ORDER

MANAGED = ManagedResources([GPU])
TEAM = NamespaceOwner(TenantName("team-a"))

STAMPS = {"fairgate.io/submitter": ALICE, "fairgate.io/release": "0"}

Json = dict[str, Any]


def asking(**fields: Any) -> PodCreateRequest:
    return PodCreateRequest("team-a", ALICE, {GPU: 1}, **fields)


def held(pod: Json) -> tuple[Json, tuple[str, ...]]:
    """Hold a pod; return the pod as the API server would store it, and the warnings."""
    gates = tuple(gate["name"] for gate in pod["spec"].get("schedulingGates", ()))
    metadata = pod["metadata"]
    verdict = decide_hold(
        asking(gates=gates, labels=metadata.get("labels"), annotations=metadata.get("annotations")),
        TEAM,
        MANAGED,
    )
    assert isinstance(verdict, HoldDecision)
    return apply(pod, verdict.patch), verdict.warnings


def test_pod_without_managed_resources_is_ignored() -> None:
    assert (
        decide_hold(replace(asking(), demand={Resource("cpu"): 1000}), TEAM, MANAGED)
        == IgnoreDecision()
    )
    assert decide_hold(replace(asking(), demand={GPU: 0}), TEAM, MANAGED) == IgnoreDecision()


def test_pod_with_device_claims_is_held_even_if_it_requests_only_cpu() -> None:
    pod = replace(asking(has_device_claims=True), demand={Resource("cpu"): 1000})
    assert isinstance(decide_hold(pod, TEAM, MANAGED), HoldDecision)


def test_a_bare_pod_gets_gate_labels_and_stamps() -> None:
    pod, warnings = held({"metadata": {}, "spec": {}})

    assert pod["spec"]["schedulingGates"] == [{"name": GATE}]
    assert pod["metadata"]["labels"]["fairgate.io/tenant"] == "team-a"
    assert pod["metadata"]["annotations"] == STAMPS
    assert warnings == ()


def test_pod_is_refused_if_its_template_sets_a_wrong_fairgate_label() -> None:
    """The controller would lose each pod by its selector and create another."""
    for labels in ({"fairgate.io/pool": "h100"}, {"fairgate.io/user": "bob"}):
        verdict = decide_hold(asking(labels=labels, trusts_stamp=True), TEAM, MANAGED)
        assert isinstance(verdict, DenyDecision)
        assert "take it out of the template" in verdict.message
    user = {"fairgate.io/user": label_value(ALICE)}
    assert isinstance(
        decide_hold(asking(labels=user, trusts_stamp=True), TEAM, MANAGED), HoldDecision
    )


def test_update_that_leaves_mixed_submitter_stamps_unchanged_is_allowed() -> None:
    """The object was created while the webhook was not called. Its finalizers must be removable."""
    rules = PodValidator(ValidationRules())
    assert rules.check_template_stamps(["alice", ""], ["alice", ""], UserName("collector")) is None
    assert (
        rules.check_template_stamps(["alice", ""], ["", "alice"], UserName("collector")) is not None
    )


def test_a_mirror_in_somebodys_name_is_none() -> None:
    node, mirror = "n", {"kubernetes.io/config.mirror": "x"}
    made = PodCreateRequest("team-a", UserName("system:node:n"), {GPU: 1}, node_name=node)
    assert decide_hold(replace(made, annotations=mirror), TEAM, MANAGED) == IgnoreDecision()
    named = {**mirror, "fairgate.io/submitter": ALICE}
    assert isinstance(decide_hold(replace(made, annotations=named), TEAM, MANAGED), DenyDecision)


def test_hold_keeps_the_labels_annotations_and_gates_of_the_user() -> None:
    labels, annotations = {"app": "train"}, {"note": "x", "fairgate.io/pools": "h100"}
    pod, warnings = held(
        {
            "metadata": {"labels": labels, "annotations": annotations},
            "spec": {"schedulingGates": [{"name": "example.com/other"}]},
        }
    )

    assert pod["spec"]["schedulingGates"] == [{"name": "example.com/other"}, {"name": GATE}]
    assert labels.items() <= pod["metadata"]["labels"].items()
    assert pod["metadata"]["annotations"] == annotations | STAMPS
    assert warnings == ()


def test_existing_gate_is_not_added_twice() -> None:
    pod, _ = held({"metadata": {}, "spec": {"schedulingGates": [{"name": GATE}]}})

    assert pod["spec"]["schedulingGates"] == [{"name": GATE}]


def test_holding_twice_changes_nothing_the_second_time() -> None:
    once, _ = held({"metadata": {}, "spec": {}})
    twice, warnings = held(once)

    assert twice == once
    assert warnings == ()


def test_forged_keys_are_overwritten_with_a_warning_each() -> None:
    pod, warnings = held(
        {
            "metadata": {
                "labels": {"fairgate.io/tenant": "rich", "fairgate.io/pool": "h100"},
                "annotations": {
                    "fairgate.io/release": "7.1",
                    "fairgate.io/submitter": "bob",
                    "fairgate.io/no-such-key": "~1",
                },
            },
            "spec": {"schedulingGates": [{"name": GATE}]},
        }
    )

    assert pod["metadata"]["labels"].keys() == {"fairgate.io/tenant", "fairgate.io/user"}
    assert pod["metadata"]["labels"]["fairgate.io/tenant"] == "team-a"
    assert pod["metadata"]["annotations"] == STAMPS
    *known, unknown = warnings
    forged = ["pool", "release", "submitter", "tenant"]
    assert [warning.split()[1] for warning in known] == [f"fairgate.io/{key}" for key in forged]
    assert unknown == "Fairgate: there is no annotation fairgate.io/no-such-key; remove it."


def test_keys_with_the_two_special_characters_of_paths_are_removed() -> None:
    pod, _ = held({"metadata": {"annotations": {"fairgate.io/a~b/c": "x"}}, "spec": {}})

    assert pod["metadata"]["annotations"] == STAMPS


def test_a_node_name_is_refused_because_it_passes_the_queue() -> None:
    verdict = decide_hold(asking(node_name="node-1"), TEAM, MANAGED)

    assert isinstance(verdict, DenyDecision)
    assert verdict.code == 403
    assert "nodeName" in verdict.message


@pytest.mark.parametrize(("pending", "refused"), [(4, False), (5, True), (6, True)])
def test_max_pending_refuses_pods_beyond_the_limit(pending: int, refused: bool) -> None:
    verdict = decide_hold(asking(), replace(TEAM, pending=pending, max_pending=5), MANAGED)

    assert isinstance(verdict, DenyDecision) is refused


@pytest.mark.parametrize("legal", ["alice", "", "a", "A.b_c-1", "x" * 63])
def test_valid_label_value_is_unchanged(legal: str) -> None:
    assert label_value(legal) == legal


@pytest.mark.parametrize("text", ["alice@example.com", "x" * 64, "-a", "a-", "ä", "a\n", "\ud800"])
def test_any_other_becomes_a_short_hash(text: str) -> None:
    assert label_value(label_value(text)) == label_value(text) != text
    assert len(label_value(text)) == 18


@pytest.mark.parametrize(
    ("key", "written", "told"),
    [
        ("max-runtime", "2h", False),
        ("max-runtime", "two hours", True),
        ("max-runtime", "0s", True),
        ("preemptible", "false", False),
        ("preemptible", "true", False),
        ("preemptible", "False", True),
    ],
)
def test_invalid_annotation_causes_a_warning_and_is_not_changed(
    key: str, written: str, told: bool
) -> None:
    annotations = {f"fairgate.io/{key}": written}
    pod, warnings = held({"metadata": {"annotations": annotations}, "spec": {}})

    assert pod["metadata"]["annotations"] == STAMPS | annotations
    assert len(warnings) == told
    assert all(f"fairgate.io/{key}: '{written}' is" in warning for warning in warnings)


def test_pools_are_named_by_a_comma_list() -> None:
    assert named_pools({"fairgate.io/pools": " h100,, a100 "}) == ("h100", "a100")
    assert named_pools({"other": "x"}) == ()


def stored(**metadata: Any) -> Json:
    pod, _ = held({"metadata": {"uid": "u-1", **metadata}, "spec": {}})
    return pod


def test_a_release_takes_the_gate_away_and_pins_the_pod() -> None:
    pod = apply(stored(), release_patch(ORDER))

    assert "schedulingGates" not in pod["spec"]
    assert pod["spec"]["nodeSelector"] == {"nvidia.com/gpu.product": "H100"}
    assert pod["metadata"]["labels"]["fairgate.io/pool"] == "h100"
    assert pod["metadata"]["annotations"]["fairgate.io/release"] == "7.42"


def test_release_keeps_the_node_selector_of_the_user() -> None:
    pod = stored()
    pod["spec"]["nodeSelector"] = {"zone": "a"}

    released = apply(pod, release_patch(replace(ORDER, has_selector=True)))

    assert released["spec"]["nodeSelector"] == {"zone": "a", "nvidia.com/gpu.product": "H100"}


def test_a_release_adds_the_tolerations_of_the_pool_to_those_of_the_pod() -> None:
    added = Toleration("dedicated", "Equal", "ml", "NoExecute", 60)
    written = {"key": "dedicated", "operator": "Equal", "value": "ml", "effect": "NoExecute"}
    order = replace(ORDER, tolerations=(added, Toleration("", "Exists")))
    both = [{**written, "tolerationSeconds": 60}, {"operator": "Exists"}]
    assert apply(stored(), release_patch(order))["spec"]["tolerations"] == both

    pod = stored()
    pod["spec"]["tolerations"] = [{"key": "own", "operator": "Exists"}]
    released = apply(pod, release_patch(replace(order, has_tolerations=True)))
    assert released["spec"]["tolerations"] == [{"key": "own", "operator": "Exists"}, *both]


@pytest.mark.parametrize("written", [None, "false", "true"])
def test_pod_released_as_preemptible_stays_evictable(written: str | None) -> None:
    """Its user may have changed the annotation after the decision."""
    pod = stored()
    if written is not None:
        pod["metadata"]["annotations"][ANNOTATION_PREEMPTIBLE] = written

    released = apply(pod, release_patch(ORDER))

    assert may_be_evicted(released["metadata"]["annotations"])


def test_pod_released_as_non_preemptible_cannot_be_evicted() -> None:
    pod = stored()
    pod["metadata"]["annotations"][ANNOTATION_PREEMPTIBLE] = "false"

    released = apply(pod, release_patch(replace(ORDER, preemptible=False)))

    assert not may_be_evicted(released["metadata"]["annotations"])


def test_a_pod_is_released_at_most_once() -> None:
    released = apply(stored(), release_patch(ORDER))

    with pytest.raises(PatchFailed):
        apply(released, release_patch(ORDER))


@pytest.mark.parametrize("annotations", [{"other": "x"}, None])
def test_an_annotation_that_was_taken_away_is_written_again(
    annotations: dict[str, str] | None,
) -> None:
    pod = stored()
    if annotations is None:
        del pod["metadata"]["annotations"]
    else:
        pod["metadata"]["annotations"] = annotations
    order = replace(ORDER, expected_annotation="", has_annotations=annotations is not None)

    stamped = apply(pod, restore_annotation_patch(order))

    assert stamped["metadata"]["annotations"] == {
        **(annotations or {}),
        "fairgate.io/release": "0@7.42.0",
    }
    apply(stamped, release_patch(replace(order, expected_annotation="0@7.42.0")))


def test_another_pod_of_that_name_is_not_released() -> None:
    pod = stored()
    pod["metadata"]["uid"] = "u-2"

    with pytest.raises(PatchFailed):
        apply(pod, release_patch(ORDER))


def test_a_pod_with_another_gate_is_not_released() -> None:
    pod = stored()
    pod["spec"]["schedulingGates"].append({"name": "example.com/other"})

    with pytest.raises(PatchFailed):
        apply(pod, release_patch(ORDER))


def test_old_leader_cannot_release_a_pod_that_a_new_leader_fenced() -> None:
    fenced = apply(stored(), fence_patch("u-1", "0", "0@8"))

    with pytest.raises(PatchFailed):
        apply(fenced, release_patch(ORDER))
    apply(fenced, release_patch(replace(ORDER, expected_annotation="0@8")))
