"""Why a pool cannot serve a pod, or can never carry it: the first constraint that excludes it.

Reads only. Says in words what `Pools.serving` and `Reservations.could_hold` decide.
"""

from __future__ import annotations

from app.core.asks.shape import Pins, Shape
from app.core.model import Pin, Pod, Pool, PoolName, Tenant
from app.core.places.obstacles import clash, nodes_text, obstacle
from app.core.places.reach import terms_of
from app.core.pods.tracked import Gang, Tracked
from app.core.resources import render
from app.core.telling.scene import Scene


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
        found |= dict.fromkeys(serving, _of_gang(tracked.gang))
    return found


def _of_gang(gang: Gang) -> str:
    """Return why a gang may not go where one of its pods may."""
    members = gang.members
    if any(m.uses for m in members) and any(m.pod.near and m.pod.near.required for m in members):
        return f"its gang {gang.name} must stay together, and the rest of it is in no such pool"
    return f"not all pods of its gang {gang.name} may go there"


def too_small(shape: Shape, pool: PoolName, scene: Scene) -> str:
    """Return why a pool could not carry a workload though nothing else ran there; "": it could."""
    if scene.reservations.could_hold(shape, pool) or scene.placement.beyond.could_hold(shape, pool):
        return ""
    pins = scene.placement.pins(shape, pool)
    nodes = scene.placement.open_nodes(pool, _together(pins))
    if not nodes:
        return f"none of {'the nodes it may go to' if pins else 'its nodes'} is ready"
    if level := _unknown_level(shape, pool, scene):
        return level
    grows = bool(scene.placement.beyond.most(pool))
    offers = [scene.pools.whole(node) for node in nodes]
    rule = scene.placement.blocking(shape, pool)
    if rule:
        return f"its {rule} leaves it no node, because of others of its kind that were released"
    whose = "the nodes it may go to" if pins else "its ready nodes"
    for r, asked in sorted(shape.total.items()):
        there = sum(offer.get(r, 0) for offer in offers)
        if asked > there and not grows:
            return f"{render(r, asked)} {r} asked, {render(r, there)} in all {whose}"
    for demand, _ in shape.parts:
        for r, asked in sorted(demand.items()):
            most = max(offer.get(r, 0) for offer in offers)
            if asked > most:
                return (
                    f"{render(r, asked)} {r} asked on one node, its largest has {render(r, most)}"
                )
    if any(scene.pools.offer(node) != whole for node, whole in zip(nodes, offers, strict=True)):
        return ""  # what Fairgate does not manage takes the room: it may go
    if shape.manner.confined:
        return f"no {shape.manner.confined} of it could hold all of that together"
    if pins:
        return f"{_nodes(pins)} cannot carry it, even if nothing else ran there"
    return "no set of its nodes could carry it, even if nothing else ran there"


def _together(pins: Pins) -> Pin:
    """Return the nodes that any of the parts may go to; None: all of them."""
    named = [pin for pin in pins if pin is not None]
    if not named or len(named) < len(pins):
        return None
    return tuple(sorted({name for pin in named for name in pin}))


def _unknown_level(shape: Shape, pool: PoolName, scene: Scene) -> str:
    """Return why a pool has no domains of the level that a workload must stay in; "": it has."""
    label = shape.manner.confined
    if not label:
        return ""
    if label not in scene.pools.pools[pool].topology:
        return f"its gang must stay in one {label}, which spec.topology of the pool does not list"
    if not any(scene.placement.grounds(shape, pool) or ()):
        if shape.manner.beside:
            return f"its gang must stay in one {label}, and the rest of it is in none of the pool"
        return f"its gang must stay in one {label}, a label that no node of it has"
    return ""


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
    why = clash(pod.selector, pool) or scene.pools.makes.lack(pod, name)
    if why:
        return why
    nodes = scene.pools.members(name)
    return obstacle(terms_of(pod), pod.only, pool, nodes) if nodes else "it has no nodes"


def _nodes(pins: Pins) -> str:
    named = sorted({name for pin in pins for name in pin or ()})
    return nodes_text(tuple(named)) if len(named) == 1 else "the nodes it may go to"
