"""Objects of the API server become events of the core. Pure: no I/O, no memory between calls.

A reader returns None for an object that does not concern us, and raises InvalidInput for one
that it cannot understand.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from fractions import Fraction

from app import wire
from app.core import events, gate, model
from app.core.errors import InvalidInput
from app.core.resources import ManagedResources, amounts

_WEIGHT = re.compile(r"\d{1,12}(\.\d{1,12})?", re.ASCII)

_PHASES = {
    "Running": model.Phase.RUNNING,
    "Unknown": model.Phase.RUNNING,  # its node is silent: it may still hold its devices
    "Succeeded": model.Phase.FINISHED,
    "Failed": model.Phase.FINISHED,
}


class Pods:
    """Reads pods: managed ones whole, others only for the room they take on a node."""

    def __init__(self, managed: ManagedResources, exempt: frozenset[str]) -> None:
        self._managed = managed
        self._exempt = exempt

    def read(
        self, pod: wire.Pod, at: model.Millis
    ) -> events.PodObserved | events.BystanderObserved | None:
        """Return what is to be known of a pod."""
        demand = pod.spec.demand()
        if pod.metadata.namespace not in self._exempt and self._managed.asked(demand):
            return events.PodObserved(at, _managed_pod(pod, demand))
        node = pod.spec.node_name
        if not node or _phase(pod) is model.Phase.FINISHED:
            return None
        bystander = model.Bystander(model.Uid(pod.metadata.uid), model.NodeName(node), demand)
        return events.BystanderObserved(at, bystander)


def read_node(node: wire.Node, at: model.Millis) -> events.NodeObserved:
    """Return a node as the core knows it. A cordoned node counts as not ready."""
    ready = any(c.type == "Ready" and c.status == "True" for c in node.status.conditions or ())
    return events.NodeObserved(
        at,
        model.Node(
            name=model.NodeName(node.metadata.name),
            labels=node.metadata.labels or {},
            allocatable=amounts(node.status.allocatable or {}),
            ready=ready and not node.spec.unschedulable,
        ),
    )


def read_tenant(tenant: wire.Tenant, at: model.Millis) -> events.TenantObserved:
    """Return a Tenant as the core knows it."""
    spec = tenant.spec
    return events.TenantObserved(
        at,
        model.Tenant(
            name=model.TenantName(tenant.metadata.name),
            created=_created(tenant.metadata),
            weight=_decimal("weight", spec.weight),
            parent=model.TenantName(spec.parent) if spec.parent else None,
            namespaces=tuple(spec.namespaces or ()),
            user_weights={
                model.UserName(user.name): _decimal(f"weight of user {user.name}", user.weight)
                for user in spec.users or ()
            },
            pools=tuple(model.PoolName(name) for name in spec.pools or ()),
            max_pending=spec.max_pending,
            paused=spec.paused,
            generation=tenant.metadata.generation,
        ),
        tenant.status.pending,
    )


def read_pool(pool: wire.Pool, at: model.Millis) -> events.PoolObserved:
    """Return a Pool as the core knows it."""
    spec = pool.spec
    return events.PoolObserved(
        at,
        model.Pool(
            name=model.PoolName(pool.metadata.name),
            selector=spec.node_selector or {},
            weights=_decimals("weights", spec.weights),
            overcommit=_decimals("overcommit", spec.overcommit),
            paused=spec.paused,
            generation=pool.metadata.generation,
        ),
    )


def _managed_pod(pod: wire.Pod, demand: model.Amounts) -> model.Pod:
    meta, spec = pod.metadata, pod.spec
    annotations, labels = meta.annotations or {}, meta.labels or {}
    submitter = annotations.get(model.ANNOTATION_SUBMITTER)
    pool = labels.get(model.LABEL_POOL)
    return model.Pod(
        uid=model.Uid(meta.uid),
        namespace=meta.namespace,
        name=meta.name,
        user=model.UserName(submitter) if submitter else model.UNKNOWN_USER,
        priority=spec.priority or 0,
        since=_created(meta),
        demand=demand,
        gates=tuple([each.name for each in spec.scheduling_gates or ()]),
        release=annotations.get(model.ANNOTATION_RELEASE, ""),
        node=model.NodeName(spec.node_name) if spec.node_name else None,
        pool=model.PoolName(pool) if pool else None,
        selector=spec.node_selector or {},
        pools=tuple([model.PoolName(name) for name in gate.named_pools(annotations)]),
        phase=_phase(pod),
        terminating=meta.deletion_timestamp is not None,
        has_labels=meta.labels is not None,
        has_annotations=meta.annotations is not None,
    )


def _phase(pod: wire.Pod) -> model.Phase:
    return _PHASES.get(pod.status.phase or "", model.Phase.PENDING)


def _created(meta: wire.Metadata) -> model.Millis:
    written = meta.creation_timestamp
    if not written:
        return model.Millis(0)
    try:
        return model.Millis(int(datetime.fromisoformat(written).timestamp() * 1000))
    except ValueError as error:
        raise InvalidInput(f"creationTimestamp {written[:40]!r} is not a time.") from error


def _decimals(what: str, written: Mapping[str, str] | None) -> dict[model.Resource, Fraction]:
    return {
        model.Resource(name): _decimal(f"{what}[{name}]", text)
        for name, text in (written or {}).items()
    }


def _decimal(what: str, text: str) -> Fraction:
    # Checked first: Fraction also takes exponents, which can be made to fill all memory.
    if not _WEIGHT.fullmatch(text):
        raise InvalidInput(f"{what}: {text[:40]!r} is not a decimal number such as 2 or 0.5.")
    return Fraction(text)
