"""Converts claims, device classes and slices of `resource.k8s.io` to events.

A reader raises InvalidInput for an invalid object. The only state is a cache of repeated values.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace

from app.core import events, model
from app.core.errors import InvalidInput
from app.core.memory_size import size_of
from app.core.podspec import devices, resource_claims
from app.core.podspec.constraints import EXCLUDING_EFFECTS, Taint, Toleration
from app.core.quantities import CPU, parse_amount
from app.k8s_types import device_objects as objects
from app.k8s_types.scheduling import NodeTerms, TaintSpec
from app.kube.convert_constraints import read_node_terms, read_tolerations
from app.kube.interning import InterningPool, name

EXTENDED = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of a claim that kube-scheduler made for extended resources of a pod (KEP-5004). The
policy `fairgate-claims` lets only Kubernetes write it."""

COUNTER = "counter"
"""Counters are whole numbers or bytes, rounded up."""

THOUSANDTHS = CPU
"""Amounts of a shared device may be fractions, as those of cpu."""

LARGEST_CONDITIONS = 64 * 1024
"""Limit of the size of the selectors, tolerations and shares of a claim in bytes. Users write them,
and each process stores them. A claim with larger ones may get any device."""

TOLERATE_ALL = (Toleration(operator="Exists"),)

KINDS = ("int", "bool", "string", "version")

_shared = InterningPool()


def read_claim(claim: objects.ResourceClaimObject, at: model.Millis) -> events.ClaimObserved:
    """Return the event for a claim. Raises InvalidInput for requests of an unknown type."""
    meta = claim.metadata
    owners = [each for each in meta.owner_references or () if each.controller]
    pods = [each.uid for each in owners if each.kind == "Pod"]
    allocation = claim.status.allocation
    requests = tuple(_alternatives(each) for each in claim.spec.devices.requests or ())
    return events.ClaimObserved(
        at,
        resource_claims.ResourceClaim(
            meta.namespace,
            meta.name,
            requests if _size(requests) <= LARGEST_CONDITIONS else _without_conditions(requests),
            model.Uid(pods[0]) if pods else None,
            any(each.kind == "PodGroup" for each in owners),
            uid=model.Uid(meta.uid),
            terminating=meta.deletion_timestamp is not None,
            is_of_extended_resources=bool(pods) and EXTENDED in (meta.annotations or {}),
            allocated_devices=None if allocation is None else _allocated_devices(allocation),
            has_finalizer=resource_claims.FINALIZER in (meta.finalizers or ()),
            resource_version=meta.resource_version,
        ),
    )


def _allocated_devices(
    allocation: objects.AllocationResult,
) -> tuple[resource_claims.AllocatedDevice, ...]:
    return tuple(
        resource_claims.AllocatedDevice(
            name(each.request),
            devices.DeviceId(name(each.driver), name(each.pool), name(each.device)),
            each.admin_access,
            _shares(each.consumed_capacity),
        )
        for each in allocation.devices.results or ()
    )


def _alternatives(request: objects.DeviceRequest) -> resource_claims.Alternatives:
    asks = [request.exactly] if request.exactly else request.first_available
    if not asks:
        raise InvalidInput(f"request {request.name[:80]!r} is of a kind that is not known.")
    return tuple(
        resource_claims.DeviceAsk(
            name(ask.device_class_name),
            # An unknown mode may count as any amount.
            max(0, ask.count) if ask.allocation_mode in ("", "ExactCount") else None,
            name(request.name if request.exactly else f"{request.name}/{ask.name}"),
            _expressions(ask.selectors),
            read_tolerations(ask.tolerations),
            ask.admin_access,
            _shares(ask.capacity.requests if ask.capacity is not None else None),
        )
        for ask in asks
    )


def _size(requests: Iterable[resource_claims.Alternatives]) -> int:
    """Return the approximate size in bytes of the conditions of a claim."""
    asks = [ask for alternatives in requests for ask in alternatives]
    parts = [part for ask in asks for part in (ask.selectors, ask.tolerations, ask.shares)]
    return sum(size_of(part) for part in parts if part)


def _without_conditions(
    requests: Iterable[resource_claims.Alternatives],
) -> tuple[resource_claims.Alternatives, ...]:
    """Return requests that any device matches."""
    return tuple(
        tuple(
            replace(ask, selectors=(), tolerations=TOLERATE_ALL, shares=()) for ask in alternatives
        )
        for alternatives in requests
    )


def _shares(amounts: Mapping[str, str | int | float] | None) -> resource_claims.Shares:
    """Return amounts of a shared device in thousandths. An invalid amount counts as absent."""
    found = []
    for key, written in sorted((amounts or {}).items()):
        with suppress(InvalidInput):
            found.append((name(key), parse_amount(THOUSANDTHS, written)))
    return tuple(found)


def _expressions(selectors: Iterable[objects.DeviceSelector] | None) -> tuple[str, ...]:
    """Return the expressions of selectors. A selector of an unknown kind matches no device."""
    return _shared.intern(
        tuple([each.cel.expression if each.cel else "false" for each in selectors or ()])
    )


def read_class(device_class: objects.DeviceClassObject, at: model.Millis) -> events.ClassObserved:
    """Return the event for a DeviceClass."""
    stated = device_class.spec.extended_resource_name
    return events.ClassObserved(
        at,
        resource_claims.DeviceClass(
            device_class.metadata.name,
            model.Resource(stated) if stated else None,
            _expressions(device_class.spec.selectors),
        ),
    )


def read_slice(found: objects.ResourceSliceObject, at: model.Millis) -> events.SliceObserved:
    """Return the event for a ResourceSlice."""
    spec = found.spec
    reach = _node_reach(spec.node_name, spec.node_selector, every=spec.all_nodes)
    return events.SliceObserved(
        at,
        devices.ResourceSlice(
            found.metadata.name,
            name(spec.driver),
            name(spec.pool.name),
            spec.pool.generation,
            spec.pool.resource_slice_count,
            reach,
            tuple(
                _device(each, spec.driver, own_reach=spec.per_device_node_selection)
                for each in spec.devices or ()
            ),
            tuple(
                devices.CounterUse(
                    name(counters.name), name(key), parse_amount(COUNTER, each.value)
                )
                for counters in spec.shared_counters or ()
                for key, each in sorted((counters.counters or {}).items())
            ),
        ),
    )


def _device(written: objects.DeviceObject, driver: str, *, own_reach: bool) -> devices.Device:
    reach = _node_reach(written.node_name, written.node_selector, every=written.all_nodes)
    return devices.Device(
        name(written.name),
        _shared.intern(tuple(_shared.intern(each) for each in _attributes(written, driver))),
        _shared.intern(_device_taints(written.taints)),
        reach if own_reach else None,
        _shared.intern(
            tuple(
                devices.CounterUse(
                    name(use.counter_set), name(key), parse_amount(COUNTER, each.value)
                )
                for use in written.consumes_counters or ()
                for key, each in sorted((use.counters or {}).items())
            )
        ),
        written.allow_multiple_allocations,
        _share_limits(written) if written.allow_multiple_allocations else (),
    )


def _share_limits(written: objects.DeviceObject) -> tuple[devices.ShareLimit, ...]:
    """Return the capacities of a shared device. Without a default, a request takes all of one."""
    found = []
    for key, each in sorted((written.capacity or {}).items()):
        total = parse_amount(THOUSANDTHS, each.value)
        default = each.request_policy.default if each.request_policy is not None else None
        taken = total if default is None else parse_amount(THOUSANDTHS, default)
        found.append(devices.ShareLimit(name(key), total, taken))
    return tuple(found)


def _device_taints(written: Iterable[TaintSpec] | None) -> tuple[Taint, ...]:
    """Return the taints that keep claims off a device, whatever their keys."""
    return tuple(
        sorted(
            Taint(name(each.key), each.value, name(each.effect))
            for each in written or ()
            if each.effect in EXCLUDING_EFFECTS
        )
    )


def _attributes(written: objects.DeviceObject, driver: str) -> Iterator[devices.Attribute]:
    for key, value in sorted((written.attributes or {}).items()):
        single = (value.integer, value.boolean, value.string, value.version)
        several = (value.integers, value.booleans, value.strings, value.versions)
        for kind, one, more in zip(KINDS, single, several, strict=True):
            if one is not None:
                yield devices.Attribute(*_qualified_name(key, driver), kind, one)
            elif more is not None:
                yield devices.Attribute(*_qualified_name(key, driver), f"{kind}s", tuple(more))
    for key, each in sorted((written.capacity or {}).items()):
        yield devices.Attribute(*_qualified_name(key, driver), "quantity", str(each.value))


def _qualified_name(key: str, driver: str) -> tuple[str, str]:
    """Return the domain and the name. The domain of the driver is the default."""
    domain, slash, short = key.partition("/")
    return (name(domain), name(short)) if slash else (name(driver), name(key))


def _node_reach(node: str | None, selector: NodeTerms | None, *, every: bool) -> devices.NodeReach:
    if node:
        return devices.NodeReach(model.NodeName(name(node)))
    if selector is not None:
        return devices.NodeReach(selector=read_node_terms(selector))
    return devices.NodeReach(every=every)
