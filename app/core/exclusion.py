"""Why a pool cannot serve a pod, or can never carry it: the first constraint that excludes it.

Reads only. Says in words what `Pools.serving` and `Reservations.could_hold` decide.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.backlog import Shape
from app.core.model import NodeName, Pod, Pool, PoolName, Tenant
from app.core.resources import render
from app.core.scene import Scene
from app.core.tracked import Tracked


def excluded(tracked: Tracked, scene: Scene) -> dict[PoolName, str]:
    """Return why each pool cannot serve a held pod; pools that could are left out."""
    pod = tracked.pod
    tenant = scene.tenancy.tenants.get(scene.tenancy.tenant_of(pod.namespace))
    serving = scene.pools.serving(pod, tenant)
    found = {
        name: _reason(pod, tenant, pool, scene)
        for name, pool in sorted(scene.pools.pools.items())
        if name not in serving
    }
    if tracked.gang is not None:
        for name in serving:
            found[name] = f"not all pods of its gang {tracked.gang.name} may go there"
    return found


def too_small(shape: Shape, pool: PoolName, scene: Scene) -> str:
    """Return why a pool could not carry a workload though nothing else ran there; "": it could."""
    if scene.reservations.could_hold(shape, pool):
        return ""
    nodes = scene.placement.open_nodes(pool)
    if not nodes:
        return "none of its nodes is ready"
    offers = [scene.pools.whole(node) for node in nodes]
    for r, asked in sorted(shape.total.items()):
        there = sum(offer.get(r, 0) for offer in offers)
        if asked > there:
            return f"{render(r, asked)} {r} asked, {render(r, there)} in all its ready nodes"
    for demand, _ in shape.parts:
        for r, asked in sorted(demand.items()):
            most = max(offer.get(r, 0) for offer in offers)
            if asked > most:
                return (
                    f"{render(r, asked)} {r} asked on one node, its largest has {render(r, most)}"
                )
    if any(scene.pools.offer(node) != whole for node, whole in zip(nodes, offers, strict=True)):
        return ""  # what Fairgate does not manage takes the room: it may go
    if any(pin is not None for pin in shape.pins):
        return f"{_nodes(shape)} cannot carry it, even if nothing else ran there"
    return "no set of its nodes could carry it, even if nothing else ran there"


def _reason(pod: Pod, tenant: Tenant | None, pool: Pool, scene: Scene) -> str:
    name = pool.name
    if pod.tied is not None and pod.tied != name:
        return f"a resource claim that it shares is in use in pool {pod.tied}"
    if pod.tied is None and pod.pools and name not in pod.pools:
        return f"its annotation fairgate.io/pools names {', '.join(pod.pools)} only"
    if tenant is not None and tenant.pools and name not in tenant.pools:
        return f"its tenant {tenant.name} may use {', '.join(tenant.pools)} only"
    if name in scene.pools.overlapping:
        return "it claims nodes of a pool before it by name, so nothing is released into it"
    if pool.paused:
        return "it is paused"
    for key, value in sorted(pod.selector.items()):
        own = pool.selector.get(key, value)
        if own != value:
            return f"its node selector asks for {key}={value}, the pool is {key}={own}"
    nodes = scene.pools.members(name)
    if not nodes:
        return "it has no nodes"
    if not any(_matches(node.labels, pod.selector) for node in nodes):
        wanted = ", ".join(f"{key}={value}" for key, value in sorted(pod.selector.items()))
        return f"no node of it has the labels of its node selector, {wanted}"
    return f"{nodes_text(pod.only or ())}, which it must go to, is not in it"


def nodes_text(only: tuple[NodeName, ...]) -> str:
    """Return some nodes in words."""
    if len(only) == 1:
        return f"node {only[0]}"
    return f"one of {len(only)} nodes" if only else "no node"


def _nodes(shape: Shape) -> str:
    named = sorted({name for pin in shape.pins for name in pin or ()})
    return nodes_text(tuple(named)) if len(named) == 1 else "the nodes it must go to"


def _matches(labels: Mapping[str, str], selector: Mapping[str, str]) -> bool:
    return all(labels.get(key) == value for key, value in selector.items())
