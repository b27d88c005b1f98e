"""Conversion of claims, device classes and slices to the values of the core."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.core import model
from app.core.errors import InvalidInput
from app.core.podspec.constraints import Taint, Toleration
from app.core.podspec.devices import (
    Attribute,
    CounterUse,
    DeviceId,
    NodeReach,
    ResourceSlice,
    ShareLimit,
)
from app.core.podspec.resource_claims import AllocatedDevice, DeviceAsk, DeviceClass, ResourceClaim
from app.k8s_types import device_objects
from app.kube import convert_devices

AT = model.Millis(7)


def read_claim(spec: dict[str, Any], owners: list[dict[str, Any]] | None = None) -> ResourceClaim:
    meta = {"name": "c", "namespace": "team-a", "ownerReferences": owners}
    document = msgspec.convert(
        {"metadata": meta, "spec": {"devices": {"requests": [spec]}}},
        device_objects.ResourceClaimObject,
    )
    return convert_devices.read_claim(document, AT).claim


@pytest.mark.parametrize(
    ("request_", "alternatives"),
    [
        ({"exactly": {"deviceClassName": "g"}}, (DeviceAsk("g", 1),)),
        (
            {"exactly": {"deviceClassName": "g", "allocationMode": "ExactCount", "count": 3}},
            (DeviceAsk("g", 3),),
        ),
        (
            {"exactly": {"deviceClassName": "g", "allocationMode": "All", "adminAccess": True}},
            (DeviceAsk("g", None, is_admin=True),),
        ),
        ({"exactly": {"deviceClassName": "g", "allocationMode": "New"}}, (DeviceAsk("g", None),)),
        (
            {
                "firstAvailable": [
                    {"name": "x", "deviceClassName": "g", "count": 2},
                    {"name": "y", "deviceClassName": "h"},
                ]
            },
            (DeviceAsk("g", 2), DeviceAsk("h", 1)),
        ),
    ],
    ids=["default", "exact", "all, as admin", "a mode of later servers", "first available"],
)
def test_requests_of_a_claim_are_read(
    request_: dict[str, Any], alternatives: tuple[DeviceAsk, ...]
) -> None:
    assert read_claim({"name": "r", **request_}) == ResourceClaim("team-a", "c", (alternatives,))


def test_device_request_of_an_unknown_kind_is_refused() -> None:
    with pytest.raises(InvalidInput, match="kind that is not known"):
        read_claim({"name": "r", "sometime": {}})


def test_claim_has_the_pod_or_group_that_controls_it() -> None:
    request = {"name": "r", "exactly": {"deviceClassName": "g"}}
    pod_owner = {"kind": "Pod", "uid": "u-1", "controller": True}
    assert read_claim(request, [pod_owner]).owner == "u-1"
    assert read_claim(request, [{**pod_owner, "controller": False}]).owner is None
    assert read_claim(request, [{"kind": "PodGroup", "uid": "g-1", "controller": True}]).is_of_group


def test_a_request_has_its_selectors_and_tolerations() -> None:
    wanted = {
        "deviceClassName": "g",
        "selectors": [{"cel": {"expression": "true"}}, {"later": {}}],
        "tolerations": [{"key": "sick", "operator": "Exists"}],
    }
    [[ask]] = read_claim({"name": "r", "exactly": wanted}).requests
    assert ask.selectors == ("true", "false")
    assert ask.tolerations == (Toleration("sick", "Exists"),)


def conditions(selector: str, selectors: int, tolerations: int) -> dict[str, Any]:
    """Return a request of 8 alternatives with so many selectors and tolerations each."""
    asks = [
        {
            "name": f"a{number}",
            "deviceClassName": "g",
            "count": number,
            "selectors": [{"cel": {"expression": selector}}] * selectors,
            "tolerations": [
                {"key": f"{i}{'k' * 100}", "value": "v" * 60} for i in range(tolerations)
            ],
        }
        for number in range(1, 9)
    ]
    return {"name": "r", "firstAvailable": asks}


@pytest.mark.parametrize(
    "request_",
    [
        conditions("device.driver == 'x'" + " " * 9_000, 1, 0),
        conditions("device.driver == '😀'" + " " * 3_000, 1, 0),  # 4 bytes a character
        conditions("true", 1, 16),
    ],
    ids=["selectors", "wide selectors", "tolerations"],
)
def test_a_claim_with_too_many_conditions_may_get_any_device(request_: dict[str, Any]) -> None:
    """Otherwise a user could fill the memory of every process: an object has up to 1.5 MB."""
    [asks] = read_claim(request_).requests
    assert [ask.count for ask in asks] == [*range(1, 9)]
    assert {ask.selectors for ask in asks} == {()}
    assert {ask.tolerations for ask in asks} == {(Toleration(operator="Exists"),)}


def test_claim_keeps_many_selectors_and_tolerations() -> None:
    selector = "device.attributes['gpu.example.com'].type == 'gpu'"
    [asks] = read_claim(conditions(selector, 8, 4)).requests
    assert {ask.selectors for ask in asks} == {(selector,) * 8}
    assert {len(ask.tolerations) for ask in asks} == {4}


def test_the_devices_of_a_claim_are_read_with_the_request_that_got_them() -> None:
    document = {
        "metadata": {"name": "c", "namespace": "n"},
        "spec": {
            "devices": {
                "requests": [
                    {"name": "r", "firstAvailable": [{"name": "x", "deviceClassName": "g"}]},
                    {"name": "s", "exactly": {"deviceClassName": "g"}},
                ]
            }
        },
        "status": {
            "allocation": {
                "devices": {
                    "results": [
                        {"request": "r/x", "driver": "d", "pool": "p", "device": "0"},
                        {
                            "request": "s", "driver": "d", "pool": "p", "device": "1",
                            "adminAccess": True, "consumedCapacity": {"memory": "1500m"},
                        },
                    ]
                }
            }
        },
    }  # fmt: skip
    claim = convert_devices.read_claim(
        msgspec.convert(document, device_objects.ResourceClaimObject), AT
    ).claim
    assert [[ask.name for ask in each] for each in claim.requests] == [["r/x"], ["s"]]
    assert claim.allocated_devices == (
        AllocatedDevice("r/x", DeviceId("d", "p", "0")),
        AllocatedDevice("s", DeviceId("d", "p", "1"), True, (("memory", 1500),)),
    )


@pytest.mark.parametrize(("owner", "extended"), [("Pod", True), ("Job", False)])
def test_claim_for_extended_resources_must_belong_to_a_pod(owner: str, extended: bool) -> None:
    meta = {
        "name": "c",
        "annotations": {convert_devices.EXTENDED: "true"},
        "ownerReferences": [{"kind": owner, "uid": "u", "controller": True}],
    }
    found = msgspec.convert({"metadata": meta}, device_objects.ResourceClaimObject)
    assert convert_devices.read_claim(found, AT).claim.is_of_extended_resources is extended


def test_a_device_class_may_name_a_resource() -> None:
    document = {
        "metadata": {"name": "g"},
        "spec": {
            "extendedResourceName": "nvidia.com/gpu",
            "selectors": [{"cel": {"expression": "device.driver == 'g'"}}],
        },
    }
    found = msgspec.convert(document, device_objects.DeviceClassObject)
    assert convert_devices.read_class(found, AT).device_class == DeviceClass(
        "g", model.Resource("nvidia.com/gpu"), ("device.driver == 'g'",)
    )


def read_slice(**spec: Any) -> ResourceSlice:
    written = {"metadata": {"name": "s"}, "spec": {"driver": "gpu.example.com", **spec}}
    found = msgspec.convert(written, device_objects.ResourceSliceObject)
    return convert_devices.read_slice(found, AT).resource_slice


def test_a_slice_is_read_with_its_pool_and_devices() -> None:
    published = read_slice(
        nodeName="n1",
        pool={"name": "p", "generation": 3, "resourceSliceCount": 2},
        devices=[
            {
                "name": "gpu-0",
                "attributes": {
                    "type": {"string": "gpu"},
                    "other.example.com/index": {"int": 1},
                    "modes": {"strings": ["a", "b"]},
                },
                "capacity": {"memory": {"value": "80Gi"}},
                "consumesCounters": [{"counterSet": "gpu-0", "counters": {"m": {"value": "1Ki"}}}],
                "taints": [
                    {"key": "sick", "effect": "NoExecute"},
                    {"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"},
                    {"key": "look", "effect": "None"},
                ],
                "allowMultipleAllocations": True,
            }
        ],
        sharedCounters=[{"name": "gpu-0", "counters": {"m": {"value": "2Ki"}}}],
    )
    assert (published.key, published.generation, published.count) == (
        ("gpu.example.com", "p"),
        3,
        2,
    )
    assert published.reach == NodeReach(model.NodeName("n1"))
    assert published.counters == (CounterUse("gpu-0", "m", 2048),)
    [device] = published.devices
    assert device.facts == (
        Attribute("gpu.example.com", "modes", "strings", ("a", "b")),
        Attribute("other.example.com", "index", "int", 1),
        Attribute("gpu.example.com", "type", "string", "gpu"),
        Attribute("gpu.example.com", "memory", "quantity", "80Gi"),
    )
    assert device.taints == (
        Taint("node.kubernetes.io/unreachable", "", "NoSchedule"),
        Taint("sick", "", "NoExecute"),
    )
    assert device.uses == (CounterUse("gpu-0", "m", 1024),)
    assert device.is_shared


def test_attributes_of_value_one_and_true_are_different() -> None:
    one, true = read_slice(
        devices=[
            {"name": "a", "attributes": {"x": {"int": 1}}},
            {"name": "b", "attributes": {"x": {"bool": True}}},
        ]
    ).devices
    assert [fact.value for fact in one.facts] == [1]
    assert [fact.value for fact in true.facts] == [True]
    assert type(one.facts[0].value) is int


def test_nodes_are_chosen_by_the_slice_or_by_each_device() -> None:
    selector = {
        "nodeSelectorTerms": [
            {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["r1"]}]}
        ]
    }
    by_label = read_slice(nodeSelector=selector).reach
    assert by_label.matches(model.NodeName("n"), {"rack": "r1"})
    assert not by_label.matches(model.NodeName("n"), {"rack": "r2"})
    assert read_slice(allNodes=True).reach.matches(model.NodeName("n"), {})
    assert not read_slice().reach.matches(model.NodeName("n"), {})
    each = read_slice(perDeviceNodeSelection=True, devices=[{"name": "a", "nodeName": "n"}])
    assert each.devices[0].reach == NodeReach(model.NodeName("n"))
    assert read_slice(nodeName="n", devices=[{"name": "a"}]).devices[0].reach is None


def test_a_request_names_its_amounts_of_a_shared_device() -> None:
    amounts = {"requests": {"memory": "2", "cores": "10m", "odd": "x"}}
    [[ask]] = read_claim(
        {"name": "r", "exactly": {"deviceClassName": "g", "capacity": amounts}}
    ).requests
    assert ask.shares == (("cores", 10), ("memory", 2000))


@pytest.mark.parametrize("shared", [True, False])
def test_a_shared_device_has_limits_of_its_capacities(shared: bool) -> None:
    capacity = {
        "memory": {"value": "8"},
        "cores": {"value": "100", "requestPolicy": {"default": "5", "validRange": {"min": "1"}}},
    }
    only = {"name": "0", "capacity": capacity, "allowMultipleAllocations": shared}
    [device] = read_slice(devices=[only]).devices
    limits = (ShareLimit("cores", 100_000, 5000), ShareLimit("memory", 8000, 8000))
    assert device.limits == (limits if shared else ())
