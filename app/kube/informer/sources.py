"""Table of the watched kinds: API paths and readers. The caller chooses the kinds to watch."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from app.core import model
from app.core.events import (
    BudgetGone,
    ClaimGone,
    ClassGone,
    NodeGone,
    PodGone,
    PolicyGone,
    PoolGone,
    PriorityGone,
    SliceGone,
    TenantGone,
    WatchedSource,
)
from app.core.quantities import ManagedResources
from app.k8s_types import device_objects, objects
from app.k8s_types.deep_json import Decoder
from app.kube import (
    convert,
    convert_custom,
    convert_devices,
    convert_groups,
    priority_class_twins,
)
from app.kube.client import Client
from app.kube.disruption_budgets import BudgetObject, read_budget
from app.kube.informer.reflector import Reflector
from app.kube.informer.watched_kind import NORMAL, Timing, WatchedKind
from app.ports.cluster import EventSink
from app.ports.liveness import Steps

GROUP = "/apis/fairgate.io/v1alpha1"
DEVICES = "/apis/resource.k8s.io/v1"


def pods(managed: ManagedResources, exempt: frozenset[str]) -> WatchedKind[objects.PodObject]:
    """Return the kind for pods. The key is the uid, because a name may be used again."""
    return WatchedKind(
        WatchedSource.PODS,
        "/api/v1/pods",
        Decoder(objects.ListPage[objects.PodObject]),
        Decoder(objects.Change[objects.PodObject]),
        Decoder(objects.PodObject),
        key=lambda meta: meta.uid,
        read=convert.Pods(managed, exempt).read,
        gone=lambda uid, at: PodGone(at, model.Uid(uid)),
    )


NODES = WatchedKind(
    WatchedSource.NODES,
    "/api/v1/nodes",
    Decoder(objects.ListPage[objects.NodeObject]),
    Decoder(objects.Change[objects.NodeObject]),
    Decoder(objects.NodeObject),
    key=lambda meta: meta.name,
    read=convert.read_node,
    gone=lambda name, at: NodeGone(at, model.NodeName(name)),
)

TENANTS = WatchedKind(
    WatchedSource.TENANTS,
    f"{GROUP}/tenants",
    Decoder(objects.ListPage[objects.TenantObject]),
    Decoder(objects.Change[objects.TenantObject]),
    Decoder(objects.TenantObject),
    key=lambda meta: meta.name,
    read=convert_custom.read_tenant,
    gone=lambda name, at: TenantGone(at, model.TenantName(name)),
)

POOLS = WatchedKind(
    WatchedSource.POOLS,
    f"{GROUP}/pools",
    Decoder(objects.ListPage[objects.PoolObject]),
    Decoder(objects.Change[objects.PoolObject]),
    Decoder(objects.PoolObject),
    key=lambda meta: meta.name,
    read=convert_custom.read_pool,
    gone=lambda name, at: PoolGone(at, model.PoolName(name)),
)

POLICIES = WatchedKind(
    WatchedSource.POLICIES,
    f"{GROUP}/policies",
    Decoder(objects.ListPage[objects.PolicyObject]),
    Decoder(objects.Change[objects.PolicyObject]),
    Decoder(objects.PolicyObject),
    key=lambda meta: meta.name,
    read=convert_custom.read_policy,
    gone=lambda name, at: PolicyGone(at),
)

PRIORITIES = WatchedKind(
    WatchedSource.PRIORITIES,
    priority_class_twins.PATH,
    Decoder(objects.ListPage[objects.PriorityClassObject]),
    Decoder(objects.Change[objects.PriorityClassObject]),
    Decoder(objects.PriorityClassObject),
    key=lambda meta: meta.name,
    read=priority_class_twins.read_priority,
    gone=lambda name, at: PriorityGone(at, name),
)


CLAIMS = WatchedKind(
    WatchedSource.CLAIMS,
    f"{DEVICES}/resourceclaims",
    Decoder(objects.ListPage[device_objects.ResourceClaimObject]),
    Decoder(objects.Change[device_objects.ResourceClaimObject]),
    Decoder(device_objects.ResourceClaimObject),
    key=lambda meta: f"{meta.namespace}/{meta.name}",
    read=convert_devices.read_claim,
    gone=lambda key, at: ClaimGone(at, *key.split("/", 1)),
    optional=True,
)

CLASSES = WatchedKind(
    WatchedSource.CLASSES,
    f"{DEVICES}/deviceclasses",
    Decoder(objects.ListPage[device_objects.DeviceClassObject]),
    Decoder(objects.Change[device_objects.DeviceClassObject]),
    Decoder(device_objects.DeviceClassObject),
    key=lambda meta: meta.name,
    read=convert_devices.read_class,
    gone=lambda name, at: ClassGone(at, name),
    optional=True,
)

SLICES = WatchedKind(
    WatchedSource.SLICES,
    f"{DEVICES}/resourceslices",
    Decoder(objects.ListPage[device_objects.ResourceSliceObject]),
    Decoder(objects.Change[device_objects.ResourceSliceObject]),
    Decoder(device_objects.ResourceSliceObject),
    key=lambda meta: meta.name,
    read=convert_devices.read_slice,
    gone=lambda name, at: SliceGone(at, name),
    optional=True,
)


BUDGETS = WatchedKind(
    WatchedSource.BUDGETS,
    "/apis/policy/v1/poddisruptionbudgets",
    Decoder(objects.ListPage[BudgetObject]),
    Decoder(objects.Change[BudgetObject]),
    Decoder(BudgetObject),
    key=lambda meta: f"{meta.namespace}/{meta.name}",
    read=read_budget,
    gone=lambda key, at: BudgetGone(at, *key.split("/", 1)),
)


class Watched:
    """Implements `ports.cluster.WatchSync` with running watches."""

    def __init__(self, watches: Iterable[Reflector[Any]]) -> None:
        self._watches = tuple(watches)

    async def catch_up(self) -> None:
        """Return after each watch delivered every change that happened before this call."""
        await asyncio.gather(*(each.catch_up() for each in self._watches))

    def lag(self) -> float:
        """Return the seconds since the last data of the watch that is silent for longest."""
        return max((each.lag() for each in self._watches), default=0.0)

    def stale_lag(self) -> float:
        """Return the seconds since the last data, as `lag`, of stale watches only; else 0.

        A quiet watch is fresh while its connection works, so its last data may be older.
        """
        return max((each.lag() for each in self._watches if not each.fresh), default=0.0)


def watches(
    client: Client,
    sink: EventSink,
    clock: Callable[[], model.Millis],
    *,
    sources: Iterable[WatchedSource] = tuple(WatchedSource),
    managed: Iterable[str] = (),
    exempt: Iterable[str] = (),
    timing: Timing = NORMAL,
    interrupted: Callable[[WatchedSource], None] = lambda _: None,
    steps: Steps | None = None,
) -> list[Reflector[Any]]:
    """Return one watch for each requested source, not running yet.

    `managed` (resource patterns) and `exempt` (namespaces) apply to pods only. `interrupted` is
    called for each watch that ends early.
    """
    kinds: dict[WatchedSource, WatchedKind[Any]] = {
        WatchedSource.PODS: pods(ManagedResources(managed), frozenset(exempt)),
        WatchedSource.NODES: NODES,
        WatchedSource.TENANTS: TENANTS,
        WatchedSource.POOLS: POOLS,
        WatchedSource.POLICIES: POLICIES,
        WatchedSource.PRIORITIES: PRIORITIES,
        WatchedSource.CLAIMS: CLAIMS,
        WatchedSource.CLASSES: CLASSES,
        WatchedSource.SLICES: SLICES,
        WatchedSource.BUDGETS: BUDGETS,
    }
    for kind in convert_groups.kinds(ManagedResources(managed)):
        kinds[kind.source] = kind
    return [
        Reflector(client, kinds[source], sink, clock, timing, interrupted, steps)
        for source in sources
    ]
