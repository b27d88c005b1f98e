"""A pod as the rules of `core.admission.guard` look at it: from the JSON of a review to a sheet.

Read only where a rule is likely to be broken, so clarity comes before speed.
"""

from __future__ import annotations

from typing import Any

import msgspec

from app import wire
from app.core.admission.guard import Sheet
from app.core.resources import ManagedResources


class Variable(wire.Wire, frozen=True):
    name: str = ""
    value: str | None = None
    value_from: dict[str, Any] | None = None


class Security(wire.Wire, frozen=True):
    privileged: bool | None = None


class Container(wire.Wire, frozen=True):
    env: list[Variable] | None = None
    security_context: Security | None = None


class HostPath(wire.Wire, frozen=True):
    path: str = ""


class Volume(wire.Wire, frozen=True):
    host_path: HostPath | None = None


class Toleration(wire.Wire, frozen=True):
    key: str | None = None


class Spec(wire.Wire, frozen=True):
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    ephemeral_containers: list[Container] | None = None
    volumes: list[Volume] | None = None
    tolerations: list[Toleration] | None = None
    scheduler_name: str | None = None
    preemption_policy: str | None = None


class Reach(wire.Wire, frozen=True):
    spec: Spec = Spec()


def sheet_of(document: Any, managed: ManagedResources) -> Sheet:
    """Return what the rules look at. Raises msgspec.ValidationError, InvalidQuantity."""
    pod = msgspec.convert(document, wire.Pod)
    spec = msgspec.convert(document, Reach).spec
    kinds = (spec.containers, spec.init_containers, spec.ephemeral_containers)
    containers = [container for many in kinds for container in many or ()]
    return Sheet(
        asks=asks(pod.spec, managed),
        names=names(pod.spec, managed),
        gates=tuple(gate.name for gate in pod.spec.scheduling_gates or ()),
        labels=pod.metadata.labels or {},
        annotations=pod.metadata.annotations or {},
        scheduler=spec.scheduler_name or "",
        preemption=spec.preemption_policy or "",
        node=pod.spec.node_name or "",
        phase=pod.status.phase or "",
        variables=tuple(
            (each.name, None if each.value_from is not None else each.value or "")
            for container in containers
            for each in container.env or ()
        ),
        paths=tuple(v.host_path.path for v in spec.volumes or () if v.host_path),
        privileged=any(c.security_context and c.security_context.privileged for c in containers),
        tolerated=tuple(t.key or "" for t in spec.tolerations or ()),
    )


def asks(spec: wire.PodSpec, managed: ManagedResources) -> bool:
    """Tell whether a pod of this spec asks for a managed resource, or has claims that may."""
    return bool(spec.resource_claims) or managed.asked(spec.demand())


def names(spec: wire.PodSpec, managed: ManagedResources) -> bool:
    """Tell whether a pod of this spec names a managed resource, be it to ask for none of it."""
    containers = [*(spec.containers or ()), *(spec.init_containers or ())]
    written = [each.resources for each in containers if each.resources]
    named = [name for each in written for name in {**(each.limits or {}), **(each.requests or {})}]
    return bool(spec.resource_claims) or any(name in managed for name in named)
