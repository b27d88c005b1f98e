"""The managed pods we know of, each in its place: in a queue, or on the account of a pool.

Places follow from what was observed. A change of tenants, pools or nodes places every pod anew,
so what is counted always equals a recount. The roster decides nothing.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from app.core.backlog import Shape, Turn, turn_of
from app.core.effects import Charge, Dequeue, Enqueue, Intend, PodRef, Refund, StoreWrite
from app.core.life import Life
from app.core.model import (
    GATE,
    Pod,
    PoolName,
    Resource,
    Tenant,
    TenantName,
    Uid,
    Wait,
)
from app.core.placement import Placement
from app.core.resources import render
from app.core.shares import NEVER, Branch, Leaf, Scale, Served, Tree
from app.core.tenancy import Tenancy

_STAMP = re.compile(r"0@(?P<fence>\d{1,12})|(?P<epoch>\d{1,12})\.(?P<sequence>\d{1,15})", re.ASCII)

Copy = Enqueue | Dequeue | Charge | Refund
"""The store writes that follow from a pod's place alone."""


@dataclass(slots=True, eq=False)
class Tracked:
    """One managed pod and its place. `pool` is set while it uses that pool's capacity."""

    pod: Pod
    ref: PodRef
    life: Life
    stamp: Served
    turn: Turn
    leaf: Leaf | None = None
    shape: Shape | None = None
    pool: PoolName | None = None
    wait: Wait | None = None
    told: Wait | None = None
    refusals: int = 0
    rests: bool = False
    intent: Intend | None = None
    written: Enqueue | Charge | None = field(default=None)


class Roster:
    """Keeps every managed pod in its place. See the module."""

    def __init__(self, tenancy: Tenancy, placement: Placement) -> None:
        self.pods: dict[Uid, Tracked] = {}
        self.tree = Tree(Scale({}, {}))
        self.shapes: Counter[Shape] = Counter()
        self.used: dict[tuple[TenantName, PoolName], dict[Resource, int]] = {}
        self.pending: Counter[TenantName] = Counter()
        self._tenancy = tenancy
        self._placement = placement
        self._interned: dict[tuple[object, ...], Shape] = {}
        self._seen: tuple[int, int] = (-1, -1)
        self._dirty = True
        self._touched: dict[Uid, Tracked] = {}
        self._changed: list[Tracked] = []

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

    def add(self, pod: Pod, life: Life) -> Tracked:
        """Take up a pod."""
        ref = PodRef(pod.uid, pod.namespace, pod.name)
        turn = turn_of(pod.priority, pod.since, pod.uid)
        tracked = self.pods[pod.uid] = Tracked(pod, ref, life, stamp_of(pod.release), turn)
        self._place(tracked)
        return tracked

    def change(self, tracked: Tracked, pod: Pod, life: Life) -> None:
        """A pod we know was seen, or became, something else."""
        if tracked.pod == pod and tracked.life is life:
            return
        self._unplace(tracked)
        tracked.pod, tracked.life = pod, life
        tracked.stamp = max(tracked.stamp, stamp_of(pod.release))
        tracked.turn = turn_of(pod.priority, pod.since, pod.uid)
        self._place(tracked)

    def rest(self, tracked: Tracked, rests: bool) -> None:
        """Keep a held pod out of the order for a while, or let it in again."""
        self._unplace(tracked)
        tracked.rests = rests
        self._place(tracked)

    def remove(self, tracked: Tracked) -> list[Copy]:
        """Drop a pod; return what the store must forget."""
        self._unplace(tracked)
        del self.pods[tracked.pod.uid]
        self._touched.pop(tracked.pod.uid, None)
        writes = _turn_into(tracked.written, None, tracked.pod.uid)
        if tracked.life is Life.RELEASING:
            writes.append(Refund(tracked.pod.uid))
        return writes

    def settle(self) -> list[Copy]:
        """Bring every place up to date; return what the store must be told.

        Costs more than a few steps only after tenants, pools or nodes changed.
        """
        placement = self._placement
        placement.settle()
        # Counting anew may itself show another capacity, hence a loop; its second turn is cheap.
        while self._dirty or self._seen != (placement.version, placement.resized):
            scale = placement.scale()
            stays = not self._dirty and self._seen[0] == placement.version
            self._seen = (placement.version, placement.resized)
            if stays and scale == self.tree.scale:
                continue  # cpu and memory come and go without changing what shares are about
            if stays and _comparable(scale, self.tree.scale):
                self.tree.rescale(scale)
            else:
                self._recount(scale)
        writes: list[Copy] = []
        for uid, tracked in self._touched.items():
            wanted = _copy_of(tracked)
            if wanted != tracked.written:
                writes += _turn_into(tracked.written, wanted, uid)
                if wanted is None and tracked.life is Life.USING:
                    writes.append(Refund(uid))  # its intent, if it was just released
                tracked.written = wanted
        self._touched.clear()
        return writes

    def writes(self) -> Iterator[StoreWrite]:
        """Return all that the store must hold. Only after `settle`."""
        for tracked in self.pods.values():
            if tracked.written is not None:
                yield tracked.written
            if tracked.life is Life.RELEASING and tracked.intent is not None:
                yield tracked.intent

    def take_changed(self) -> list[Tracked]:
        """Return, once, the held pods that wait for another reason than before."""
        changed, self._changed = self._changed, []
        return [t for t in changed if self.pods.get(t.pod.uid) is t and t.life is Life.HELD]

    def explain(self, tracked: Tracked) -> str:
        """Return, for people, why a held pod waits."""
        match tracked.wait:
            case Wait.OTHER_GATE:
                others = ", ".join(g for g in tracked.pod.gates if g != GATE)
                return f"not queued: scheduling gate {others} must be removed first, by its owner"
            case Wait.NO_POOL:
                return "not queued: no pool can serve its node selector, tenant and pools"
            case Wait.TENANT_PAUSED:
                return "not queued: its tenant is paused"
            case Wait.REFUSED:
                return (
                    f"tried again later: the API server refused its release {tracked.refusals} "
                    "times; another admission webhook or policy, or an edit of its annotation "
                    "fairgate.io/release, may be the cause"
                )
        leaf, shape = tracked.leaf, tracked.shape
        if leaf is None or shape is None:
            return "queued"
        position, length = leaf.queue.position(tracked.turn), len(leaf.queue)
        size = self._placement.scale().size
        devices = [r for r in shape.demand if "/" in r]  # extended resources
        wanted = ", ".join(f"{render(r, shape.demand[r])} {r}" for r in devices)
        lacking = [r for r in devices if r not in size]
        if lacking:
            wanted += f" (no ready node offers {', '.join(lacking)})"
        pools = " or ".join(shape.pools)
        return (
            f"queued: {position} of {length} in {leaf.tenant}/{leaf.name}; "
            f"waits for {wanted} of pool {pools}"
        )

    def _recount(self, scale: Scale) -> None:
        """Place every pod anew, as if all had just been seen."""
        served = {(leaf.tenant, leaf.name): leaf.served for leaf in self.tree.leaves()}
        self.tree = Tree(scale)
        self._placement.forget_use()
        self.used.clear()
        self.pending.clear()
        self.shapes.clear()
        self._interned.clear()
        self._dirty = False
        for tracked in self.pods.values():
            tracked.leaf = None
            self._place(tracked)
        for leaf in list(self.tree.leaves()):
            self.tree.serve(leaf, served.get((leaf.tenant, leaf.name), NEVER))

    def _place(self, tracked: Tracked) -> None:
        if self._dirty or not self._placement.settled:
            self._dirty = True
            return
        pod = tracked.pod
        name = self._tenancy.tenant_of(pod.namespace)
        tenant = self._tenancy.tenants.get(name)
        leaf = tracked.leaf = self._leaf(name, pod)
        self._touched[pod.uid] = tracked
        if tracked.life is Life.HELD:
            self._wait(tracked, leaf, tenant)
        else:
            tracked.wait = tracked.shape = None
            intended = tracked.intent.pool if tracked.intent else None
            tracked.pool = intended or self._placement.pool_of(pod, tenant)
            if tracked.pool is not None:
                self._use(tracked, leaf, tracked.pool, 1)
            if tracked.stamp > NEVER:
                self.tree.serve(leaf, tracked.stamp)
        if tracked.life is not Life.USING:
            self.pending[name] += 1

    def _unplace(self, tracked: Tracked) -> None:
        leaf, tracked.leaf = tracked.leaf, None
        if self._dirty or leaf is None:
            return  # a recount is due, or it has no place
        if tracked.life is not Life.USING:
            self.pending[leaf.tenant] -= 1
        if tracked.shape is not None:
            self.tree.dequeue(leaf, tracked.turn, tracked.shape)
            self.shapes[tracked.shape] -= 1
            if not self.shapes[tracked.shape]:
                del self.shapes[tracked.shape]
            tracked.shape = None
        if tracked.pool is not None:
            self._use(tracked, leaf, tracked.pool, -1)
            tracked.pool = None

    def _wait(self, tracked: Tracked, leaf: Leaf, tenant: Tenant | None) -> None:
        pod = tracked.pod
        tracked.pool = tracked.shape = None
        pools = self._placement.serving(pod, tenant)
        if any(gate != GATE for gate in pod.gates):
            tracked.wait = Wait.OTHER_GATE
        elif self._paused(leaf):
            tracked.wait = Wait.TENANT_PAUSED
        elif not pools:
            tracked.wait = Wait.NO_POOL
        elif tracked.rests:
            tracked.wait = Wait.REFUSED
        else:
            tracked.wait = Wait.TURN
            shape = tracked.shape = self._shape(pod, pools)
            self.shapes[shape] += 1
            self.tree.enqueue(leaf, tracked.turn, shape)
        if tracked.told is not tracked.wait:
            if tracked.told is not None:
                self._changed.append(tracked)
            tracked.told = tracked.wait

    def _shape(self, pod: Pod, pools: tuple[PoolName, ...]) -> Shape:
        key = (frozenset(pod.demand.items()), pools)
        return self._interned.setdefault(key, Shape(pod.demand, pools))

    def _use(self, tracked: Tracked, leaf: Leaf, pool: PoolName, sign: int) -> None:
        demand = tracked.pod.demand
        self._placement.use(pool, demand, sign, tracked.pod.node)
        self.tree.use(leaf, pool, demand, sign)
        account = self.used.setdefault((leaf.tenant, pool), {})
        for resource, value in demand.items():
            account[resource] = account.get(resource, 0) + sign * value

    def _leaf(self, name: TenantName, pod: Pod) -> Leaf:
        tenant = self._tenancy.tenants.get(name)
        weight = tenant.user_weights.get(pod.user, Fraction(1)) if tenant else Fraction(1)
        return self.tree.leaf(self._branch(name), pod.user, weight)

    def _branch(self, name: TenantName) -> Branch:
        known = self.tree.tenants.get(name)
        if known is not None:
            return known
        above = self._tenancy.parent_of(name)
        tenant = self._tenancy.tenants.get(name)
        parent = self._branch(above) if above is not None else None
        return self.tree.tenant(name, parent, tenant.weight if tenant else Fraction(1))

    def _paused(self, leaf: Leaf) -> bool:
        name: TenantName | None = leaf.tenant
        while name is not None:
            tenant = self._tenancy.tenants.get(name)
            if tenant is not None and tenant.paused:
                return True
            name = self._tenancy.parent_of(name)
        return False


def _comparable(one: Scale, other: Scale) -> bool:
    return one.worth == other.worth and one.size.keys() == other.size.keys()


def stamp_of(release: str) -> Served:
    """Return (epoch, sequence) of a release annotation; `0@7` is (7, 0), anything else NEVER.

    Whoever may edit the pod may have written it, so nothing is believed that we would not write.
    """
    match = _STAMP.fullmatch(release)
    if match is None:
        return NEVER
    return int(match["fence"] or match["epoch"]), int(match["sequence"] or 0)


def _copy_of(tracked: Tracked) -> Enqueue | Charge | None:
    """Return what the store should hold of a pod's place."""
    leaf = tracked.leaf
    if leaf is None:
        return None
    user = tracked.pod.user
    if tracked.life is not Life.USING:
        return Enqueue(tracked.ref, leaf.tenant, user, tracked.turn.rank)
    if tracked.pool is None:
        return None
    return Charge(tracked.pod.uid, leaf.tenant, user, tracked.pool, tracked.pod.demand)


def _turn_into(old: Enqueue | Charge | None, new: Enqueue | Charge | None, uid: Uid) -> list[Copy]:
    """Return the writes that turn one copy into another."""
    writes: list[Copy] = []
    if isinstance(old, Enqueue):
        writes.append(Dequeue(uid))
    elif isinstance(old, Charge) and not isinstance(new, Charge):
        writes.append(Refund(uid))
    if new is not None:
        writes.append(new)
    return writes
