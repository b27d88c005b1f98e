"""Ports of metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from app.core.explain.backlog_stats import BacklogStats
from app.core.explain.views import ClusterView
from app.core.model import PoolName, ReleaseOutcome, Resource, TenantName


class LeaderMetrics(Protocol):
    """Metrics of the leader. Never blocks, never raises."""

    def set_leading_epoch(self, epoch: int | None) -> None:
        """Set the epoch under which this replica leads, or None if it does not lead."""

    def set_shares(self, view: ClusterView) -> None:
        """Set the usage of every tenant and pool, replacing the last values."""

    def set_backlog(
        self,
        view: ClusterView,
        pressure: Mapping[TenantName, BacklogStats],
        fragmentation: Mapping[PoolName, float],
    ) -> None:
        """Set the backlog and wait of each tenant, and the unusable share of free capacity."""

    def count_eviction(
        self, tenant: TenantName, cause: str, lost: Mapping[Resource, float]
    ) -> None:
        """Count an evicted pod. `lost` is its usage in resource-seconds, in base units."""

    def count_refused_eviction(self, tenant: TenantName) -> None:
        """Count a pod of `tenant` that a reclaim selected for eviction and that stays."""

    def count_overridden_budget(self, tenant: TenantName) -> None:
        """Count a pod of `tenant` deleted for a guarantee against its disruption budget."""

    def count_reclaim_on_cooldown(self, tenant: TenantName) -> None:
        """Count a workload of `tenant` without victims because of the reclaim cooldown."""

    def set_stale_pods(self, count: Mapping[tuple[TenantName, str], int]) -> None:
        """Set the number of stale pods by tenant and kind (a value of `StaleReason`)."""

    def set_drift(self, ratio: float) -> None:
        """Set the largest drift between sibling tenants, as a fraction of the published bound."""

    def count_release(
        self,
        tenant: TenantName,
        pool: PoolName,
        answer: ReleaseOutcome,
        seconds: float,
        waited: float | None = None,
    ) -> None:
        """Count a release, its result and duration in seconds. `waited` is the pod's wait."""

    def count_bypass(self) -> None:
        """Count a pod that runs without a gate and was never released."""

    def count_node_refusal(self, pool: PoolName, reason: str) -> None:
        """Count a released pod that a node of the pool refused. `reason` is a fixed word."""

    def count_store_failure(self, operation: str) -> None:
        """Count a store call that raised StoreError. `operation` is one of a few fixed words."""


class EnforcementMetrics(Protocol):
    """Metrics of the enforcement watchdog and canary. Never blocks, never raises."""

    def count_restore(self, kind: str) -> None:
        """Count an object of this kind that was changed by another client and restored."""

    def set_check_result(self, check: str, well: bool | None) -> None:
        """Set the result of a canary check, None if it is not running. `check` is a fixed word."""
