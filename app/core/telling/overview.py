"""The roster, summed up for status, metrics and people. Reads only."""

from __future__ import annotations

from fractions import Fraction

from app.core.fair.branch import Branch, Leaf, share
from app.core.fair.tenancy import Tenancy
from app.core.model import Amounts, PoolName, Resource, TenantName, UserName
from app.core.places.placement import Placement
from app.core.places.pools import Pools, add_to
from app.core.pods.roster import Roster
from app.core.resources import ManagedResources, add
from app.core.telling.views import NodeView, PoolView, TenantView, UserView, View


def overview(
    roster: Roster,
    tenancy: Tenancy,
    pools: Pools,
    placement: Placement,
    managed: ManagedResources,
) -> View:
    """Return every tenant that exists, uses or waits, and every pool, as they stand."""
    used: dict[TenantName, dict[PoolName, dict[Resource, int]]] = {}
    pending: dict[TenantName, int] = {}
    for (tenant, pool), amounts in roster.usage.used.items():
        for name in tenancy.lineage(tenant) if any(amounts.values()) else ():
            mine = used.setdefault(name, {})
            mine[pool] = add(mine.get(pool, {}), _managed(amounts, managed))
    for tenant, count in roster.pending.items():
        for name in tenancy.lineage(tenant) if count else ():
            pending[name] = pending.get(name, 0) + count
    names = sorted({*used, *pending, *tenancy.tenants})
    tenants = {
        name: _tenant(name, roster, tenancy, used.get(name, {}), pending.get(name, 0))
        for name in names
    }
    views = {
        name: PoolView(
            capacity=_managed(pools.capacity(name), managed),
            used=_managed(placement.used.get(name, {}), managed),
            nodes=pools.nodes_in(name),
            generation=pool.generation,
            contested=pools.contested(name),
            paused=pool.paused,
            exists=pools.is_written(name),
            grows=bool(pool.max_capacity),
            awaiting=placement.awaiting(name),
            closed=pools.growth.closed.get(name),
        )
        for name, pool in sorted(pools.pools.items())
    }
    strays = tuple(n.name for n in pools.outside() if _managed(n.allocatable, managed))
    return View(tenants, views, strays)


def _tenant(
    name: TenantName,
    roster: Roster,
    tenancy: Tenancy,
    used: dict[PoolName, dict[Resource, int]],
    pending: int,
) -> TenantView:
    tenant = tenancy.tenants.get(name)
    tree = roster.usage.tree
    branch = tree.tenants.get(name)
    orphan = tenant is not None and tenant.parent is not None and tenancy.parent_of(name) is None
    return TenantView(
        parent=tenancy.parent_of(name),
        weight=tenant.weight if tenant else Fraction(1),
        share=Fraction(*share(branch, tree.scale)) if branch else Fraction(0),
        used=used,
        borrowed=_borrowed(branch) if branch else {},
        history=max(tree.history(branch).values(), default=0.0) if branch else 0.0,
        pending=pending,
        generation=tenant.generation if tenant else 0,
        disputed=tenancy.disputed(name) if tenant else (),
        orphan=orphan,
        paused=tenant is not None and tenant.paused,
        exists=tenant is not None,
    )


def _managed(amounts: Amounts, managed: ManagedResources) -> dict[Resource, int]:
    return {r: v for r, v in amounts.items() if r in managed and v}


def _borrowed(branch: Branch) -> dict[PoolName, dict[Resource, int]]:
    """Return what is used beyond the guarantee, in each pool where anything is."""
    borrowed = {pool: branch.borrowed(pool) for pool in branch.uses}
    return {
        p: {r: v for r, v in held.items() if v}
        for p, held in borrowed.items()
        if any(held.values())
    }


def people(
    name: TenantName, roster: Roster, tenancy: Tenancy, managed: ManagedResources
) -> tuple[UserView, ...]:
    """Return the users of a tenant that are weighed, use or wait, by name."""
    tenant, branch = tenancy.tenants.get(name), roster.usage.tree.tenants.get(name)
    weights = tenant.user_weights if tenant is not None else {}
    children = branch.children.values() if branch is not None else ()
    leaves = {UserName(each.name): each for each in children if isinstance(each, Leaf)}
    views = [
        UserView(
            user,
            weights.get(user, Fraction(1)),
            _used_by(leaves[user], managed) if user in leaves else {},
            len(roster.waiting.get(leaves[user], ())) if user in leaves else 0,
        )
        for user in sorted({*weights, *leaves})
    ]
    return tuple(each for each in views if each.name in weights or each.used or each.pending)


def _used_by(leaf: Leaf, managed: ManagedResources) -> dict[PoolName, dict[Resource, int]]:
    """Return what a user's pods use now; what ended early, and is charged on, is left out."""
    found = {}
    for pool, held in leaf.uses.items():
        gone = leaf.lingering.get(pool, {})
        found[pool] = _managed({r: v - gone.get(r, 0) for r, v in held.items()}, managed)
    return {pool: amounts for pool, amounts in found.items() if amounts}


def nodes(
    pool: PoolName, pools: Pools, placement: Placement, managed: ManagedResources
) -> tuple[NodeView, ...]:
    """Return the nodes of a pool, by name."""
    found = []
    for node in pools.members(pool):
        used: dict[Resource, int] = {}
        for stay in placement.stays.get(node.name, ()):
            add_to(used, stay.demand, 1)
        capacity = _managed(node.allocatable, managed)
        found.append(NodeView(node.name, node.ready, capacity, _managed(used, managed)))
    return tuple(found)
