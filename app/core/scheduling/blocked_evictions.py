"""Evictions that PodDisruptionBudgets forbid: which pods, for which tenant, and since when.

If `disruptionBudgets` is `Override`, a budget only delays an eviction for a guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from app.core.effects import EvictForReclaim, ReclaimCause
from app.core.lifecycle.pod_record import PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.lifecycle.pod_state import PodState
from app.core.model import Millis, PoolName, TenantName, Uid

EXCLUDED_MS = 60_000
"""A refused pod is no reclaim candidate for this long."""

OVERRIDE_DELAY_MS = 5_000
"""Time for which budgets may forbid evictions for a guarantee before they are overridden."""

RETRY_MS = 1_000
"""Minimum time between two attempts to evict a pod against its budget."""

UNRELATED_AFTER_MS = 600_000
"""Refusals further apart are unrelated: `OVERRIDE_DELAY_MS` starts again."""

REPORTED_MS = 150_000
"""Time for which a refusal is reported. It exceeds the time until the next attempt."""


@dataclass(frozen=True, slots=True)
class BlockedReclaim:
    """Evictions of one tenant's pods that budgets forbid. `tenants` have the guarantees."""

    pods: int
    budgets: tuple[str, ...]
    tenants: tuple[TenantName, ...]
    pools: tuple[PoolName, ...]


@dataclass(frozen=True, slots=True)
class _Refusal:
    order: EvictForReclaim
    budgets: tuple[str, ...]
    at: Millis


class BlockedEvictions:
    """The refusals that are still relevant."""

    def __init__(self, registry: PodRegistry) -> None:
        self._registry = registry
        self._refusals: dict[Uid, _Refusal] = {}
        self._since: dict[str, tuple[Millis, Millis]] = {}
        """By namespace: the first and the last refusal because of a budget."""
        self._reported: dict[Uid, set[tuple[PoolName, TenantName, bool]]] = {}

    def record_refused(self, order: EvictForReclaim, tracked: PodRecord) -> Millis:
        """Record a refused eviction. Return the time until which the pod is no candidate."""
        now, budgets = (
            self._registry.usage.now,
            self._registry.budgets.budgets_covering(tracked.pod),
        )
        if order.cause is not ReclaimCause.GUARANTEE:
            return Millis(now + EXCLUDED_MS)
        if budgets:
            self._refusals[order.ref.uid] = _Refusal(order, tuple(sorted(budgets)), now)
        if order.overrides or not self._registry.usage.policy.overrides_budgets:
            return Millis(now + EXCLUDED_MS)
        if not budgets:
            return Millis(now + OVERRIDE_DELAY_MS)  # its budget may not have been seen yet
        space = order.ref.namespace
        first = self._blocked_since(space)
        self._since[space] = (now if first is None else first, now)
        return Millis(max(self._since[space][0] + OVERRIDE_DELAY_MS, now + RETRY_MS))

    def overrides_budget(self, tracked: PodRecord, cause: ReclaimCause) -> bool:
        """Return whether a pod is deleted if a budget forbids its eviction."""
        if cause is not ReclaimCause.GUARANTEE or not self._registry.usage.policy.overrides_budgets:
            return False
        first = self._blocked_since(tracked.pod.namespace)
        return first is not None and first + OVERRIDE_DELAY_MS <= self._registry.usage.now

    def record_first_report(self, order: EvictForReclaim) -> bool:
        """Return whether the beneficiary had no event about this pool and tenant. Record one."""
        informed = self._reported.setdefault(order.beneficiary.uid, set())
        override = self._registry.usage.policy.overrides_budgets
        key = (order.pool, order.tenant, override)
        new = key not in informed
        informed.add(key)
        return new

    def record_accepted(self, order: EvictForReclaim) -> None:
        """Record an accepted eviction. Events about its tenant may be emitted again."""
        self._refusals.pop(order.ref.uid, None)
        for informed in self._reported.values():
            informed -= {key for key in informed if key[1] == order.tenant}

    def forget_pod(self, uid: Uid) -> None:
        """Remove a finished or deleted pod."""
        self._refusals.pop(uid, None)
        self._reported.pop(uid, None)

    def drop_outdated(self) -> None:
        """Drop outdated records. Call it at the end of a cycle."""
        now, pods = self._registry.usage.now, self._registry.pods
        for uid in [u for u, each in self._refusals.items() if now - each.at > REPORTED_MS]:
            del self._refusals[uid]
        for space in [s for s, (_, last) in self._since.items() if now - last > UNRELATED_AFTER_MS]:
            del self._since[space]
        for uid in [u for u in self._reported if not _waits(pods.get(u))]:
            del self._reported[uid]

    def end_term(self) -> None:
        """End a leader term."""
        self._refusals.clear()
        self._since.clear()
        self._reported.clear()

    def by_tenant(self) -> Mapping[TenantName, BlockedReclaim]:
        """Return the forbidden evictions by the tenant of the pods."""
        found: dict[TenantName, list[_Refusal]] = {}
        for refusal in self._refusals.values():
            found.setdefault(refusal.order.tenant, []).append(refusal)
        return {
            tenant: BlockedReclaim(
                len(refusals),
                tuple(sorted({name for each in refusals for name in each.budgets})),
                tuple(sorted({each.order.beneficiary_tenant for each in refusals})),
                tuple(sorted({each.order.pool for each in refusals})),
            )
            for tenant, refusals in found.items()
        }

    def _blocked_since(self, space: str) -> Millis | None:
        """Return since when budgets of a namespace forbid evictions, or None."""
        first, last = self._since.get(space, (None, Millis(0)))
        return first if self._registry.usage.now - last <= UNRELATED_AFTER_MS else None


def _waits(tracked: PodRecord | None) -> bool:
    return tracked is not None and tracked.state is PodState.HELD
