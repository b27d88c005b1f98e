"""Explains releases that wait for the scheduler to bind pods, and the usage of unbound pods."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.core.explain.explain_context import WaitingWorkload
from app.core.explain.reasons import Rule, SharedReason
from app.core.lifecycle.binding_progress import UnboundPod
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import PoolName, Resource, TenantName
from app.core.placement.pools import add_to
from app.core.quantities import format_amount, is_device

HeldAmounts = Mapping[tuple[TenantName, PoolName], Mapping[Resource, int]]


def pacing_reason(
    pools: Sequence[PoolName], workload: WaitingWorkload, registry: PodRegistry
) -> SharedReason | None:
    """Return why a workload within its limits is not released into these pools now."""
    leaf, shape, closures = workload.leaf, workload.equivalence_class, registry.usage.closed_pools
    if not closures or any(closures.is_open(leaf, shape, pool) for pool in pools):
        return None
    if not shape.is_owned and leaf.account in closures.users_closed_for_unowned:
        return _unowned_reason(workload, registry)
    if shape.scheduler_may_be_silent and leaf.account in closures.users_closed_for_silent:
        silent = registry.binding.count_user_lane_silent(leaf.account)
        text = (
            f"; the scheduler has not looked at {_pods_text(silent)} of this user yet that "
            "use claims, a pod group or another scheduler"
        )
        helps = ("the scheduler binding those pods", "the end of those pods")
        return SharedReason(Rule.BINDING, text, {"not looked at": str(silent)}, remedies=helps)
    return _binding_reason(next(pool for pool in pools if pool in closures.pools), registry)


def _binding_reason(pool: PoolName, registry: PodRegistry) -> SharedReason:
    binding = registry.binding
    since, silent = binding.stalled_since(pool), binding.count_silent(pool)
    numbers = {"pool": str(pool), "not looked at": str(silent)}
    if since is None:
        text = f"; the scheduler has yet to bind {_pods_text(silent)} released into pool {pool}"
        return SharedReason(
            Rule.BINDING, text, numbers, remedies=("the scheduler binding those pods",)
        )
    seconds = (registry.usage.now - since) // 1000
    text = (
        f"; binding is stalled: for {seconds} s the scheduler has not bound {_pods_text(silent)} "
        f"released into pool {pool}, so little is released there"
    )
    helps = ("a cluster admin finding out why the scheduler binds no pod",)
    return SharedReason(Rule.BINDING, text, numbers | {"seconds": str(seconds)}, remedies=helps)


def _unowned_reason(workload: WaitingWorkload, registry: PodRegistry) -> SharedReason:
    mine = registry.binding.unowned.get(workload.leaf.account, {})
    held: dict[Resource, int] = {}
    for each in mine.values():
        add_to(held, each.tracked.pod.demand, 1)
    most = registry.usage.policy.max_unowned_unbound
    text = (
        f"; {_pods_text(len(mine))} of this user that no controller owns are released and unbound "
        f"(maxUnownedUnbound {most}), and hold {devices_text(held)}"
    )
    helps = (
        "those pods being bound, or deleted by their user",
        "a controller that owns the pods, such as a Job",
        "a cluster admin raising maxUnownedUnbound in the Policy",
    )
    return SharedReason(Rule.UNOWNED, text, {"unbound": str(len(mine))}, remedies=helps)


def held_by_unowned(registry: PodRegistry) -> HeldAmounts:
    """Return the usage of unowned pods that no node accepted, by tenant and pool."""
    found: dict[tuple[TenantName, PoolName], dict[Resource, int]] = {}
    for (tenant, _), mine in registry.binding.unowned.items():
        for each in mine.values():
            if is_stuck(each):
                add_to(found.setdefault((tenant, each.lane[0]), {}), each.tracked.pod.demand, 1)
    return found


def is_stuck(loose: UnboundPod) -> bool:
    """Return whether the scheduler found no node for a pod, or its time-out has expired."""
    return loose.is_overdue or loose.was_judged


def held_by_unowned_clause(pools: Sequence[PoolName], registry: PodRegistry) -> str:
    """Return a clause about the usage of such pods in some pools; "" if there is no usage."""
    total: dict[Resource, int] = {}
    for (_, pool), amounts in held_by_unowned(registry).items():
        if pool in pools:
            add_to(total, amounts, 1)
    text = devices_text(total)
    return f"; {text} of it held by unbound pods without a controller" if text else ""


def devices_text(amounts: Mapping[Resource, int]) -> str:
    """Return amounts of devices as text."""
    devices = {r: v for r, v in amounts.items() if is_device(r) and v}
    return ", ".join(f"{format_amount(r, v)} {r}" for r, v in sorted(devices.items()))


def _pods_text(count: int) -> str:
    return f"{count} pod" if count == 1 else f"{count} pods"
