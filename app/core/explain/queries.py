"""Read-only queries about the state of an engine: status, queues, usage and wait reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from app.core.explain import queue_listing, status
from app.core.explain.backlog_stats import BacklogStats, WaitGroup, backlog_by_tenant, wait_groups
from app.core.explain.entitlements import Entitlement, fair_shares
from app.core.explain.evaluate import explain_wait
from app.core.explain.explain_context import ExplainContext, Position, SharedRow, workload_of
from app.core.explain.leader_state import LeaderState, leader_message
from app.core.explain.queue_listing import PageMark, QueueRow
from app.core.explain.reasons import WaitExplanation
from app.core.explain.search import Search
from app.core.explain.snapshot import Snapshot, snapshot
from app.core.explain.views import (
    ClusterView,
    HeldView,
    LeaderStateMessage,
    NodeView,
    ReleasedView,
    UserView,
)
from app.core.fairshare.tenants import TenantDirectory
from app.core.fairshare.usage_record import UsageRecord
from app.core.fairshare.usage_totals import AccountKey
from app.core.fairshare.user_queue import QueueKey
from app.core.lifecycle.pod_record import GangKey, PodRecord
from app.core.lifecycle.pod_registry import PodRegistry
from app.core.model import (
    Amounts,
    Millis,
    NodeName,
    PoolName,
    Resource,
    TenantName,
    Uid,
    UserName,
)
from app.core.placement.allocations import Allocations, ReservedCapacity
from app.core.placement.pools import Pools
from app.core.policy import Mode
from app.core.pricing.share_units import Scale
from app.core.quantities import ManagedResources
from app.core.scheduling.blocked_evictions import BlockedReclaim
from app.core.scheduling.release_backoff import ReleaseBackoff
from app.core.scheduling.reservation import Reservations
from app.core.usage.tracker import UsageTracker


class EngineQueries:
    """Answers as of the last event. Call it after a scheduling cycle.

    Answers are cached until `invalidate_cache` reports a possible change.
    """

    def __init__(
        self,
        registry: PodRegistry,
        tenancy: TenantDirectory,
        pools: Pools,
        placement: Allocations,
        reservations: Reservations,
        managed: ManagedResources,
        leader_state: LeaderState,
        resting: ReleaseBackoff,
        running: UsageTracker,
        blocked: Callable[[], Mapping[TenantName, BlockedReclaim]],
    ) -> None:
        self._registry = registry
        self._tenancy = tenancy
        self._pools = pools
        self._placement = placement
        self._reservations = reservations
        self._managed = managed
        self._leader_state = leader_state
        self._resting = resting
        self._running = running
        self._blocked = blocked
        self.revision = 0
        """Grows whenever an answer may change."""
        self._is_settled = False
        self._view: ClusterView | None = None
        self._cached_context: ExplainContext | None = None
        self._compared_gangs: set[GangKey] = set()
        """Gangs that `_learn_anti_affinity` compared since the last event. They may have thousands
        of pods.
        """

    def invalidate_cache(self) -> None:
        """Drop cached answers, because the state may have changed."""
        self._drop_answers()
        self._compared_gangs.clear()

    def _drop_answers(self) -> None:
        self._is_settled = False
        self._view = self._cached_context = None
        self.revision += 1

    def view(self) -> ClusterView:
        """Return the present status of tenants and pools."""
        self._settle()
        if self._view is None:
            self._view = status.overview(
                self._registry,
                self._tenancy,
                self._pools,
                self._placement,
                self._managed,
                self._blocked(),
            )
        return self._view

    def snapshot(self, at: Millis) -> Snapshot:
        """Return the input of a forecast, as of a time not before the last event."""
        return snapshot(at, self._registry, self._tenancy, self._pools, self._managed)

    def mode(self) -> Mode:
        """Return whether Fairgate enforces or observes."""
        return self._registry.usage.policy.mode

    def scale(self) -> Scale:
        """Return the scale in which shares are measured."""
        return self._registry.usage.tree.scale

    def fair_shares(self) -> Mapping[TenantName, Entitlement]:
        """Return the used and the fair share of every tenant and user."""
        return fair_shares(self._registry, self._tenancy, self._pools)

    def wait_groups(self) -> tuple[WaitGroup, ...]:
        """Return the waiting pods of each queue, grouped by the rule that applies."""
        return wait_groups(self._registry, self._managed)

    def backlog_by_tenant(self) -> Mapping[TenantName, BacklogStats]:
        """Return the number of queued pods and the oldest wait of each tenant."""
        return backlog_by_tenant(self._registry)

    def fragmentation(self) -> Mapping[PoolName, float]:
        """Return, per pool, the part of the free capacity that pods like the latest cannot use."""
        parts = {name: floor.fragmentation() for name, floor in self._pools.nodes_by_pool.items()}
        return {name: part for name, part in parts.items() if part is not None}

    def explain_wait(self, uid: Uid) -> WaitExplanation | None:
        """Return why a held pod waits; None for any other pod."""
        tracked = self._held_record(uid)
        if tracked is None:
            return None
        self._learn_anti_affinity(tracked)
        return explain_wait(tracked, self._context())

    def wait_reason(self, uid: Uid) -> str | None:
        """Return a sentence about why a held pod waits; None for any other pod."""
        found = self.explain_wait(uid)
        return found.text if found is not None else None

    def held_view(self, uid: Uid) -> HeldView | None:
        """Return how a held pod waits, as part of its gang if it has one; None for any other."""
        tracked = self._held_record(uid)
        return queue_listing.held_view(tracked, self._context()) if tracked is not None else None

    def listed_row(self, uid: Uid, position: Position) -> tuple[SharedRow, str] | None:
        """Return the listing of a held pod, and its reason with a position from the store.

        None for any other pod.
        """
        tracked = self._held_record(uid)
        return (
            queue_listing.listed_row(tracked, self._context(), position)
            if tracked is not None
            else None
        )

    def waiting_workloads(self, tenant: TenantName, user: UserName) -> Iterator[HeldView]:
        """Yield the waiting workloads of a user in the order of the store."""
        return queue_listing.waiting_workloads(tenant, user, self._context())

    def waiting_rows(
        self, tenant: TenantName, user: UserName, after: PageMark | None
    ) -> Iterator[QueueRow]:
        """Yield the workloads of `waiting_workloads` behind a mark (None: all), without their
        reasons, which take long to find.
        """
        return queue_listing.waiting_rows(tenant, user, after, self._context())

    def user_views(self, tenant: TenantName) -> tuple[UserView, ...]:
        """Return the users of a tenant with a weight, usage or waiting pods, by name."""
        self._settle()
        return status.user_views(tenant, self._registry, self._tenancy, self._managed)

    def nodes(self, pool: PoolName) -> tuple[NodeView, ...]:
        """Return the nodes of a pool, by name."""
        self._settle()
        return status.node_views(pool, self._pools, self._placement, self._managed)

    def pods_on(self, node: NodeName) -> tuple[ReleasedView, ...]:
        """Return the released pods of a node, by namespace and name."""
        self._settle()
        records = self._registry.pods.values()
        found = [
            queue_listing.released_view(each)
            for each in records
            if each.counts_as_used and each.node == node
        ]
        return tuple(sorted(found, key=lambda each: (each.ref.namespace, each.ref.name)))

    def usage_by_node(self) -> Mapping[NodeName, Mapping[TenantName, Amounts]]:
        """Return the usage of each node by tenant, in managed resources."""
        self._settle()
        return status.usage_by_node(self._registry, self._managed)

    def lineage(self, tenant: TenantName) -> tuple[TenantName, ...]:
        """Return a tenant and the tenants above it."""
        return tuple(self._tenancy.lineage(tenant))

    def ready_nodes(self, pool: PoolName) -> int:
        """Return how many nodes of a pool are ready."""
        self._settle()
        return len(self._placement.ready_nodes(pool))

    def find_pod(self, namespace: str, name: str) -> Uid | None:
        """Return the uid of the managed pod with this name, or None."""
        tracked = self._registry.find_pod(namespace, name)
        return tracked.pod.uid if tracked is not None else None

    def account_of(self, uid: Uid) -> tuple[TenantName, UserName] | None:
        """Return tenant and submitter of a managed pod, or None."""
        tracked = self._registry.pods.get(uid)
        return tracked.leaf.account if tracked is not None and tracked.leaf is not None else None

    def released_view(self, uid: Uid) -> ReleasedView | None:
        """Return the view of a released pod; None for any other pod."""
        self._settle()
        tracked = self._registry.pods.get(uid)
        if tracked is None or not tracked.counts_as_used:
            return None
        return queue_listing.released_view(
            tracked, self._registry.usage.awaited_pool(tracked.allocation) is not None
        )

    def search(self, search: Search, nodes: bool) -> Iterator[None]:
        """Run a search in portions. `nodes`: the caller may see nodes."""
        names = (node.name for pool in self._pools.pools for node in self._pools.members(pool))
        return search.run_in_steps(self._registry, self._tenancy, list(names) if nodes else ())

    def tenants_of_user(self, user: UserName) -> Mapping[TenantName, UserView]:
        """Return the tenants in which a user has usage or waiting pods, by name."""
        self._settle()
        tree, found = self._registry.usage.tree, {}
        for name in sorted(tree.tenants):
            if tree.find_user(name, user) is not None:
                found[name] = status.user_view(
                    name, user, self._registry, self._tenancy, self._managed
                )
        return {name: view for name, view in found.items() if view is not None}

    def released_pods_of(self, user: UserName) -> tuple[Uid, ...]:
        """Return the released pods of a user, by namespace and name."""
        records = self._registry.pods.values()
        pods = [each.pod for each in records if each.counts_as_used and each.pod.user == user]
        return tuple(pod.uid for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name)))

    def leader_message(self, at: Millis, epoch: int, drift: float) -> LeaderStateMessage:
        """Return the state that only a leading engine has: see `Engine.apply_leader_state`."""
        growth = self._pools.autoscaling_backoff
        return leader_message(
            at, epoch, drift, self._registry, self._reservations, self._resting, growth
        )

    def open_usage_records(self) -> Iterator[UsageRecord]:
        """Yield the open usage records. A follower may not have their true start."""
        return self._running.open_records()

    def usage_totals(self, at: Millis) -> Mapping[AccountKey, Mapping[Resource, int]]:
        """Return resource-milliseconds of every tenant, user and pool, as fairness counts them."""
        usage = self._registry.usage
        return dict(usage.totals.all_totals(max(at, usage.now)))

    def _held_record(self, uid: Uid) -> PodRecord | None:
        tracked = self._registry.pods.get(uid)
        return tracked if tracked is not None and not tracked.counts_as_used else None

    def _settle(self) -> None:
        """Bring all accounting up to date.

        A follower never selects workloads, and no cycle runs while a watch is silent.
        """
        if not self._is_settled:
            self._is_settled = True
            self._registry.update_stale_charges()
            self._registry.settle()
            self._registry.usage.tree.update_order()

    def _learn_anti_affinity(self, tracked: PodRecord) -> None:
        """Compare a pod with the anti-affinity of existing pods, if no cycle has done so."""
        self._settle()
        workload, gang = workload_of(tracked), tracked.gang
        if gang is not None and workload is gang:
            if gang.key in self._compared_gangs:
                return
            self._compared_gangs.add(gang.key)
        if self._registry.update_exclusions(workload, compares_claims=False):
            self._drop_answers()

    def _context(self) -> ExplainContext:
        self._settle()
        if self._cached_context is None:
            last_message = self._leader_state.last_message
            own = (
                workload.uid
                for each in self._reservations.exclusive_and_active()
                for workload in each.workloads
            )
            self._cached_context = ExplainContext(
                self._registry,
                self._tenancy,
                self._pools,
                self._placement,
                self._reservations,
                self._reserved_for_others,
                frozenset(own) | self._leader_state.reservation_owners,
                last_message.at if last_message is not None else None,
            )
        return self._cached_context

    def _reserved_for_others(
        self, pool: PoolName, queue_key: QueueKey
    ) -> tuple[TenantName, ReservedCapacity] | None:
        """Return a tenant and capacity reserved for others, by this engine or by the leader."""
        owners = [r for r in self._reservations.exclusive_and_active() if r.pool == pool]
        owners = [r for r in owners if not r.is_for(queue_key.uid)]
        if owners:
            return owners[0].leaf.tenant, self._reservations.total_capacity(owners)
        return self._leader_state.reserved_for_others(pool, queue_key.uid)
