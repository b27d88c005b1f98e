"""The kinds of objects that the core hears of: where they are, how they are read.

Which process watches which of them is for the caller to say.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from msgspec.json import Decoder

from app import wire
from app.core import model
from app.core.events import (
    ClaimGone,
    ClassGone,
    NodeGone,
    PodGone,
    PolicyGone,
    PoolGone,
    PriorityGone,
    Source,
    TenantGone,
)
from app.core.resources import ManagedResources
from app.kube import convert, custom, groups, twins
from app.kube.client import Client
from app.kube.kind import NORMAL, Kind, Timing
from app.kube.watch import Watch
from app.ports import EventSink

GROUP = "/apis/fairgate.io/v1alpha1"
DEVICES = "/apis/resource.k8s.io/v1"


def pods(managed: ManagedResources, exempt: frozenset[str]) -> Kind[wire.Pod]:
    """Return the kind of pods. They are told apart by uid: a name may be used again."""
    return Kind(
        Source.PODS,
        "/api/v1/pods",
        Decoder(wire.Page[wire.Pod]),
        Decoder(wire.Change[wire.Pod]),
        Decoder(wire.Pod),
        key=lambda meta: meta.uid,
        read=convert.Pods(managed, exempt).read,
        gone=lambda uid, at: PodGone(at, model.Uid(uid)),
    )


NODES = Kind(
    Source.NODES,
    "/api/v1/nodes",
    Decoder(wire.Page[wire.Node]),
    Decoder(wire.Change[wire.Node]),
    Decoder(wire.Node),
    key=lambda meta: meta.name,
    read=convert.read_node,
    gone=lambda name, at: NodeGone(at, model.NodeName(name)),
)

TENANTS = Kind(
    Source.TENANTS,
    f"{GROUP}/tenants",
    Decoder(wire.Page[wire.Tenant]),
    Decoder(wire.Change[wire.Tenant]),
    Decoder(wire.Tenant),
    key=lambda meta: meta.name,
    read=custom.read_tenant,
    gone=lambda name, at: TenantGone(at, model.TenantName(name)),
)

POOLS = Kind(
    Source.POOLS,
    f"{GROUP}/pools",
    Decoder(wire.Page[wire.Pool]),
    Decoder(wire.Change[wire.Pool]),
    Decoder(wire.Pool),
    key=lambda meta: meta.name,
    read=custom.read_pool,
    gone=lambda name, at: PoolGone(at, model.PoolName(name)),
)

POLICIES = Kind(
    Source.POLICIES,
    f"{GROUP}/policies",
    Decoder(wire.Page[wire.Policy]),
    Decoder(wire.Change[wire.Policy]),
    Decoder(wire.Policy),
    key=lambda meta: meta.name,
    read=custom.read_policy,
    gone=lambda name, at: PolicyGone(at),
)

PRIORITIES = Kind(
    Source.PRIORITIES,
    twins.PATH,
    Decoder(wire.Page[wire.PriorityClass]),
    Decoder(wire.Change[wire.PriorityClass]),
    Decoder(wire.PriorityClass),
    key=lambda meta: meta.name,
    read=twins.read_priority,
    gone=lambda name, at: PriorityGone(at, name),
)


CLAIMS = Kind(
    Source.CLAIMS,
    f"{DEVICES}/resourceclaims",
    Decoder(wire.Page[wire.ResourceClaim]),
    Decoder(wire.Change[wire.ResourceClaim]),
    Decoder(wire.ResourceClaim),
    key=lambda meta: f"{meta.namespace}/{meta.name}",
    read=convert.read_claim,
    gone=lambda key, at: ClaimGone(at, *key.split("/", 1)),
    optional=True,
)

CLASSES = Kind(
    Source.CLASSES,
    f"{DEVICES}/deviceclasses",
    Decoder(wire.Page[wire.DeviceClass]),
    Decoder(wire.Change[wire.DeviceClass]),
    Decoder(wire.DeviceClass),
    key=lambda meta: meta.name,
    read=convert.read_class,
    gone=lambda name, at: ClassGone(at, name),
    optional=True,
)


class Watched:
    """`ports.Sight` by watches that run."""

    def __init__(self, watches: Iterable[Watch[Any]]) -> None:
        self._watches = tuple(watches)

    async def catch_up(self) -> None:
        """Return once each of them told its sink of all that was so when this was called."""
        await asyncio.gather(*(each.catch_up() for each in self._watches))

    def lag(self) -> float:
        """Return for how many seconds nothing was heard of the one that is silent for longest."""
        return max((each.lag() for each in self._watches), default=0.0)


def watches(
    client: Client,
    sink: EventSink,
    clock: Callable[[], model.Millis],
    *,
    sources: Iterable[Source] = tuple(Source),
    managed: Iterable[str] = (),
    exempt: Iterable[str] = (),
    timing: Timing = NORMAL,
) -> list[Watch[Any]]:
    """Return one watch for each source asked for, not yet running.

    `managed` and `exempt` (patterns of resources, names of namespaces) matter to pods only.
    """
    kinds: dict[Source, Kind[Any]] = {
        Source.PODS: pods(ManagedResources(managed), frozenset(exempt)),
        Source.NODES: NODES,
        Source.TENANTS: TENANTS,
        Source.POOLS: POOLS,
        Source.POLICIES: POLICIES,
        Source.PRIORITIES: PRIORITIES,
        Source.CLAIMS: CLAIMS,
        Source.CLASSES: CLASSES,
    }
    for kind in groups.kinds(ManagedResources(managed)):
        kinds[kind.source] = kind
    return [Watch(client, kinds[source], sink, clock, timing) for source in sources]
