"""The Prometheus metrics of `/metrics`, in one registry for the process.

The number of labels is bounded: the first tenants have their own label, and all later ones share
`other`. Users have no label.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)

from app.core.explain.backlog_stats import BacklogStats
from app.core.explain.views import ClusterView
from app.core.model import Millis, PoolName, ReleaseOutcome, Resource, TenantName
from app.core.podspec.device_fractions import estimate_devices
from app.core.quantities import CPU

MOST_TENANTS = 200
MOST_RESOURCES = 50
OTHER = "other"
ANY, NONE = "any", "none"
IDLE = BacklogStats({}, None)

REGISTRY = CollectorRegistry()
ProcessCollector(registry=REGISTRY)
PlatformCollector(registry=REGISTRY)

ADMISSION_REQUESTS = Counter(
    "fairgate_admission_requests_total",
    "Admission reviews answered, by decision: ignore, hold, mend, refuse, error; in mode Observe "
    "would-hold and would-refuse.",
    ["decision"],
    registry=REGISTRY,
)
OWNER_LOOKUPS = Counter(
    "fairgate_owner_lookups_total",
    "Searches for the submitter of an object by its owner references, by result: found, none, "
    "not-trusted (the caller may not name an owner), failed.",
    ["result"],
    registry=REGISTRY,
)
ADMISSION_DURATION = Histogram(
    "fairgate_admission_duration_seconds",
    "Time from a whole review to its answer.",
    buckets=(0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1),
    registry=REGISTRY,
)
PENDING = Gauge(
    "fairgate_pending_workloads",
    "Held pods, child tenants included. Pool: the only one that can serve them; any: there are "
    "several; none: they are in no queue (a gate, an incomplete gang, a pause, no pool).",
    ["tenant", "pool"],
    registry=REGISTRY,
)
OLDEST = Gauge(
    "fairgate_oldest_pending_seconds",
    "How long the oldest workload in the queues of a tenant has been held.",
    ["tenant"],
    registry=REGISTRY,
)
USED = Gauge(
    "fairgate_used_resources",
    "Requests of released, unfinished pods, child tenants included.",
    ["tenant", "pool", "resource"],
    registry=REGISTRY,
)
SHARE = Gauge(
    "fairgate_weighted_share",
    "Dominant share of the cluster divided by the tenant's weight.",
    ["tenant"],
    registry=REGISTRY,
)
POOL_USED = Gauge(
    "fairgate_pool_used",
    "Requests of all released, unfinished pods in a pool.",
    ["pool", "resource"],
    registry=REGISTRY,
)
DRIFT = Gauge(
    "fairgate_fairness_drift_ratio",
    "Largest drift between siblings that this process measured, over "
    "the published bound; at most 1.",
    registry=REGISTRY,
)
JAIN = Gauge(
    "fairgate_jain_index",
    "Jain's index of the weighted shares of top-level tenants that have work waiting; 1: equal.",
    registry=REGISTRY,
)
FRAGMENTATION = Gauge(
    "fairgate_fragmentation_ratio",
    "Part of the free devices of a pool that pods like the latest could not use.",
    ["pool"],
    registry=REGISTRY,
)
CAPACITY = Gauge(
    "fairgate_capacity", "Capacity of a pool.", ["pool", "resource"], registry=REGISTRY
)
SILENT = Gauge(
    "fairgate_unbound_pods",
    "Released pods of a pool that the scheduler has not looked at yet.",
    ["pool"],
    registry=REGISTRY,
)
STALLED = Gauge(
    "fairgate_binding_stalled",
    "1 while the scheduler binds no released pod of a pool, so that little is released there.",
    ["pool"],
    registry=REGISTRY,
)
UNOWNED = Gauge(
    "fairgate_unowned_unbound_resources",
    "Requests of released, unbound pods without a controller.",
    ["tenant", "pool", "resource"],
    registry=REGISTRY,
)
STRAYS = Gauge(
    "fairgate_nodes_without_pool",
    "Nodes with managed resources outside all Pools. Pods are not released to them.",
    registry=REGISTRY,
)
RELEASES = Counter(
    "fairgate_release_total",
    "Attempted releases, by result.",
    ["tenant", "pool", "result"],
    registry=REGISTRY,
)
RELEASE_DURATION = Histogram(
    "fairgate_release_duration_seconds",
    "Time from the decision to release a pod to a certain answer.",
    buckets=(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 120),
    registry=REGISTRY,
)
WAITED = Histogram(
    "fairgate_wait_seconds",
    "How long a released pod had been held.",
    ["tenant"],
    buckets=(1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 7 * 24 * 3600),
    registry=REGISTRY,
)
RECLAIMED = Counter(
    "fairgate_reclaimed_total",
    "Evicted pods, by tenant and reason: unbound, not bound in time; bypass, not released by "
    "Fairgate; guarantee and others, for another workload.",
    ["tenant", "reason"],
    registry=REGISTRY,
)
EVICTED_SECONDS = Counter(
    "fairgate_evicted_resource_seconds_total",
    "Use that was lost because its pod was evicted.",
    ["resource"],
    registry=REGISTRY,
)
EVICTED_GPU_SECONDS = Counter(
    "fairgate_evicted_gpu_seconds_total",
    "GPU time that evictions lost: since the start of the pod, or at most since its last "
    "declared checkpoint. Tenant and reason are those of fairgate_reclaimed_total.",
    ["tenant", "reason"],
    registry=REGISTRY,
)
EVICTIONS_REFUSED = Counter(
    "fairgate_evictions_refused_total",
    "Pods that were to be evicted for another's sake and stay: a disruption "
    "budget forbids it, mostly.",
    ["tenant"],
    registry=REGISTRY,
)
BUDGETS_OVERRIDDEN = Counter(
    "fairgate_budgets_overridden_total",
    "Pods that were deleted for a guarantee because a disruption budget forbade their eviction.",
    ["tenant"],
    registry=REGISTRY,
)
RECLAIM_BLOCKED = Gauge(
    "fairgate_reclaim_blocked_pods",
    "Pods of a tenant that a guarantee needs, and that a disruption budget keeps from eviction.",
    ["tenant"],
    registry=REGISTRY,
)
STALE_PODS = Gauge(
    "fairgate_zombie_pods",
    "Stale pods: ownerless, held though their controller is gone; idle, their devices are unused.",
    ["tenant", "kind"],
    registry=REGISTRY,
)
LOOPS_REFUSED = Counter(
    "fairgate_reclaim_loops_refused_total",
    "Workloads for which no pod was evicted, because the reverse eviction "
    "happened within the last hour.",
    ["tenant"],
    registry=REGISTRY,
)
ENGINE_SECONDS = Histogram(
    "fairgate_engine_seconds",
    "Time that the engine took for a pass and the events before it.",
    buckets=(0.0001, 0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5),
    registry=REGISTRY,
)
SLOW_STEPS = Counter(
    "fairgate_slow_steps_total",
    "Steps that took longer than 100 ms, by kind: an event or a pass of the engine, or `page of`, "
    "`decode` or `read` with the source of an object.",
    ["step"],
    registry=REGISTRY,
)
WATCH_LAG = Gauge(
    "fairgate_watch_lag_seconds",
    "Since the API server said anything on the watch that is silent for longest; it says something "
    "each minute at least.",
    registry=REGISTRY,
)
WATCH_INTERRUPTIONS = Counter(
    "fairgate_watch_interruptions_total",
    "Watches that ended before their time and were resumed, by kind of object. A busy API server "
    "closes watches; no change is lost.",
    ["source"],
    registry=REGISTRY,
)
BYPASSED = Counter(
    "fairgate_bypassed_pods_total",
    "Pods found past the gate that were never released, once in each term of a leader.",
    registry=REGISTRY,
)
NODE_REFUSALS = Counter(
    "fairgate_node_refusals_total",
    "Released pods that the kubelet of their node refused, by the pool and the reason.",
    ["pool", "reason"],
    registry=REGISTRY,
)
LEADER = Gauge("fairgate_leader", "1 where this replica leads.", registry=REGISTRY)
EPOCH = Gauge("fairgate_leader_epoch", "Epoch this replica last led under.", registry=REGISTRY)
STORE_ERRORS = Counter(
    "fairgate_store_errors_total", "Calls of Redis that failed.", ["operation"], registry=REGISTRY
)
CERTIFICATE_EXPIRY = Gauge(
    "fairgate_certificate_expiry_seconds",
    "Until the serving certificate in use ends; NaN without a certificate.",
    registry=REGISTRY,
)
CERTIFICATE_EXPIRY.set(math.nan)

RESTORED = Counter(
    "fairgate_enforcement_restored_total",
    "Webhook configurations, admission policies and the like that somebody touched "
    "and that were put back.",
    ["kind"],
    registry=REGISTRY,
)
CANARY_FAILURES = Counter(
    "fairgate_canary_failures_total",
    "Trials that showed a hole: hold, a pod was not held; create, one that may not be made was "
    "not refused; release, a gate could be taken off.",
    ["check"],
    registry=REGISTRY,
)
CANARY_OK = Gauge(
    "fairgate_canary_ok", "1 where the latest trial went well.", ["check"], registry=REGISTRY
)


class PrometheusEnforcement:
    """Implements `ports.metrics.EnforcementMetrics` on the metrics above."""

    def count_restore(self, kind: str) -> None:
        """Count an object of this kind that was changed from outside, and restored."""
        RESTORED.labels(kind).inc()

    def set_check_result(self, check: str, well: bool | None) -> None:
        """Record the result of a canary check; None: the check is off, so remove its gauge."""
        if well is None:
            with contextlib.suppress(KeyError):
                CANARY_OK.remove(check)
            return
        CANARY_OK.labels(check).set(well)
        CANARY_FAILURES.labels(check).inc(not well)


class LabelNames:
    """Returns the first `max_names` names as labels, and `other` for all later names."""

    def __init__(self, max_names: int = MOST_TENANTS) -> None:
        self._max_names = max_names
        self._names: set[str] = set()

    def label(self, name: str) -> str:
        """Return the label of a name. It never changes."""
        if name not in self._names:
            if len(self._names) >= self._max_names:
                return OTHER
            self._names.add(name)
        return name


class PrometheusLeader:
    """Implements `ports.metrics.LeaderMetrics` on the metrics above."""

    def __init__(
        self, most_tenants: int = MOST_TENANTS, clock: Callable[[], float] = time.time
    ) -> None:
        """`clock` returns seconds since the Unix epoch."""
        self._tenants = LabelNames(most_tenants)
        self._resources = LabelNames(MOST_RESOURCES)
        self._clock = clock

    def set_leading_epoch(self, epoch: int | None) -> None:
        """Record that this replica leads under `epoch`; None: it does not, so clear the gauges."""
        LEADER.set(0 if epoch is None else 1)
        if epoch is not None:
            EPOCH.set(epoch)
            return
        shown = (PENDING, OLDEST, USED, SHARE, CAPACITY, POOL_USED, FRAGMENTATION)
        for gauge in (*shown, SILENT, STALLED, UNOWNED, RECLAIM_BLOCKED, STALE_PODS):
            gauge.clear()
        DRIFT.set(0)
        STRAYS.set(0)
        JAIN.set(1)

    def set_shares(self, view: ClusterView) -> None:
        """Set the gauges of every tenant and pool. Remove those of deleted ones."""
        used: dict[tuple[str, ...], float] = defaultdict(float)
        shares: dict[tuple[str, ...], float] = {}
        blocked: dict[tuple[str, ...], float] = defaultdict(float)
        for name, tenant in view.tenants.items():
            label = self._tenants.label(name)
            for pool, amounts in tenant.used.items():
                offered = view.pools[pool].capacity if pool in view.pools else {}
                for resource, value in amounts.items():
                    if len(amounts) > MOST_RESOURCES and resource not in offered:
                        continue  # users can request any number of resource names
                    used[label, pool, resource] += _unit(resource, value)
            if tenant.blocked_reclaims is not None:
                blocked[label,] += tenant.blocked_reclaims.pods
            # A sum of weighted shares has no meaning, so the label `other` has no share.
            if label != OTHER and tenant.weight:
                shares[label,] = float(tenant.share / tenant.weight)
        capacity: dict[tuple[str, ...], float] = {}
        taken: dict[tuple[str, ...], float] = {}
        held: dict[tuple[str, ...], float] = defaultdict(float)
        for pool, seen in view.pools.items():
            for name, amounts in seen.unowned_usage.items():
                for resource, value in amounts.items():
                    where = self._tenants.label(name), str(pool), str(resource)
                    held[where] += _unit(resource, value)
            for resource, value in seen.capacity.items():
                capacity[str(pool), str(resource)] = _unit(resource, value)
                taken[str(pool), str(resource)] = _unit(resource, seen.used.get(resource, 0))
        for gauge, values in ((USED, used), (SHARE, shares), (RECLAIM_BLOCKED, blocked)):
            _replace(gauge, values)
        _replace(UNOWNED, held)
        _replace(SILENT, {(str(p),): float(seen.silent_pods) for p, seen in view.pools.items()})
        _replace(
            STALLED,
            {(str(p),): float(seen.stalled_since is not None) for p, seen in view.pools.items()},
        )
        _replace(CAPACITY, capacity)
        _replace(POOL_USED, taken)
        JAIN.set(jain(view))
        STRAYS.set(len(view.nodes_without_pool))

    def set_backlog(
        self,
        view: ClusterView,
        pressure: Mapping[TenantName, BacklogStats],
        fragmentation: Mapping[PoolName, float],
    ) -> None:
        """Set the gauges of pending pods, of the oldest waits and of fragmentation."""
        pending: dict[tuple[str, ...], float] = defaultdict(float)
        oldest: dict[str, Millis] = {}
        for name, tenant in view.tenants.items():
            label = self._tenants.label(name)
            queued = pressure.get(name, IDLE)
            for pool, count in queued.pods.items():
                pending[label, ANY if pool is None else str(pool)] += count
            aside = tenant.pending - sum(queued.pods.values())
            if aside > 0 or not queued.pods:
                pending[label, NONE] += max(0, aside)
            if queued.oldest is not None:
                oldest[label] = min(queued.oldest, oldest.get(label, queued.oldest))
        _replace(PENDING, pending)
        _replace(FRAGMENTATION, {(str(pool),): part for pool, part in fragmentation.items()})
        OLDEST.clear()
        for label, since in oldest.items():
            OLDEST.labels(label).set_function(partial(self._age, since))

    def _age(self, since: Millis) -> float:
        return max(0.0, self._clock() - since / 1000)

    def count_eviction(
        self, tenant: TenantName, cause: str, lost: Mapping[Resource, float]
    ) -> None:
        """Count an evicted pod. `lost`: the resource-seconds that it had used, in base units."""
        label = self._tenants.label(tenant)
        RECLAIMED.labels(label, cause).inc()
        milliseconds = {resource: round(1000 * seconds) for resource, seconds in lost.items()}
        EVICTED_GPU_SECONDS.labels(label, cause).inc(float(estimate_devices(milliseconds) / 1000))
        for resource, seconds in lost.items():
            EVICTED_SECONDS.labels(self._resources.label(resource)).inc(_unit(resource, seconds))

    def count_refused_eviction(self, tenant: TenantName) -> None:
        """Count a refused eviction of a reclaim. `tenant`: the pod's tenant."""
        EVICTIONS_REFUSED.labels(self._tenants.label(tenant)).inc()

    def count_overridden_budget(self, tenant: TenantName) -> None:
        """Count a pod deleted for a guarantee against its budget. `tenant`: the pod's tenant."""
        BUDGETS_OVERRIDDEN.labels(self._tenants.label(tenant)).inc()

    def count_reclaim_on_cooldown(self, tenant: TenantName) -> None:
        """Count a reclaim that the cooldown refused. `tenant`: the tenant that requested it."""
        LOOPS_REFUSED.labels(self._tenants.label(tenant)).inc()

    def set_stale_pods(self, count: Mapping[tuple[TenantName, str], int]) -> None:
        """Set the number of orphaned and idle pods of each tenant."""
        shown: dict[tuple[str, ...], float] = defaultdict(float)
        for (tenant, kind), number in count.items():
            shown[self._tenants.label(tenant), kind] += number
        _replace(STALE_PODS, shown)

    def set_drift(self, ratio: float) -> None:
        """Set the largest drift between siblings, as a fraction of the published bound."""
        DRIFT.set(ratio)

    def count_release(
        self,
        tenant: TenantName,
        pool: PoolName,
        answer: ReleaseOutcome,
        seconds: float,
        waited: float | None = None,
    ) -> None:
        """Count a release that ended in `answer` after `seconds`. `waited`: the pod's wait."""
        label = self._tenants.label(tenant)
        RELEASES.labels(label, pool, answer.value).inc()
        RELEASE_DURATION.observe(seconds)
        if waited is not None and answer is ReleaseOutcome.RELEASED:
            WAITED.labels(label).observe(waited)

    def count_bypass(self) -> None:
        """Count a pod without the gate that was never released."""
        BYPASSED.inc()

    def count_node_refusal(self, pool: PoolName, reason: str) -> None:
        """Count a released pod that a node of the pool refused."""
        NODE_REFUSALS.labels(pool, reason).inc()

    def count_store_failure(self, operation: str) -> None:
        """Count a call of the store that raised StoreError."""
        STORE_ERRORS.labels(operation).inc()


def _replace(gauge: Gauge, values: Mapping[tuple[str, ...], float]) -> None:
    # There is no await between clear and the last set, so a scrape never sees a partial state.
    gauge.clear()
    for labels, value in values.items():
        gauge.labels(*labels).set(value)


def jain(view: ClusterView) -> float:
    """Return Jain's index of top-level tenants with pending pods; 1 if all shares are 0."""
    shares = [
        float(tenant.share / tenant.weight)
        for tenant in view.tenants.values()
        if tenant.parent is None and tenant.pending and tenant.weight
    ]
    squares = sum(share * share for share in shares)
    return sum(shares) ** 2 / (len(shares) * squares) if squares else 1.0


def _unit(resource: Hashable, value: float) -> float:
    """Return base units in the convention of Prometheus: cores, not millicores."""
    return value / 1000 if resource == CPU else float(value)
