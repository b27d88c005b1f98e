"""Objects of the API server as the core hears of them."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import msgspec
import pytest

from app import wire
from app.core import events, model
from app.core.errors import InvalidInput
from app.core.resources import ManagedResources
from app.kube import convert

AT = model.Millis(7)
PODS = convert.Pods(ManagedResources(["nvidia.com/gpu"]), frozenset({"kube-system"}))
ONE_GPU = {"limits": {"nvidia.com/gpu": "1"}}
CPU_ONLY = {"requests": {"cpu": "500m"}}


def pod(
    resources: dict[str, Any], *, namespace: str = "team-a", phase: str = "Pending", **spec: Any
) -> wire.Pod:
    document = {
        "metadata": {"name": "p", "namespace": namespace, "uid": "u-1"},
        "spec": {"containers": [{"resources": resources}], **spec},
        "status": {"phase": phase},
    }
    return msgspec.convert(document, wire.Pod)


def managed(document: wire.Pod) -> model.Pod:
    event = PODS.read(document, AT)
    assert isinstance(event, events.PodObserved)
    return event.pod


def test_managed_pod_is_read_whole() -> None:
    document = msgspec.convert(
        {
            "metadata": {
                "name": "train",
                "namespace": "team-a",
                "uid": "u-9",
                "creationTimestamp": "2026-01-02T03:04:05Z",
                "deletionTimestamp": "2026-01-02T04:04:05Z",
                "labels": {model.LABEL_POOL: "h100"},
                "annotations": {
                    model.ANNOTATION_SUBMITTER: "alice@example.com",
                    model.ANNOTATION_RELEASE: "7.3",
                    model.ANNOTATION_POOLS: "h100, a100",
                },
            },
            "spec": {
                "containers": [{"resources": ONE_GPU}],
                "schedulingGates": [{"name": model.GATE}, {"name": "other"}],
                "nodeSelector": {"zone": "a"},
                "nodeName": "n1",
                "priority": 5,
            },
            "status": {"phase": "Running"},
        },
        wire.Pod,
    )
    assert managed(document) == model.Pod(
        uid=model.Uid("u-9"),
        namespace="team-a",
        name="train",
        user=model.UserName("alice@example.com"),
        priority=5,
        since=model.Millis(1767323045000),
        demand={model.Resource("nvidia.com/gpu"): 1, model.Resource("pods"): 1},
        gates=(model.GATE, "other"),
        release="7.3",
        node=model.NodeName("n1"),
        pool=model.PoolName("h100"),
        selector={"zone": "a"},
        pools=(model.PoolName("h100"), model.PoolName("a100")),
        phase=model.Phase.RUNNING,
        terminating=True,
        has_labels=True,
        has_annotations=True,
    )


def test_pod_without_maps_says_so() -> None:
    plain = managed(pod(ONE_GPU))
    assert (plain.has_labels, plain.has_annotations, plain.selector) == (False, False, {})
    assert (plain.user, plain.release, plain.gates) == (model.UNKNOWN_USER, "", ())


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
def test_other_pods_matter_only_for_their_room(document: wire.Pod, concerns_us: bool) -> None:
    event = PODS.read(document, AT)
    assert isinstance(event, events.BystanderObserved) is concerns_us
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
    node = convert.read_node(msgspec.convert(document, wire.Node), AT).node
    assert node == model.Node(
        model.NodeName("n1"), {"zone": "a"}, {"cpu": 2000, "memory": 1024}, ready
    )


def test_tenant() -> None:
    document = {
        "metadata": {
            "name": "team-a",
            "creationTimestamp": "1970-01-01T00:00:01Z",
            "generation": 4,
        },
        "spec": {
            "parent": "research",
            "weight": "2.5",
            "namespaces": ["a", "b"],
            "users": [{"name": "alice", "weight": "3"}, {"name": "bob"}],
            "pools": ["h100"],
            "maxPending": 9,
            "paused": True,
        },
        "status": {"pending": 12},
    }
    event = convert.read_tenant(msgspec.convert(document, wire.Tenant), AT)
    assert event.pending == 12
    assert event.tenant == model.Tenant(
        name=model.TenantName("team-a"),
        created=model.Millis(1000),
        weight=Fraction(5, 2),
        parent=model.TenantName("research"),
        namespaces=("a", "b"),
        user_weights={model.UserName("alice"): Fraction(3), model.UserName("bob"): Fraction(1)},
        pools=(model.PoolName("h100"),),
        max_pending=9,
        paused=True,
        generation=4,
    )


def test_pool() -> None:
    document = {
        "metadata": {"name": "h100", "generation": 2},
        "spec": {
            "nodeSelector": {"gpu": "h100"},
            "weights": {"nvidia.com/gpu": "4"},
            "overcommit": {"cpu": "1.2"},
        },
    }
    pool = convert.read_pool(msgspec.convert(document, wire.Pool), AT).pool
    assert pool == model.Pool(
        name=model.PoolName("h100"),
        selector={"gpu": "h100"},
        weights={model.Resource("nvidia.com/gpu"): Fraction(4)},
        overcommit={model.Resource("cpu"): Fraction(6, 5)},
        generation=2,
    )


@pytest.mark.parametrize("weight", ["", "-1", "1e9", "1/3", "nan", "two", "1" * 40])
def test_weight_that_is_no_decimal_is_refused(weight: str) -> None:
    document = {"metadata": {"name": "t"}, "spec": {"weight": weight}}
    with pytest.raises(InvalidInput, match="weight"):
        convert.read_tenant(msgspec.convert(document, wire.Tenant), AT)
