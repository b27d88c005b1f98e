"""What would let a pod start: sentences for its owner, each a thing that somebody could do.

Reads only. Others are named by their tenants, never by their users or pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

from app.core.asks.groups import ASKED, source_of
from app.core.asks.shape import Shape
from app.core.fair.backlog import MAX_PRIORITY
from app.core.fair.branch import Branch, Leaf
from app.core.fair.tenancy import Tenancy
from app.core.model import GATE, Amounts, PoolName, TenantName, Wait
from app.core.places.placement import Placement
from app.core.pods.tracked import Gang, Tracked
from app.core.resources import amount, is_device, render
from app.core.telling.reasons import Rule
from app.core.telling.rivals import Rivals
from app.core.telling.scene import Place, Scene

Remedies = tuple[str, ...]


def remedies_aside(tracked: Tracked, scene: Scene) -> Remedies:
    """Return what would let a pod into its queue."""
    pod, gang = tracked.pod, tracked.gang
    match tracked.wait:
        case Wait.OTHER_GATE:
            others = [gate for gate in pod.gates if gate != GATE]
            return tuple(f"its owner removing the scheduling gate {each}" for each in others)
        case Wait.GANG_INCOMPLETE if gang is not None and not gang.half:
            return _remedies_of_gang(gang)
        case Wait.GANG_DEFERRED if gang is not None:
            return (f"pods of gang {gang.name} that last until all of them run",)
        case Wait.CLAIM:
            return tuple(f"a resource claim for {entry}" for entry in pod.awaits)
        case Wait.TENANT_PAUSED:
            name = _paused(scene.tenancy.tenant_of(pod.namespace), scene.tenancy)
            return (f"{_admin_of(name, scene.tenancy)} unpausing tenant {name}",)
        case Wait.NO_POOL:
            more = ("more devices asked for, or less memory stated",) if pod.gpu_memory else ()
            return (
                *more,
                "a node selector, affinity, tolerations, or an annotation fairgate.io/pools, that "
                "some pool can serve",
                "a cluster admin making a pool that can serve it",
            )
        case Wait.REFUSED:
            return ("its release being let pass by whatever refuses it",)
        case Wait.NO_NODE:
            return ("pods that ask nothing of nodes that none of them offers",)
    return ()


def _remedies_of_gang(gang: Gang) -> Remedies:
    if gang.leaving:
        return (f"the end of what still runs of gang {gang.name}",)
    if gang.size == ASKED:
        return (f"the {source_of(gang.name)}",)
    lacking = gang.need - gang.there
    if lacking <= 0:
        return (f"every pod of gang {gang.name} waiting for nothing else",)
    again = f"deleting all pods of gang {gang.name}, if it has another size now"
    return (f"{lacking} more of gang {gang.name}", *([again] if gang.asks else []))


def remedies_of_limit(
    rule: Rule, numbers: Mapping[str, str], place: Place, scene: Scene
) -> Remedies:
    """Return what would let a workload past a limit, or into a guarantee."""
    name, pool = TenantName(numbers.get("tenant", place.leaf.tenant)), numbers.get("pool", "")
    word = "guarantee" if rule is Rule.PREEMPTIBLE else "limit"
    admin, found = _admin_of(name, scene.tenancy), []
    for r in place.shape.total:
        if f"{r} {word}" not in numbers:
            continue
        used, asked, most = (amount(r, numbers[f"{r} {k}"]) for k in ("used", "asked", word))
        over = used + asked - most
        if over <= 0:
            continue
        if asked > most:
            found.append(f"less than {render(r, most + 1)} {r} asked for")
        else:
            found.append(
                f"a release of {render(r, over)} {r} that tenant {name} uses in pool {pool}"
            )
        found.append(
            f"{admin} raising the {word} of tenant {name} in pool {pool} to "
            f"{render(r, used + asked)} {r}"
        )
    if rule is Rule.PREEMPTIBLE:
        found.append('a pod that may be evicted, without fairgate.io/preemptible: "false"')
    return tuple(found)


def remedies_of_reservation(tenant: str, pool: PoolName) -> Remedies:
    """Return what would let a workload into room that is kept free for another."""
    return (
        f"the work of tenant {tenant} starting that room of pool {pool} is kept free for",
        "a declared fairgate.io/max-runtime that ends before that can start",
    )


def remedies_of_order(found: Rivals, first: str) -> Remedies:
    """Return what would let a workload go before those that come first."""
    branch = found.branch
    weight = _decimal(Fraction(*branch.weight))
    if isinstance(branch, Leaf):
        whose = f"user {branch.name}, set by an admin of tenant {branch.tenant}"
    else:
        whose = f"tenant {branch.name}, set by {_admin_above(branch)}"
    start = f"the waiting work of {first} starting, or going away"
    if found.guaranteed:
        return (start, f"a guarantee of tenant {_tenant_of(branch)} that covers it")
    return (f"a higher weight than {weight} for {whose}", start)


def remedies_of_own(place: Place, others: Remedies) -> Remedies:
    """Return what would let a workload go before other work of the same user."""
    priority = MAX_PRIORITY - place.turn.precedence
    return (
        f"a higher priority than {priority}, which orders this user's own work",
        "what stands before it in its own queue starting, or going away",
        *others,
    )


def remedies_of_capacity(shape: Shape, pools: Sequence[PoolName], placement: Placement) -> Remedies:
    """Return what would make room for a workload."""
    found = []
    for pool in pools:
        free = placement.free(pool)
        short = {r: v - max(0, free.get(r, 0)) for r, v in shape.total.items()}
        lacking = ", ".join(f"{render(r, v)} {r}" for r, v in short.items() if v > 0)
        if lacking:
            found.append(f"a release of {lacking} in pool {pool}")
        else:
            level = shape.manner.confined
            where = f"one node each in one {level} of" if level else "one node each in"
            asked = " and ".join(
                f"{count} times {_devices(demand)}" if count > 1 else _devices(demand)
                for demand, count in shape.parts
            )
            found.append(f"{asked} free on {where} pool {pool}: what is free is scattered")
    return (*found, f"more nodes in pool {' or '.join(pools)}")


def _devices(demand: Amounts) -> str:
    devices = {r: v for r, v in demand.items() if is_device(r)} or demand
    return ", ".join(f"{render(r, v)} {r}" for r, v in devices.items())


def _tenant_of(branch: Branch) -> str:
    return str(branch.tenant if isinstance(branch, Leaf) else branch.name)


def _admin_above(branch: Branch) -> str:
    above = branch.parent
    named = above is not None and above.parent is not None
    return f"an admin of tenant {above.name}" if above is not None and named else "a cluster admin"


def _admin_of(name: TenantName, tenancy: Tenancy) -> str:
    """Return who may change a tenant: whoever may change the one above it."""
    parent = tenancy.parent_of(name)
    return f"an admin of tenant {parent}" if parent is not None else "a cluster admin"


def _paused(name: TenantName, tenancy: Tenancy) -> TenantName:
    """Return which tenant is paused: this one, or one above it."""
    known, above = tenancy.tenants.get(name), tenancy.parent_of(name)
    if (known is not None and known.paused) or above is None:
        return name
    return _paused(above, tenancy)


def _decimal(value: Fraction) -> str:
    return f"{float(value):.6f}".rstrip("0").rstrip(".")
