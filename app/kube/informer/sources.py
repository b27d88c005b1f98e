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


def pod_kind(managed: ManagedResources, exempt: frozenset[str]) -> WatchedKind[objects.PodObject]:
    """Return the kind for pods. The key is the uid, because a name may be used again."""
    return WatchedKind(
        WatchedSource.PODS,
        "/api/v1/pods",
        Decoder(objects.ListPage[objects.PodObject]),
        Decoder(objects.WatchEvent[objects.PodObject]),
        Decoder(objects.PodObject),
        key=lambda meta: meta.uid,
        read=convert.Pods(managed, exempt).read,
        deletion_event=lambda uid, at: PodGone(at, model.Uid(uid)),
    )


NODES = WatchedKind(
    WatchedSource.NODES,
    "/api/v1/nodes",
    Decoder(objects.ListPage[objects.NodeObject]),
    Decoder(objects.WatchEvent[objects.NodeObject]),
    Decoder(objects.NodeObject),
    key=lambda meta: meta.name,
    read=convert.read_node,
    deletion_event=lambda name, at: NodeGone(at, model.NodeName(name)),
)

TENANTS = WatchedKind(
    WatchedSource.TENANTS,
    f"{GROUP}/tenants",
    Decoder(objects.ListPage[objects.TenantObject]),
    Decoder(objects.WatchEvent[objects.TenantObject]),
    Decoder(objects.TenantObject),
    key=lambda meta: meta.name,
    read=convert_custom.read_tenant,
    deletion_event=lambda name, at: TenantGone(at, model.TenantName(name)),
)

POOLS = WatchedKind(
    WatchedSource.POOLS,
    f"{GROUP}/pools",
    Decoder(objects.ListPage[objects.PoolObject]),
    Decoder(objects.WatchEvent[objects.PoolObject]),
    Decoder(objects.PoolObject),
    key=lambda meta: meta.name,
    read=convert_custom.read_pool,
    deletion_event=lambda name, at: PoolGone(at, model.PoolName(name)),
)

POLICIES = WatchedKind(
    WatchedSource.POLICIES,
    f"{GROUP}/policies",
    Decoder(objects.ListPage[objects.PolicyObject]),
    Decoder(objects.WatchEvent[objects.PolicyObject]),
    Decoder(objects.PolicyObject),
    key=lambda meta: meta.name,
    read=convert_custom.read_policy,
    deletion_event=lambda name, at: PolicyGone(at),
)

PRIORITIES = WatchedKind(
    WatchedSource.PRIORITIES,
    priority_class_twins.PATH,
    Decoder(objects.ListPage[objects.PriorityClassObject]),
    Decoder(objects.WatchEvent[objects.PriorityClassObject]),
    Decoder(objects.PriorityClassObject),
    key=lambda meta: meta.name,
    read=priority_class_twins.read_priority,
    deletion_event=lambda name, at: PriorityGone(at, name),
)


CLAIMS = WatchedKind(
    WatchedSource.CLAIMS,
    f"{DEVICES}/resourceclaims",
    Decoder(objects.ListPage[device_objects.ResourceClaimObject]),
    Decoder(objects.WatchEvent[device_objects.ResourceClaimObject]),
    Decoder(device_objects.ResourceClaimObject),
    key=lambda meta: f"{meta.namespace}/{meta.name}",
    read=convert_devices.read_claim,
    deletion_event=lambda key, at: ClaimGone(at, *key.split("/", 1)),
    optional=True,
)

CLASSES = WatchedKind(
    WatchedSource.CLASSES,
    f"{DEVICES}/deviceclasses",
    Decoder(objects.ListPage[device_objects.DeviceClassObject]),
    Decoder(objects.WatchEvent[device_objects.DeviceClassObject]),
    Decoder(device_objects.DeviceClassObject),
    key=lambda meta: meta.name,
    read=convert_devices.read_class,
    deletion_event=lambda name, at: ClassGone(at, name),
    optional=True,
)

SLICES = WatchedKind(
    WatchedSource.SLICES,
    f"{DEVICES}/resourceslices",
    Decoder(objects.ListPage[device_objects.ResourceSliceObject]),
    Decoder(objects.WatchEvent[device_objects.ResourceSliceObject]),
    Decoder(device_objects.ResourceSliceObject),
    key=lambda meta: meta.name,
    read=convert_devices.read_slice,
    deletion_event=lambda name, at: SliceGone(at, name),
    optional=True,
)


BUDGETS = WatchedKind(
    WatchedSource.BUDGETS,
    "/apis/policy/v1/poddisruptionbudgets",
    Decoder(objects.ListPage[BudgetObject]),
    Decoder(objects.WatchEvent[BudgetObject]),
    Decoder(BudgetObject),
    key=lambda meta: f"{meta.namespace}/{meta.name}",
    read=read_budget,
    deletion_event=lambda key, at: BudgetGone(at, *key.split("/", 1)),
)


class RunningWatches:
    """Implements `ports.cluster.WatchSync` with running watches."""

    def __init__(self, watches: Iterable[Reflector[Any]]) -> None:
        self._watches = tuple(watches)

    async def catch_up(self) -> None:
        """Return after each watch delivered every change that happened before this call."""
        await asyncio.gather(*(each.catch_up() for each in self._watches))

    def seconds_since_data(self) -> float:
        """Return the seconds since the last data of the watch that is silent for longest."""
        return max((each.seconds_since_data() for each in self._watches), default=0.0)

    def seconds_stale(self) -> float:
        """Return the seconds since the last data of stale watches, 0 if all are fresh.

        A quiet watch is fresh while its connection works, so its last data may be older.
        """
        stale = (each for each in self._watches if not each.is_fresh)
        return max((each.seconds_since_data() for each in stale), default=0.0)


def new_reflectors(
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
        WatchedSource.PODS: pod_kind(ManagedResources(managed), frozenset(exempt)),
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
    for kind in convert_groups.gang_size_kinds(ManagedResources(managed)):
        kinds[kind.source] = kind
    return [
        Reflector(client, kinds[source], sink, clock, timing, interrupted, steps)
        for source in sources
    ]
