"""Conversion of API objects to the values of the core."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.core import events, model, well_known
from app.core.errors import InvalidInput
from app.core.memory_size import size_of
from app.core.podspec.annotations import annotation_warnings, named_gang
from app.core.quantities import ManagedResources
from app.k8s_types import objects
from app.kube import convert
from app.kube.interning import MAX_VALUE_BYTES, MOST_BYTES, InterningPool

AT = model.Millis(7)
PODS = convert.Pods(ManagedResources(["nvidia.com/gpu"]), frozenset({"kube-system"}))
ONE_GPU = {"limits": {"nvidia.com/gpu": "1"}}
CPU_ONLY = {"requests": {"cpu": "500m"}}


def pod(
    resources: dict[str, Any],
    *,
    namespace: str = "team-a",
    phase: str = "Pending",
    uid: str = "u-1",
    annotations: dict[str, str] | None = None,
    **spec: Any,
) -> objects.PodObject:
    about = {"annotations": annotations} if annotations else {}
    document = {
        "metadata": {"name": "p", "namespace": namespace, "uid": uid, **about},
        "spec": {"containers": [{"resources": resources}], **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(document, objects.PodObject)


def managed(document: objects.PodObject) -> model.Pod:
    event = PODS.read(document, AT)
    assert isinstance(event, events.PodObserved)
    return event.pod


def test_mirror_pod_is_recognized_by_its_annotation() -> None:
    assert managed(pod(ONE_GPU, annotations={well_known.ANNOTATION_MIRROR: "x"})).mirror
    assert not managed(pod(ONE_GPU)).mirror


def test_managed_pod_is_read_whole() -> None:
    document = msgspec.convert(
        {
            "metadata": {
                "name": "train",
                "namespace": "team-a",
                "uid": "u-9",
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "deletionTimestamp": "2026-01-02T04:04:05Z",
                "labels": {well_known.LABEL_POOL: "h100"},
                "annotations": {
                    well_known.ANNOTATION_SUBMITTER: "alice@example.com",
                    well_known.ANNOTATION_RELEASE: "7.3",
                    well_known.ANNOTATION_POOLS: "h100, a100",
                    well_known.ANNOTATION_MAX_RUNTIME: "1h30m",
                    well_known.ANNOTATION_PREEMPTIBLE: "false",
                },
            },
            "spec": {
                "containers": [{"resources": ONE_GPU}],
                "schedulingGates": [{"name": well_known.GATE}, {"name": "other"}],
                "nodeSelector": {"zone": "a"},
                "nodeName": "n1",
                "priority": 5,
            },
            "status": {
                "phase": "Running",
                "startTime": "2026-01-02T03:05:05Z",
                "qosClass": "Guaranteed",
            },
        },
        objects.PodObject,
    )
    assert managed(document) == model.Pod(
        uid=model.Uid("u-9"),
        namespace="team-a",
        name="train",
        user=model.UserName("alice@example.com"),
        priority=5,
        created_at=model.Millis(1767323045000),
        demand={model.Resource("nvidia.com/gpu"): 1, model.Resource("pods"): 1},
        gates=(well_known.GATE, "other"),
        release_annotation="7.3",
        node=model.NodeName("n1"),
        pool=model.PoolName("h100"),
        selector={"zone": "a"},
        pools=(model.PoolName("h100"), model.PoolName("a100")),
        phase=model.Phase.RUNNING,
        terminating=True,
        has_labels=True,
        has_annotations=True,
        started_at=model.Millis(1767323105000),
        max_runtime=model.Millis(5_400_000),
        preemptible=False,
        labels={well_known.LABEL_POOL: "h100"},
        grace_ends=model.Millis(1767326645000),
        qos_class=model.QosClass.GUARANTEED,
    )


@pytest.mark.parametrize(
    ("owners", "labels", "owner"),
    [
        ([], {}, ""),
        ([{"kind": "Job", "name": "train", "controller": True}], {}, "train"),
        ([{"kind": "Job", "name": "train"}], {}, ""),
        (
            [{"kind": "ReplicaSet", "name": "web-5f6d", "controller": True}],
            {"pod-template-hash": "5f6d"},
            "web",
        ),
        ([{"kind": "ReplicaSet", "name": "web-5f6d", "controller": True}], {}, "web-5f6d"),
        (
            [{"kind": "Job", "name": "web-5f6d", "controller": True}],
            {"pod-template-hash": "5f6d"},
            "web-5f6d",
        ),
    ],
)
def test_a_pods_owner_is_its_controller_and_of_a_replica_set_the_deployment(
    owners: list[dict[str, object]], labels: dict[str, str], owner: str
) -> None:
    document = {
        "metadata": {"ownerReferences": owners, "labels": labels},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }
    assert managed(msgspec.convert(document, objects.PodObject)).owner == owner


def test_missing_labels_and_annotations_of_a_pod_are_recorded() -> None:
    plain = managed(pod(ONE_GPU))
    assert (plain.has_labels, plain.has_annotations, plain.selector) == (False, False, {})
    assert (plain.user, plain.release_annotation, plain.gates) == (model.UNKNOWN_USER, "", ())


@pytest.mark.parametrize(
    ("written", "phase"),
    [
        ("Pending", model.Phase.PENDING),
        ("", model.Phase.PENDING),
        ("Running", model.Phase.RUNNING),
        ("Unknown", model.Phase.RUNNING),
        ("Succeeded", model.Phase.FINISHED),
        ("Failed", model.Phase.FINISHED),
    ],
)
def test_phase(written: str, phase: model.Phase) -> None:
    assert managed(pod(ONE_GPU, phase=written)).phase is phase


@pytest.mark.parametrize(
    ("document", "concerns_us"),
    [
        (pod(CPU_ONLY, nodeName="n1"), True),
        (pod(CPU_ONLY), False),
        (pod(CPU_ONLY, nodeName="n1", phase="Succeeded"), False),
        (pod(ONE_GPU, namespace="kube-system", nodeName="n1"), True),
        (pod(ONE_GPU, namespace="kube-system"), False),
        (pod({"limits": {"nvidia.com/gpu": "0"}}), False),
    ],
    ids=["bound", "unbound", "finished", "exempt bound", "exempt unbound", "asks for 0"],
)
def test_other_pods_are_observed_only_if_they_use_capacity(
    document: objects.PodObject, concerns_us: bool
) -> None:
    event = PODS.read(document, AT)
    assert isinstance(event, events.UnmanagedPodObserved) is concerns_us
    assert not isinstance(event, events.PodObserved)


def test_pod_with_garbage_is_refused() -> None:
    with pytest.raises(InvalidInput, match="quantity"):
        PODS.read(pod({"limits": {"nvidia.com/gpu": "many"}}), AT)


@pytest.mark.parametrize(
    ("conditions", "cordoned", "ready"),
    [
        ([{"type": "Ready", "status": "True"}], False, True),
        ([{"type": "Ready", "status": "True"}], True, False),
        ([{"type": "Ready", "status": "Unknown"}], False, False),
        ([{"type": "DiskPressure", "status": "True"}], False, False),
        (None, False, False),
    ],
)
def test_node_is_ready_when_it_can_take_pods(
    conditions: list[dict[str, str]] | None, cordoned: bool, ready: bool
) -> None:
    document = {
        "metadata": {"name": "n1", "labels": {"zone": "a"}},
        "spec": {"unschedulable": cordoned},
        "status": {"allocatable": {"cpu": "2", "memory": "1Ki"}, "conditions": conditions},
    }
    node = convert.read_node(msgspec.convert(document, objects.NodeObject), AT).node
    amounts = {"cpu": 2000, "memory": 1024}
    assert node == model.Node(
        model.NodeName("n1"), {"zone": "a"}, amounts, ready, cordoned=cordoned
    )


HOUR = model.Millis(3_600_000)


@pytest.mark.parametrize(
    ("declared", "deadline", "longest"),
    [
        (None, None, None),
        ("1h", None, HOUR),
        (None, 3600, HOUR),
        ("1h", 7200, HOUR),
        ("2h", 3600, HOUR),
        ("an hour", None, None),
        ("0s", None, None),
        ("", 3600, HOUR),
    ],
)
def test_a_pod_runs_at_most_as_long_as_declared_and_as_its_deadline_allows(
    declared: str | None, deadline: int | None, longest: model.Millis | None
) -> None:
    annotations = {} if declared is None else {well_known.ANNOTATION_MAX_RUNTIME: declared}
    document = pod(ONE_GPU, annotations=annotations, activeDeadlineSeconds=deadline)
    assert managed(document).max_runtime == longest


@pytest.mark.parametrize("written", ["true", "False", "no", ""])
def test_only_the_word_false_protects_from_eviction(written: str) -> None:
    annotations = {well_known.ANNOTATION_PREEMPTIBLE: written}
    assert managed(pod(ONE_GPU, annotations=annotations)).preemptible


def test_equal_values_of_pods_are_stored_once() -> None:
    def another(uid: str) -> model.Pod:
        annotations = {
            well_known.ANNOTATION_SUBMITTER: "alice" + uid[:0],
            well_known.ANNOTATION_RELEASE: "0" + uid[:0],
            well_known.ANNOTATION_POOLS: "h100",
        }
        spec = {"schedulingGates": [{"name": well_known.GATE}], "nodeSelector": {"zone": "a"}}
        return managed(pod(ONE_GPU, uid=uid, annotations=annotations, **spec))

    one, other = another("u-1"), another("u-2")
    for each in (
        "namespace",
        "user",
        "created_at",
        "demand",
        "gates",
        "release_annotation",
        "selector",
        "pools",
    ):
        assert getattr(one, each) is getattr(other, each), each
    assert one.uid != other.uid


def test_interning_keeps_values_distinct_and_is_bounded() -> None:
    shared = InterningPool()
    assert [shared.intern(0), shared.intern(False), shared.intern(0.0)] == [0, False, 0.0]
    assert [type(shared.intern(each)) for each in (0, False)] == [int, bool]
    mapping = {"a": "1"}
    assert shared.intern_mapping(mapping) is mapping
    assert shared.intern_mapping({"a": "1"}) is mapping
    for number in range(MOST_BYTES // MAX_VALUE_BYTES * 3):
        shared.intern(str(number).ljust(MAX_VALUE_BYTES // 3))
    assert shared.intern_mapping({"a": "1"}) is not mapping


def test_absent_values_do_not_fill_the_cache_of_shared_values() -> None:
    shared, value = InterningPool(), ("a", "b")
    assert shared.intern(value) is value
    for _ in range(MOST_BYTES // size_of(None)):
        assert shared.intern(None) is None
    assert shared.intern(tuple("ab")) is value


def affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def on(*names: str) -> dict[str, Any]:
    """A term as the DaemonSet controller writes it."""
    key = "metadata.name"
    return {"matchFields": [{"key": key, "operator": "In", "values": [each]} for each in names]}


GPU_KIND = {"matchExpressions": [{"key": "gpu", "operator": "Exists"}]}


@pytest.mark.parametrize(
    ("terms", "only"),
    [
        ([on("n1")], ("n1",)),
        ([on("n1") | GPU_KIND, on("n1")], ("n1",)),
        ([on("n2"), on("n1")], ("n1", "n2")),
        ([on("n1"), GPU_KIND], None),
        ([GPU_KIND], None),
        ([on("n1"), {}], ("n1",)),
        ([on("n1", "n2")], ()),
        (
            [{"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["n1"]}]}],
            None,
        ),
    ],
    ids=["daemon", "daemon with labels", "two", "or a label", "label", "empty term", "none", "not"],
)
def test_required_affinity_to_named_nodes_is_read(
    terms: list[dict[str, Any]], only: model.NodeSet
) -> None:
    assert managed(pod(ONE_GPU, affinity=affinity(*terms))).node_names == only


def test_preferred_affinity_does_not_limit_the_nodes() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"preference": on("n1")}]}
    assert managed(pod(ONE_GPU, affinity={"nodeAffinity": preferred})).node_names is None
    assert managed(pod(ONE_GPU, affinity={"podAffinity": {}})).node_names is None
    assert managed(pod(ONE_GPU)).node_names is None


# --- resource claims ---


def claiming(
    *claims: dict[str, str], made: list[dict[str, str]] | None = None, **spec: Any
) -> objects.PodObject:
    document = {
        "metadata": {"name": "p", "namespace": "team-a", "uid": "u-1"},
        "spec": {"containers": [{}], "resourceClaims": list(claims), **spec},
        "status": {"phase": "Pending", "resourceClaimStatuses": made},
    }
    return msgspec.convert(document, objects.PodObject)


NAMED = {"name": "a", "resourceClaimName": "shared"}
MADE = {"name": "b", "resourceClaimTemplateName": "two"}


def test_claims_are_parsed_by_name_and_generated_ones_by_the_pod_status() -> None:
    found = [{"name": "b", "resourceClaimName": "p-b-x7"}]
    one = managed(claiming(NAMED, MADE, made=found))
    assert one.claims == (
        model.ClaimRef("a", "shared"),
        model.ClaimRef("b", "p-b-x7", generated=True),
    )
    assert one.container_requests == {model.Resource("pods"): 1}


def test_ungenerated_claim_has_no_name_and_unneeded_claim_is_omitted() -> None:
    assert managed(claiming(MADE)).claims == (model.ClaimRef("b", "", generated=True),)
    assert managed(claiming(MADE, made=[{"name": "b"}])).claims == ()


def test_pod_that_requests_a_device_class_by_name_is_managed() -> None:
    by_name = "deviceclass.resource.kubernetes.io/gpu.nvidia.com"
    one = managed(pod({"limits": {by_name: "2"}}))
    assert one.container_requests == {by_name: 2, "pods": 1}


def test_pod_without_claims_stores_no_container_requests() -> None:
    assert managed(pod(ONE_GPU)).container_requests is None


def test_pods_with_claims_in_exempt_namespaces_do_not_concern_us() -> None:
    document = msgspec.convert(
        {
            "metadata": {"name": "p", "namespace": "kube-system", "uid": "u-1"},
            "spec": {"resourceClaims": [NAMED]},
        },
        objects.PodObject,
    )
    assert PODS.read(document, AT) is None


@pytest.mark.parametrize(
    ("annotations", "gang"),
    [
        ({"fairgate.io/gang": "train", "fairgate.io/gang-size": "4"}, ("train", 4)),
        ({"fairgate.io/gang": " train ", "fairgate.io/gang-size": " 10000 "}, ("train", 10_000)),
        ({"fairgate.io/gang": "train", "fairgate.io/gang-size": "1"}, ("", 1)),
        ({"fairgate.io/gang": "train"}, ("", 1)),
        ({"fairgate.io/gang-size": "4"}, ("", 1)),
        ({"fairgate.io/gang": "", "fairgate.io/gang-size": "4"}, ("", 1)),
        ({"fairgate.io/gang": "job", "fairgate.io/gang-size": "4"}, ("", 1)),
        *(
            ({"fairgate.io/gang": "train", "fairgate.io/gang-size": size}, ("", 1))
            for size in ("0", "-4", "4.0", "four", "10001", "9" * 5000, "\uff14", "")
        ),
    ],
)
def test_gang_is_parsed_only_with_a_valid_size(
    annotations: dict[str, str], gang: tuple[str, int]
) -> None:
    assert named_gang(annotations) == gang
    warned = any("waits alone" in each for each in annotation_warnings(annotations))
    size, named = annotations.get("fairgate.io/gang-size"), annotations.get("fairgate.io/gang")
    assert warned == (gang == ("", 1) and named == "train" and size != "1")


def test_gang_of_a_pod_is_parsed_from_its_annotations() -> None:
    document = pod(ONE_GPU, annotations={"fairgate.io/gang": "train", "fairgate.io/gang-size": "4"})
    read = managed(document)
    assert (read.gang, read.gang_size) == ("train", 4)


@pytest.mark.parametrize(
    ("annotations", "needed"),
    [
        ({"fairgate.io/gpu-memory": "40Gi"}, 40 * 2**30),
        ({"fairgate.io/model-size": "7B"}, 13 * 2**30),
        ({"fairgate.io/gpu-memory": "much"}, 0),
        ({}, 0),
    ],
)
def test_pod_needs_the_memory_that_its_annotation_states(
    annotations: dict[str, str], needed: int
) -> None:
    assert managed(pod(ONE_GPU, annotations=annotations)).gpu_memory == needed


def resizing(generation: int, *, infeasible_at: int = 0) -> dict[model.Resource, int]:
    """Return the charge of a pod that grows from 2 to 8 cpus, if the node granted 4."""
    document = resizing_pod(generation, infeasible_at, is_refused=infeasible_at > 0)
    return dict(managed(msgspec.convert(document, objects.PodObject)).demand)


def resizing_pod(generation: int, infeasible_at: int, is_refused: bool) -> dict[str, object]:
    condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    conditions = [{**condition, "observedGeneration": infeasible_at}] if is_refused else []
    status = {
        "name": "main",
        "allocatedResources": {"cpu": "4"},
        "resources": {"requests": {"cpu": "2", "nvidia.com/gpu": "1"}},
    }
    resources = {"requests": {"cpu": "8"}, "limits": {"nvidia.com/gpu": "1"}}
    return {
        "metadata": {"name": "p", "namespace": "team-a", "uid": "u", "generation": generation},
        "spec": {"nodeName": "n", "containers": [{"name": "main", "resources": resources}]},
        "status": {"phase": "Running", "containerStatuses": [status], "conditions": conditions},
    }


def test_a_resize_is_charged_unless_the_node_refused_this_very_spec() -> None:
    assert resizing(3)[model.Resource("cpu")] == 8000
    assert resizing(3, infeasible_at=3)[model.Resource("cpu")] == 4000
    assert resizing(4, infeasible_at=3)[model.Resource("cpu")] == 8000
    assert resizing(3)[model.Resource("nvidia.com/gpu")] == 1


def test_a_refused_resize_says_nothing_about_a_new_spec() -> None:
    """Kubelets before Kubernetes 1.34 do not say which spec they refused."""
    found = msgspec.convert(resizing_pod(3, infeasible_at=0, is_refused=True), objects.PodObject)
    assert found.demand()[model.Resource("cpu")] == 4000
    assert found.demand_of_new_spec()[model.Resource("cpu")] == 8000


def test_the_terms_of_a_reclaim_are_read() -> None:
    written = {
        "fairgate.io/reclaim-notice": "2m",
        "fairgate.io/checkpoint-interval": "10m",
        "fairgate.io/reclaim-at": "1970-01-01T00:01:00Z",
    }
    responders = [{"name": "example.com/saver"}]

    found = managed(pod(ONE_GPU, annotations=written, evictionResponders=responders)).reclaim_terms
    group = {"podGroupName": "g"}
    native = pod(ONE_GPU, annotations=written, evictionResponders=responders, schedulingGroup=group)

    ends = model.Millis(60_000)
    assert found == model.ReclaimTerms(
        model.Millis(120_000), model.Millis(600_000), ends, has_responders=True
    )
    assert not managed(native).reclaim_terms.has_responders
    assert managed(pod(ONE_GPU)).reclaim_terms is model.NO_TERMS


@pytest.mark.parametrize("text", ["soon", "0001-01-01T00:00:00", "9" * 5000])
def test_a_notice_that_a_user_wrote_before_fairgate_came_does_not_hide_the_pod(text: str) -> None:
    written = {"fairgate.io/reclaim-notice": "2m", "fairgate.io/reclaim-at": text}
    assert managed(pod(ONE_GPU, annotations=written)).reclaim_terms.notice_ends_at is None


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("1970-01-01T00:00:00.001999Z", 1),
        ("2026-01-02T03:04:05+01:00", 1_767_319_445_000),
        ("9999-12-31T23:59:59.999999Z", 253_402_300_799_999),
    ],
)
def test_a_time_is_read_without_rounding_it_up(written: str, read: int) -> None:
    assert convert.read_time("time", written) == read


@pytest.mark.parametrize(
    "written", ["", "soon", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-23:59"]
)
def test_a_time_outside_the_calendar_is_invalid(written: str) -> None:
    with pytest.raises(InvalidInput, match=r"time .* is not a time"):
        convert.read_time("time", written)


@pytest.mark.parametrize(
    ("version", "kind", "owned"),
    [
        ("v1", "ReplicationController", True),
        ("apps/v1", "ReplicaSet", True),
        ("ray.io/v1", "RayCluster", True),
        ("v1", "ConfigMap", False),
        ("v1", "Pod", False),
    ],
)
def test_objects_that_create_no_pods_own_none(version: str, kind: str, owned: bool) -> None:
    owner = {"apiVersion": version, "kind": kind, "name": "x", "controller": True}
    document = {
        "metadata": {"ownerReferences": [owner]},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }
    assert managed(msgspec.convert(document, objects.PodObject)).is_owned is owned
