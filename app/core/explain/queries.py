"""Read-only queries about the state of an engine: status, queues, usage and wait reasons."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from app.core.explain import queue_listing, status
from app.core.explain.backlog_stats import BacklogStats, WaitGroup, groups, pressure
from app.core.explain.entitlements import Entitlement, owed
from app.core.explain.evaluate import why
from app.core.explain.explain_context import ExplainContext, Position, SharedRow, workload_of
from app.core.explain.leader_state import LeaderState, leader_message
from app.core.explain.queue_listing import QueueRow
from app.core.explain.reasons import Why
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

    Answers are cached until `stale` reports a possible change.
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
        self._settled = False
        self._view: ClusterView | None = None
        self._known: ExplainContext | None = None
        self._learned: set[GangKey] = set()
        """Gangs that `_learn` compared since the last event. They may have thousands of pods."""

    def stale(self) -> None:
        """Drop cached answers, because the state may have changed."""
        self._drop_answers()
        self._learned.clear()

    def _drop_answers(self) -> None:
        self._settled = False
        self._view = self._known = None
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

    def owed(self) -> Mapping[TenantName, Entitlement]:
        """Return the used and the fair share of every tenant and user."""
        return owed(self._registry, self._tenancy, self._pools)

    def groups(self) -> tuple[WaitGroup, ...]:
        """Return the waiting pods of each queue, grouped by the rule that applies."""
        return groups(self._registry, self._managed)

    def pressure(self) -> Mapping[TenantName, BacklogStats]:
        """Return the number of queued pods and the oldest wait of each tenant."""
        return pressure(self._registry)

    def fragmentation(self) -> Mapping[PoolName, float]:
        """Return, per pool, the part of the free capacity that pods like the latest cannot use."""
        parts = {name: floor.fragmentation() for name, floor in self._pools.floors.items()}
        return {name: part for name, part in parts.items() if part is not None}

    def why(self, uid: Uid) -> Why | None:
        """Return why a held pod waits; None for any other pod."""
        tracked = self._held(uid)
        if tracked is None:
            return None
        self._learn(tracked)
        return why(tracked, self._context())

    def wait_reason(self, uid: Uid) -> str | None:
        """Return a sentence about why a held pod waits; None for any other pod."""
        found = self.why(uid)
        return found.text if found is not None else None

    def held(self, uid: Uid) -> HeldView | None:
        """Return how a held pod waits, as part of its gang if it has one; None for any other."""
        tracked = self._held(uid)
        return queue_listing.held(tracked, self._context()) if tracked is not None else None

    def listed(self, uid: Uid, position: Position) -> tuple[SharedRow, str] | None:
        """Return the listing of a held pod, and its reason with a position from the store.

        None for any other pod.
        """
        tracked = self._held(uid)
        return (
            queue_listing.row(tracked, self._context(), position) if tracked is not None else None
        )

    def queue(self, tenant: TenantName, user: UserName) -> Iterator[HeldView]:
        """Yield the waiting workloads of a user in the order of the store."""
        return queue_listing.queue(tenant, user, self._context())

    def rows(self, tenant: TenantName, user: UserName) -> Iterator[QueueRow]:
        """Yield the same workloads as `queue`, without their reasons, which take long to find."""
        return queue_listing.rows(tenant, user, self._context())

    def people(self, tenant: TenantName) -> tuple[UserView, ...]:
        """Return the users of a tenant with a weight, usage or waiting pods, by name."""
        self._settle()
        return status.people(tenant, self._registry, self._tenancy, self._managed)

    def nodes(self, pool: PoolName) -> tuple[NodeView, ...]:
        """Return the nodes of a pool, by name."""
        self._settle()
        return status.nodes(pool, self._pools, self._placement, self._managed)

    def pods_on(self, node: NodeName) -> tuple[ReleasedView, ...]:
        """Return the released pods of a node, by namespace and name."""
        self._settle()
        records = self._registry.pods.values()
        found = [
            queue_listing.released(each) for each in records if each.uses and each.node == node
        ]
        return tuple(sorted(found, key=lambda each: (each.ref.namespace, each.ref.name)))

    def allocations(self) -> Mapping[NodeName, Mapping[TenantName, Amounts]]:
        """Return the usage of each node by tenant, in managed resources."""
        self._settle()
        return status.allocations(self._registry, self._managed)

    def lineage(self, tenant: TenantName) -> tuple[TenantName, ...]:
        """Return a tenant and the tenants above it."""
        return tuple(self._tenancy.lineage(tenant))

    def ready_nodes(self, pool: PoolName) -> int:
        """Return how many nodes of a pool are ready."""
        self._settle()
        return len(self._placement.open_nodes(pool))

    def find_pod(self, namespace: str, name: str) -> Uid | None:
        """Return the uid of the managed pod with this name, or None."""
        tracked = self._registry.find_pod(namespace, name)
        return tracked.pod.uid if tracked is not None else None

    def account_of(self, uid: Uid) -> tuple[TenantName, UserName] | None:
        """Return tenant and submitter of a managed pod, or None."""
        tracked = self._registry.pods.get(uid)
        return tracked.leaf.account if tracked is not None and tracked.leaf is not None else None

    def released(self, uid: Uid) -> ReleasedView | None:
        """Return the view of a released pod; None for any other pod."""
        self._settle()
        tracked = self._registry.pods.get(uid)
        if tracked is None or not tracked.uses:
            return None
        return queue_listing.released(
            tracked, self._registry.usage.awaited(tracked.allocation) is not None
        )

    def search(self, search: Search, nodes: bool) -> Iterator[None]:
        """Run a search in portions. `nodes`: the caller may see nodes."""
        names = (node.name for pool in self._pools.pools for node in self._pools.members(pool))
        return search.steps(self._registry, self._tenancy, list(names) if nodes else ())

    def accounts(self, user: UserName) -> Mapping[TenantName, UserView]:
        """Return the tenants in which a user has usage or waiting pods, by name."""
        self._settle()
        tree, found = self._registry.usage.tree, {}
        for name in sorted(tree.tenants):
            if tree.leaf_of(name, user) is not None:
                found[name] = status.person(
                    name, user, self._registry, self._tenancy, self._managed
                )
        return {name: view for name, view in found.items() if view is not None}

    def released_of(self, user: UserName) -> tuple[Uid, ...]:
        """Return the released pods of a user, by namespace and name."""
        records = self._registry.pods.values()
        pods = [each.pod for each in records if each.uses and each.pod.user == user]
        return tuple(pod.uid for pod in sorted(pods, key=lambda pod: (pod.namespace, pod.name)))

    def leader_message(self, at: Millis, epoch: int, drift: float) -> LeaderStateMessage:
        """Return the state that only a leading engine has: see `Engine.apply_leader_state`."""
        growth = self._pools.growth
        return leader_message(
            at, epoch, drift, self._registry, self._reservations, self._resting, growth
        )

    def running(self) -> Iterator[UsageRecord]:
        """Yield the open usage records. A follower may not have their true start."""
        return self._running.runs()

    def spent(self, at: Millis) -> Mapping[AccountKey, Mapping[Resource, int]]:
        """Return resource-milliseconds of every tenant, user and pool, as fairness counts them."""
        usage = self._registry.usage
        return dict(usage.ledger.spent(max(at, usage.now)))

    def _held(self, uid: Uid) -> PodRecord | None:
        tracked = self._registry.pods.get(uid)
        return tracked if tracked is not None and not tracked.uses else None

    def _settle(self) -> None:
        """Bring all accounting up to date.

        A follower never selects workloads, and no cycle runs while a watch is silent.
        """
        if not self._settled:
            self._settled = True
            self._registry.compute_charges()
            self._registry.settle()
            self._registry.usage.tree.settle()

    def _learn(self, tracked: PodRecord) -> None:
        """Compare a pod with the anti-affinity of existing pods, if no cycle has done so."""
        self._settle()
        workload, gang = workload_of(tracked), tracked.gang
        if gang is not None and workload is gang:
            if gang.key in self._learned:
                return
            self._learned.add(gang.key)
        if self._registry.learn_walls(workload):
            self._drop_answers()

    def _context(self) -> ExplainContext:
        self._settle()
        if self._known is None:
            last_message = self._leader_state.last_message
            own = (each.owner.uid for each in self._reservations.owners())
            self._known = ExplainContext(
                self._registry,
                self._tenancy,
                self._pools,
                self._placement,
                self._reservations,
                self._kept,
                frozenset(own) | self._leader_state.owners,
                last_message.at if last_message is not None else None,
            )
        return self._known

    def _kept(
        self, pool: PoolName, queue_key: QueueKey
    ) -> tuple[TenantName, ReservedCapacity] | None:
        """Return a tenant and capacity reserved for others, by this engine or by the leader."""
        owners = [r for r in self._reservations.owners() if r.pool == pool]
        owners = [r for r in owners if r.owner.uid != queue_key.uid]
        if owners:
            return owners[0].leaf.tenant, self._reservations.withheld(owners)
        return self._leader_state.kept(pool, queue_key.uid)
