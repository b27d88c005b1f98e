"""The managed pods we know of, each in its place: in a queue, or on the account of a pool.

Places follow from what was observed. A change of tenants, pools or nodes places every pod anew,
so what is counted always equals a recount. The roster decides nothing.
"""

from __future__ import annotations

from collections import Counter

from app.core.asks.terms import Terms
from app.core.fair.backlog import turn_of
from app.core.fair.branch import Leaf
from app.core.fair.order import NEVER
from app.core.fair.tenancy import Tenancy
from app.core.fair.usage import Usage
from app.core.model import (
    GATE,
    Bystander,
    Kind,
    Millis,
    NodeName,
    Pod,
    PoolName,
    Tenant,
    TenantName,
    Uid,
    Wait,
)
from app.core.places.pools import Pools
from app.core.places.reach import terms_of
from app.core.places.scale import Scale
from app.core.places.shapes import Shapes
from app.core.pods.claimants import Claimants, Use
from app.core.pods.gangs import Gangs
from app.core.pods.life import Life
from app.core.pods.tracked import Gang, Tracked, Workload, kind_of, same_use, stamp_of
from app.core.policy import Policy

MOST_SHAPES = 10_000
"""Shapes remembered of pods that are gone."""


class Roster:
    """Keeps every managed pod in its place. See the module."""

    def __init__(self, tenancy: Tenancy, pools: Pools, usage: Usage, claimants: Claimants) -> None:
        self.pods: dict[Uid, Tracked] = {}
        self.idle: dict[Uid, Tracked] = {}
        """Held pods that ask for nothing managed, as their claims have shown."""
        self.pending: Counter[TenantName] = Counter()
        self.waiting: dict[Leaf, dict[Uid, Tracked]] = {}
        """Pods that are not released for certain, by user: those that `pending` counts."""
        self.running: dict[Leaf, dict[Uid, Tracked]] = {}
        self.touched: dict[Uid, Tracked] = {}
        self.usage = usage
        self._tenancy = tenancy
        self._pools = pools
        self._claimants = claimants
        self._shapes = Shapes()
        self.gangs = Gangs(usage, self._shapes)
        self.banned: frozenset[Kind] = frozenset()
        """The kinds of pods that are kept out of the order."""
        self._changed: list[Tracked] = []
        self._pinned: dict[NodeName, dict[Uid, Tracked]] = {}
        """Whose place follows from the pool of a node: who may go there only, or is there."""
        self._names: dict[tuple[str, str], Uid] = {}
        self._seen: tuple[int, int] = (-1, -1)
        self._dirty = True

    def put_tenant(self, tenant: Tenant) -> None:
        """A Tenant exists in this state."""
        if self._tenancy.tenants.get(tenant.name) != tenant:
            self._tenancy.put(tenant)
            self._dirty = True

    def drop_tenant(self, name: TenantName) -> None:
        """A Tenant exists no more."""
        if name in self._tenancy.tenants:
            self._tenancy.drop(name)
            self._dirty = True

    def put_policy(self, policy: Policy) -> None:
        """The Policy is this from now on."""
        if policy != self.usage.policy:
            self.usage.policy = policy
            self._dirty = True

    def find(self, namespace: str, name: str) -> Tracked | None:
        """Return the pod of this name, the newest if an older one has not gone yet; or None."""
        uid = self._names.get((namespace, name))
        return self.pods.get(uid) if uid is not None else None

    def add(self, pod: Pod, life: Life) -> Tracked:
        """Take up a pod."""
        turn = turn_of(pod.priority, pod.since, pod.uid)
        tracked = self.pods[pod.uid] = Tracked(pod, life, stamp_of(pod.release), turn)
        if life is Life.USING:
            tracked.released = pod.started
            if pod.started is not None and tracked.stamp > NEVER:
                tracked.entered = min(pod.started, self.usage.now)
        tracked.pod = self._reckoned(tracked, pod, life)
        self._names[pod.namespace, pod.name] = pod.uid
        self._place(tracked)
        return tracked

    def change(self, tracked: Tracked, pod: Pod, life: Life) -> None:
        """A pod we know was seen, or became, something else."""
        pod = self._reckoned(tracked, pod, life)
        if tracked.pod == pod and tracked.life is life:
            return
        stays = life is Life.USING and tracked.uses and tracked.stay and same_use(tracked, pod)
        tracked.heed(pod)
        if not stays:
            self._unplace(tracked)
        elif tracked.life is not Life.USING and tracked.leaf is not None:
            self._pend(tracked, tracked.leaf, -1)
            self.touched[pod.uid] = tracked
        tracked.pod, tracked.life = pod, life
        tracked.stamp = max(tracked.stamp, stamp_of(pod.release))
        if life is Life.USING and tracked.released is None:
            tracked.released = pod.started or self.usage.now  # somebody else released it
        if not stays:
            tracked.turn = turn_of(pod.priority, pod.since, pod.uid)
            self._place(tracked)
        elif tracked.stay is not None and pod.terminating:
            self.usage.part(tracked.stay)
        self.gangs.seen(tracked)

    def release(self, tracked: Tracked, at: NodeName | None, terms: Terms | None = None) -> None:
        """A pod that waited begins to use the pool of its intent, at a node, on these terms."""
        self._unplace(tracked)
        tracked.aimed, tracked.ordered = at, terms
        tracked.life, tracked.released = Life.RELEASING, self.usage.now
        tracked.pod = self._reckoned(tracked, tracked.pod, tracked.life)
        self._place(tracked, at)
        self.gangs.seen(tracked)

    def reckon(self) -> None:
        """Charge anew the pods whose claims changed, or are used by others than before."""
        while stale := self._claimants.take_stale():
            for tracked in [self.pods[uid] for uid in stale if uid in self.pods]:
                self.change(tracked, tracked.pod, tracked.life)

    def rest(self, tracked: Tracked, rests: bool) -> None:
        """Keep a held pod out of the order for a while, or let it in again."""
        self._unplace(tracked)
        tracked.rests = rests
        self._place(tracked)

    def _move(self, tracked: Tracked) -> None:
        """Other pools can serve a pod than before."""
        expected = tracked.node
        self._unplace(tracked)
        self._place(tracked, expected)

    def ban(self, kinds: frozenset[Kind]) -> None:
        """Keep held pods of these kinds, and of no others, out of the order."""
        changed, self.banned = kinds ^ self.banned, kinds
        if not changed:
            return
        for tracked in self.pods.values():
            leaf = tracked.leaf
            if leaf is None or tracked.life is not Life.HELD:
                continue
            if kind_of(leaf, tracked.pod) in changed:
                self._unplace(tracked)
                self._place(tracked)

    def remove(self, tracked: Tracked) -> None:
        """Drop a pod. What ended early may be charged for longer, unless it was evicted."""
        least = self.usage.policy.min_charge
        until = None
        if least and tracked.released is not None and not tracked.evicted:
            until = Millis(tracked.released + least)
        self._unplace(tracked, until)
        self.gangs.leave(tracked)
        self._claimants.leave(tracked.pod.uid)
        del self.pods[tracked.pod.uid]
        if self._names.get((tracked.pod.namespace, tracked.pod.name)) == tracked.pod.uid:
            del self._names[tracked.pod.namespace, tracked.pod.name]
        self.touched.pop(tracked.pod.uid, None)

    def workload(self, uid: Uid) -> Workload | None:
        """Return what waits under this uid as one, or None."""
        gang = self.gangs.waiting.get(uid)
        if gang is not None:
            return gang
        tracked = self.pods.get(uid)
        return tracked if tracked is not None and tracked.shape is not None else None

    def half_gangs(self) -> list[Gang]:
        """Return the gangs whose rest is to be released, the first in turn first."""
        half = self.gangs.half
        return [half[uid] for uid in sorted(half, key=lambda uid: (half[uid].turn, uid))]

    def settle(self) -> None:
        """Bring every place up to date.

        Costs more than a few steps only after tenants, pools or nodes changed.
        """
        pools = self._pools
        pools.settle()
        if max(len(self._shapes), pools.answers) > 2 * len(self.pods) + MOST_SHAPES:
            self._dirty = True  # only a recount tells which of them are still in use
        # Counting anew may itself show another capacity, hence a loop; its second turn is cheap.
        while self._dirty or self._seen != (pools.version, pools.resized):
            scale = pools.scale()
            # What does not count was not even noted.
            same = self._seen[0] == pools.version and scale.counts_alike(self.usage.tree.scale)
            stays = not self._dirty and same
            self._seen = (pools.version, pools.resized)
            if not stays:
                self._recount(scale)
            elif scale != self.usage.tree.scale:
                self.usage.tree.rescale(scale)
        for name in pools.take_squeezed():
            self.usage.reconsider(name)
        self.usage.land()
        for name in pools.take_moved():
            for tracked in list(self._pinned.get(name, {}).values()):
                self._move(tracked)  # to the pool that its node is in from now on
        rerouted = pools.take_rerouted()
        for tracked in list(self.pods.values()) if rerouted else ():
            pod = tracked.pod
            placed = pod.node or pod.only or (tracked.uses and pod.pool in pools.pools)
            if not placed and terms_of(pod) in rerouted:
                self._move(tracked)
        for tracked in self.gangs.take_surplus():
            if self.pods.get(tracked.pod.uid) is tracked and tracked.life is Life.HELD:
                self._move(tracked)
        self._changed += self.gangs.settle()

    def take_changed(self) -> list[Tracked]:
        """Return, once, the held pods that wait for another reason than before."""
        changed, self._changed = self._changed, []
        held = [t for t in changed if self.pods.get(t.pod.uid) is t and t.life is Life.HELD]
        news = [t for t in held if t.told is not t.wait]
        for tracked in news:
            tracked.told = tracked.wait
        return news

    def _recount(self, scale: Scale) -> None:
        """Place every pod anew, as if all had just been seen."""
        nodes = {t.pod.uid: t.node for t in self.pods.values() if t.stay is not None}
        self.usage.replant(scale)
        self.pending.clear()
        self.waiting.clear()
        self.running.clear()
        self._shapes.clear()
        self._pools.forget_answers()
        self.gangs.clear()
        self._pinned.clear()
        self.idle.clear()
        self._dirty = False
        # What is bound counts first: the others are expected where there is room beside it.
        for tracked in sorted(self.pods.values(), key=lambda t: t.pod.node is None):
            tracked.leaf = tracked.stay = None
            self._place(tracked, nodes.get(tracked.pod.uid))
        self.usage.resume()

    def _place(self, tracked: Tracked, node: NodeName | None = None) -> None:
        if self._dirty or not self._pools.settled:
            self._dirty = True
            return
        pod = tracked.pod
        name = self._tenancy.tenant_of(pod.namespace)
        tenant = self._tenancy.tenants.get(name)
        leaf = tracked.leaf = self.usage.leaf(name, pod.user)
        self.touched[pod.uid] = tracked
        if pod.gang and tracked.gang is None:
            self.gangs.join(tracked)
        if tracked.life is Life.HELD:
            self._wait(tracked, leaf, tenant)
        elif not pod.asks:
            tracked.wait = tracked.shape = None
        else:
            tracked.wait = tracked.shape = None
            intended = tracked.intent.pool if tracked.intent else None
            tracked.pool = intended or self._pools.pool_of(pod, tenant)
            if tracked.pool is not None:
                self._enter(tracked, leaf, tracked.pool, node)
            elif pod.node is not None:
                self._pinned.setdefault(pod.node, {})[pod.uid] = tracked
            if tracked.stamp > NEVER:
                self.usage.tree.serve(leaf, tracked.stamp)
        if tracked.life is not Life.USING:
            self._pend(tracked, leaf, 1)

    def _enter(
        self, tracked: Tracked, leaf: Leaf, pool: PoolName, expected: NodeName | None
    ) -> None:
        pod, ends = tracked.pod, None
        if pod.max_runtime is not None and tracked.released is not None:
            ends = Millis(tracked.released + pod.max_runtime)
        tracked.entered = self.usage.now if tracked.entered is None else tracked.entered
        tracked.stay = self.usage.enter(
            leaf,
            pool,
            pod.demand,
            node=pod.node or expected,
            bound=pod.node is not None,
            ends=ends,
            only=pod.only,
            terms=tracked.terms,
            spacings=pod.spacings,
            leaving=pod.terminating,
        )
        self.running.setdefault(leaf, {})[pod.uid] = tracked

    def _reckoned(self, tracked: Tracked, pod: Pod, life: Life) -> Pod:
        """Return a pod with what it is to be charged, its claims counted."""
        if pod.plain is None:
            return pod
        use, intent = None, tracked.intent
        if life is not Life.HELD:
            served = max(tracked.stamp, stamp_of(pod.release))
            if intent is not None:
                served = (intent.epoch, intent.sequence)
            use = Use(served, (intent.pool if intent else pod.pool) or None)
        pod = self._claimants.reckon(pod, use)
        if use is not None and not pod.asks and pod.node is not None:
            self._pools.put_bystander(Bystander(pod.uid, pod.node, pod.demand))
        else:
            self._pools.drop_bystander(pod.uid)
        return pod

    def _unplace(self, tracked: Tracked, charged_until: Millis | None = None) -> None:
        leaf, tracked.leaf = tracked.leaf, None
        self.idle.pop(tracked.pod.uid, None)
        if self._dirty or leaf is None:
            return  # a recount is due, or it has no place
        if tracked.life is not Life.USING:
            self._pend(tracked, leaf, -1)
        self._unpin(tracked.pod)
        self.gangs.unready(tracked)
        if tracked.shape is not None:
            self.usage.tree.dequeue(leaf, tracked.turn, tracked.shape)
            tracked.shape = None
        if tracked.stay is not None:
            self.usage.leave(leaf, tracked.stay, charged_until=charged_until)
            del self.running[leaf][tracked.pod.uid]
            tracked.pool = tracked.stay = None

    def _pend(self, tracked: Tracked, leaf: Leaf, sign: int) -> None:
        """Count a pod among those that are not released, or with sign -1 no more."""
        self.pending[leaf.tenant] += sign
        if sign > 0:
            self.waiting.setdefault(leaf, {})[tracked.pod.uid] = tracked
            return
        waiting = self.waiting[leaf]
        del waiting[tracked.pod.uid]
        if not waiting:
            del self.waiting[leaf]

    def _unpin(self, pod: Pod) -> None:
        for name in self._pinned.keys() & {*(pod.only or ()), pod.node}:
            pinned = self._pinned[name]
            pinned.pop(pod.uid, None)
            if not pinned:
                del self._pinned[name]

    def _wait(self, tracked: Tracked, leaf: Leaf, tenant: Tenant | None) -> None:
        pod = tracked.pod
        tracked.pool = tracked.shape = None
        for name in pod.only or ():
            self._pinned.setdefault(name, {})[pod.uid] = tracked
        pools = self._pools.serving(pod, tenant)
        shape = self._shapes.of([pod], pools)
        if tracked.told is None and pools:
            self._pools.mix.saw(shape.parts, pools)
        if any(gate != GATE for gate in pod.gates):
            tracked.wait = Wait.OTHER_GATE
        elif pod.awaits:
            tracked.wait = Wait.CLAIM
        elif not pod.asks:
            tracked.wait = Wait.REFUSED if tracked.rests else Wait.TURN
            if not tracked.rests:
                self.idle[pod.uid] = tracked
        elif self.usage.paused(leaf):
            tracked.wait = Wait.TENANT_PAUSED
        elif not pools:
            tracked.wait = Wait.NO_POOL
        elif tracked.rests:
            tracked.wait = Wait.REFUSED
        elif self.banned and kind_of(leaf, pod) in self.banned:
            tracked.wait = Wait.NO_NODE
        elif tracked.gang is not None:
            tracked.wait = Wait.GANG_INCOMPLETE
            self.gangs.wait(tracked, pools)
        else:
            tracked.wait = Wait.TURN
            tracked.shape = shape
            self.usage.tree.enqueue(leaf, tracked.turn, shape)
        if tracked.told is None:
            tracked.told = tracked.wait
        elif tracked.told is not tracked.wait:
            self._changed.append(tracked)
