"""Builds the views of tenants, pools, users and nodes for status, metrics and people."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction

from app.core.explain.pacing import held_by_unowned
from app.core.explain.quota_faults import quota_faults
from app.core.explain.views import ClusterView, NodeView, PoolView, TenantView, UserView
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.tree_node import TenantNode, UserNode, dominant_usage_share
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import Amounts, NodeName, PoolName, Resource, TenantName, UserName
from app.core.placement.allocations import Allocations
from app.core.placement.pools import Pools, add_to
from app.core.quantities import ManagedResources, add_amounts
from app.core.scheduling.blocked_evictions import BlockedReclaim


def overview(
    registry: PodRegistry,
    tenancy: TenantDirectory,
    pools: Pools,
    placement: Allocations,
    managed: ManagedResources,
    blocked: Mapping[TenantName, BlockedReclaim],
) -> ClusterView:
    """Return the view of every pool, and of every tenant that exists, uses or waits."""
    used: dict[TenantName, dict[PoolName, dict[Resource, int]]] = {}
    pending: dict[TenantName, int] = {}
    for (tenant, pool), amounts in registry.usage.used_by_tenant.items():
        for name in tenancy.lineage(tenant) if any(amounts.values()) else ():
            mine = used.setdefault(name, {})
            mine[pool] = add_amounts(mine.get(pool, {}), _managed_amounts(amounts, managed))
    for tenant, count in registry.pending_by_tenant.items():
        for name in tenancy.lineage(tenant) if count else ():
            pending[name] = pending.get(name, 0) + count
    names = sorted({*used, *pending, *tenancy.tenants})
    faults = {n: quota_faults(t, tenancy, pools.pools) for n, t in tenancy.tenants.items()}
    tenants = {
        name: replace(
            _tenant_view(name, registry, tenancy, used.get(name, {}), pending.get(name, 0)),
            blocked_reclaims=blocked.get(name),
            quota_faults=faults.get(name),
        )
        for name in names
    }
    unowned = held_by_unowned(registry)
    views = {
        name: PoolView(
            capacity=_managed_amounts(pools.capacity(name), managed),
            used=_managed_amounts(placement.used.get(name, {}), managed),
            nodes=pools.count_nodes(name),
            generation=pool.generation,
            contested_nodes=pools.contested_nodes(name),
            paused=pool.paused,
            exists=pools.has_pool_resource(name),
            uid=pool.uid,
            may_grow=bool(pool.max_capacity),
            pods_awaiting_nodes=placement.count_waiting_for_nodes(name),
            growth_closed_until=pools.autoscaling_backoff.closed_pools.get(name),
            silent_pods=registry.binding.count_silent(name),
            stalled_since=registry.binding.stalled_since(name),
            unowned_usage={
                tenant: _managed_amounts(amounts, managed)
                for (tenant, pool), amounts in unowned.items()
                if pool == name
            },
        )
        for name, pool in sorted(pools.pools.items())
    }
    strays = tuple(
        n.name for n in pools.nodes_without_pool() if _managed_amounts(n.allocatable, managed)
    )
    return ClusterView(tenants, views, strays)


def _tenant_view(
    name: TenantName,
    registry: PodRegistry,
    tenancy: TenantDirectory,
    used: dict[PoolName, dict[Resource, int]],
    pending: int,
) -> TenantView:
    tenant = tenancy.tenants.get(name)
    tree = registry.usage.tree
    branch = tree.tenants.get(name)
    fault = tenancy.parent_fault(name)
    most = tenant.max_pending if tenant else None
    return TenantView(
        parent=tenancy.parent_of(name),
        weight=tenant.weight if tenant else Fraction(1),
        share=Fraction(*dominant_usage_share(branch, tree.scale)) if branch else Fraction(0),
        used=used,
        borrowed=_borrowed_amounts(branch) if branch else {},
        history=max(tree.decayed_history(branch).values(), default=0.0) if branch else 0.0,
        pending=pending,
        generation=tenant.generation if tenant else 0,
        disputed_namespaces=tenancy.disputed_namespaces(name) if tenant else (),
        parent_fault=fault.reason if fault is not None else "",
        paused=tenant is not None and tenant.paused,
        exists=tenant is not None,
        uid=tenant.uid if tenant else "",
        is_at_max_pending=most is not None and pending >= most,
    )


def _managed_amounts(amounts: Amounts, managed: ManagedResources) -> dict[Resource, int]:
    return {r: v for r, v in amounts.items() if r in managed and v}


def _borrowed_amounts(branch: TenantNode) -> dict[PoolName, dict[Resource, int]]:
    """Return the usage beyond the guarantee, for each pool with such usage."""
    borrowed = {pool: branch.borrowed(pool) for pool in branch.usage}
    return {
        p: {r: v for r, v in held.items() if v}
        for p, held in borrowed.items()
        if any(held.values())
    }


def user_views(
    name: TenantName, registry: PodRegistry, tenancy: TenantDirectory, managed: ManagedResources
) -> tuple[UserView, ...]:
    """Return the users of a tenant with a weight, usage or waiting pods, by name."""
    tenant, branch = tenancy.tenants.get(name), registry.usage.tree.tenants.get(name)
    weights = tenant.user_weights if tenant is not None else {}
    children = branch.children.values() if branch is not None else ()
    users = {UserName(each.name) for each in children if isinstance(each, UserNode)}
    views = (
        user_view(name, user, registry, tenancy, managed) for user in sorted({*weights, *users})
    )
    return tuple(each for each in views if each is not None)


def user_view(
    name: TenantName,
    user: UserName,
    registry: PodRegistry,
    tenancy: TenantDirectory,
    managed: ManagedResources,
) -> UserView | None:
    """Return a user of a tenant. None if it has no weight, no usage and no waiting pods."""
    tenant, leaf = tenancy.tenants.get(name), registry.usage.tree.find_user(name, user)
    weight = tenant.user_weights.get(user) if tenant is not None else None
    used = _usage_of_user(leaf, managed) if leaf is not None else {}
    pending = len(registry.pending_by_user.get(leaf, ())) if leaf is not None else 0
    if weight is None and not (used or pending):
        return None
    return UserView(user, Fraction(1) if weight is None else weight, used, pending)


ZONE = "topology.kubernetes.io/zone"
"""The label that groups the nodes of a pool without topology."""


def _usage_of_user(
    leaf: UserNode, managed: ManagedResources
) -> dict[PoolName, dict[Resource, int]]:
    """Return the usage of a user's present pods, without charges for ended pods."""
    found = {}
    for pool, held in leaf.usage.items():
        gone = leaf.ended_usage.get(pool, {})
        found[pool] = _managed_amounts({r: v - gone.get(r, 0) for r, v in held.items()}, managed)
    return {pool: amounts for pool, amounts in found.items() if amounts}


def node_views(
    pool: PoolName, pools: Pools, placement: Allocations, managed: ManagedResources
) -> tuple[NodeView, ...]:
    """Return the nodes of a pool, by name."""
    found = []
    found_pool = pools.pools.get(pool)
    level = (*(found_pool.topology if found_pool else ()), ZONE)[0]
    for node in pools.members(pool):
        used: dict[Resource, int] = {}
        for allocation in placement.allocations_by_node.get(node.name, ()):
            add_to(used, allocation.demand, 1)
        capacity = _managed_amounts(node.allocatable, managed)
        domain = node.labels.get(level, "")
        found.append(
            NodeView(
                node.name,
                node.ready,
                node.cordoned,
                domain,
                capacity,
                _managed_amounts(used, managed),
            )
        )
    return tuple(found)


def usage_by_node(
    registry: PodRegistry, managed: ManagedResources
) -> dict[NodeName, dict[TenantName, dict[Resource, int]]]:
    """Return the usage of each node by tenant. Pods without a node are left out."""
    found: dict[NodeName, dict[TenantName, dict[Resource, int]]] = {}
    for record in registry.pods.values():
        node = record.node
        if node is None or record.leaf is None:
            continue
        amounts = found.setdefault(node, {}).setdefault(record.leaf.tenant, {})
        add_to(amounts, _managed_amounts(record.pod.demand, managed), 1)
    return found
