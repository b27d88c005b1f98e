"""Status fields and conditions of Tenants and Pools. Pure functions of the engine's views."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from app.core.explain.views import PoolView, TenantView
from app.core.model import Amounts, NodeName, PoolName, Resource
from app.core.quantities import format_amount
from app.core.safe_text import escape_hidden
from app.core.scheduling.blocked_evictions import BlockedReclaim

MAX_NAMES = 4
"""Most names in one message."""


@dataclass(frozen=True, slots=True)
class StatusCondition:
    """A condition: type, status, reason and message."""

    condition_type: str
    is_true: bool
    reason: str
    message: str

    def to_api(self) -> dict[str, object]:
        """Return the condition in the form of the API conventions, without times."""
        status = "True" if self.is_true else "False"
        words = {"reason": self.reason, "message": escape_hidden(self.message)}
        return {"type": self.condition_type, "status": status, **words}


@dataclass(frozen=True, slots=True)
class ObjectStatus:
    """The desired status of one object. An object that was created again has another `uid`.

    `is_at_max_pending`: its `pending` refuses new pods, so it is written without a delay.
    """

    fields: Mapping[str, object]
    conditions: tuple[StatusCondition, ...]
    generation: int
    uid: str
    is_at_max_pending: bool = False


def tenant_status(tenant: TenantView, known: set[Resource]) -> ObjectStatus:
    """Return the status of a tenant. `known`: the resources of all pools."""
    taken = f"an older tenant already has: {', '.join(tenant.disputed_namespaces)}"
    if tenant.parent_fault:
        also = f"; {taken}" if tenant.disputed_namespaces else ""
        message = f"{tenant.parent_fault}, so nothing is released{also}"
        ready = _ready_condition(False, "ParentMissing", message)
    elif tenant.disputed_namespaces:
        ready = _ready_condition(False, "NamespaceTaken", taken)
    elif tenant.paused:
        ready = _ready_condition(False, "Paused", "nothing of it is released")
    else:
        ready = _ready_condition(True, "InForce", "counts in the fair order")
    shown = known.union(*tenant.used.values())
    fields = {
        "share": f"{float(tenant.share):.3f}",
        "used": _quantities(_sum(tenant.used, shown)),
        "borrowed": _quantities(_sum(tenant.borrowed, shown)),
        "pending": tenant.pending,
        # Rounded, because it decays all the time and every change is a write to the API server.
        "history": f"{tenant.history:.2f}",
    }
    conditions = ready, _blocked_condition(tenant.blocked_reclaims), _quotas_condition(tenant)
    return ObjectStatus(fields, conditions, tenant.generation, tenant.uid, tenant.is_at_max_pending)


def _blocked_condition(found: BlockedReclaim | None) -> StatusCondition:
    """Return whether budgets of the tenant block a reclaim within another tenant's guarantee."""
    kind = "BudgetBlocksReclaim"
    if found is None:
        return StatusCondition(
            kind, False, "None", "no disruption budget prevents a reclaim from it"
        )
    some = "disruption budget" + ("s " if len(found.budgets) > 1 else " ")
    named = ", ".join(found.budgets[:MAX_NAMES]) + (
        " and others" if len(found.budgets) > MAX_NAMES else ""
    )
    message = (
        f"{some}{named} prevent{'s' if len(found.budgets) == 1 else ''} the eviction of "
        f"{found.pods} of its pods, so {_names_with_kind('tenant', found.tenants)} cannot use the "
        f"guarantee in {_names_with_kind('pool', found.pools)}; allow more disruptions, or set "
        "disruptionBudgets: "
        "Override in the Policy"
    )
    return StatusCondition(kind, True, "EvictionRefused", message)


def _quotas_condition(tenant: TenantView) -> StatusCondition:
    """Return whether all quotas of the tenant have their full effect."""
    kind, found = "QuotasInForce", tenant.quota_faults
    if tenant.parent_fault:
        message = "nothing of it is released, see the condition Ready"
        return StatusCondition(kind, False, "ParentMissing", message)
    if found is None:
        return StatusCondition(kind, True, "InForce", "all its quotas and pools are in force")
    parts = []
    if found.missing:
        verb = "do" if len(found.missing) > 1 else "does"
        parts.append(f"{_names_with_kind('pool', found.missing)} {verb} not exist")
    if found.uncovered:
        pools = [pool for pool, _ in found.uncovered]
        above = list(dict.fromkeys(name for _, name in found.uncovered))
        verb = "guarantee" if len(above) > 1 else "guarantees"
        those = "those tenants" if len(above) > 1 else "that tenant"
        parts.append(
            f"{_names_with_kind('tenant', above)} above it {verb} less in "
            f"{_names_with_kind('pool', pools)}, so the "
            f"rest of its guarantee there does not count outside {those}"
        )
    reason = "PoolMissing" if found.missing else "GuaranteeNotCovered"
    return StatusCondition(kind, False, reason, "; ".join(parts))


def _names_with_kind(what: str, names: Sequence[str]) -> str:
    """Return the kind and the first `MAX_NAMES` names."""
    more = " and others" if len(names) > MAX_NAMES else ""
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(names[:MAX_NAMES])}{more}"


def pool_status(
    pool: PoolView, strays: Sequence[NodeName], fragmentation: float | None
) -> ObjectStatus:
    """Return the status of a pool. `strays`: the nodes that belong to no pool."""
    free = {r: max(0, v - pool.used.get(r, 0)) for r, v in pool.capacity.items()}
    used = {r: pool.used.get(r, 0) for r in pool.capacity}
    fields = {
        "capacity": _quantities(pool.capacity),
        "used": _quantities(used),
        "free": _quantities(free),
        "nodes": pool.nodes,
        # Sums and rounded values, because every change is a write to the API server.
        "unowned": _quantities(_sum_by_tenant(pool)),
        "fragmentation": None if fragmentation is None else f"{fragmentation:.2f}",
    }
    conditions = (
        _pool_ready_condition(pool),
        _overlap_condition(pool.contested_nodes),
        _left_out_condition(strays),
    )
    return ObjectStatus(fields, conditions, pool.generation, pool.uid)


def _pool_ready_condition(pool: PoolView) -> StatusCondition:
    if pool.contested_nodes:
        return _ready_condition(False, "Overlap", "it claims nodes of a pool before it by name")
    if pool.paused:
        return _ready_condition(False, "Paused", "nothing is released into it")
    if not pool.nodes and not pool.may_grow:
        return _ready_condition(False, "NoNodes", "no node matches its nodeSelector")
    return _binding_condition(pool) or _growth_condition(pool)


def _binding_condition(pool: PoolView) -> StatusCondition | None:
    """Return the condition of a pool without binding; None if the scheduler binds its pods."""
    if pool.stalled_since is None:
        return None
    since = datetime.fromtimestamp(pool.stalled_since / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    message = (
        f"the scheduler has bound no released pod since {since}; little is released, and no "
        "time-out runs, until it does; see whether kube-scheduler works"
    )
    return _ready_condition(False, "BindingStalled", message)


def _growth_condition(pool: PoolView) -> StatusCondition:
    """Return the condition of an active pool, with the state of its scale-up."""
    if pool.growth_closed_until is not None:
        until = datetime.fromtimestamp(pool.growth_closed_until / 1000, UTC).strftime(
            "%Y-%m-%dT%H:%M:%SZ"
        )
        message = (
            "pods released for new nodes returned to the queue, because no node came in time; "
            f"until {until} only existing nodes are used; check why the autoscaler adds no nodes"
        )
        return _ready_condition(True, "NodesMissing", message)
    if pool.pods_awaiting_nodes:
        number = (
            f"{pool.pods_awaiting_nodes} pods are" if pool.pods_awaiting_nodes > 1 else "1 pod is"
        )
        message = f"{number} released for nodes that the autoscaler may add"
        return _ready_condition(True, "NodesAwaited", message)
    return _ready_condition(True, "InForce", "pods are released into it")


def _overlap_condition(contested: Mapping[NodeName, PoolName]) -> StatusCondition:
    if not contested:
        return StatusCondition("Overlap", False, "Apart", "every node it selects is its own")
    owners = sorted(set(contested.values()))
    message = (
        f"it selects {_count_with_names(sorted(contested), 'node')} of pool "
        f"{' and '.join(owners)}, which "
        "keeps them; pods are not released to this pool until its nodeSelector excludes them"
    )
    return StatusCondition("Overlap", True, "SelectsNodesOfAnother", message)


def _left_out_condition(strays: Sequence[NodeName]) -> StatusCondition:
    if not strays:
        message = "every node that offers a managed resource is in a Pool"
        return StatusCondition("NodesLeftOut", False, "None", message)
    message = (
        f"{_count_with_names(strays, 'node')} with managed resources in no Pool, so no pod that is "
        "held can go there; make a Pool for them, or widen the nodeSelector of one"
    )
    return StatusCondition("NodesLeftOut", True, "InNoPool", message)


def _count_with_names(names: Sequence[str], what: str) -> str:
    """Return the number of things and the first `MAX_NAMES` names."""
    more = len(names) - MAX_NAMES
    shown = ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
    return f"{len(names)} {what}{'' if len(names) == 1 else 's'} ({shown})"


def _ready_condition(holds: bool, reason: str, message: str) -> StatusCondition:
    return StatusCondition("Ready", holds, reason, message)


def _sum(pools: Mapping[PoolName, Amounts], shown: set[Resource]) -> dict[Resource, int]:
    """Return the sum over all pools of each resource in `shown`."""
    return {r: sum(amounts.get(r, 0) for amounts in pools.values()) for r in shown}


def _sum_by_tenant(pool: PoolView) -> dict[Resource, int]:
    """Return the resources of the pool that unowned pods without a node use."""
    shown = pool.unowned_usage.values()
    return {r: sum(each.get(r, 0) for each in shown) for r in pool.capacity if any(shown)}


def _quantities(amounts: Amounts) -> dict[str, str]:
    return {str(r): format_amount(r, v) for r, v in sorted(amounts.items())}
