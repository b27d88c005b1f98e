"""Whether any pool could ever serve a pod, by what is written of pools and tenants alone.

Only what is certain counts: nodes come and go, pools grow, and others' work ends. What nobody can
tell at create, the leader finds out, and the pod waits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.core.admission.gate import Refuse
from app.core.asks.annotations import named_pools
from app.core.asks.claims import IMPLICIT
from app.core.asks.gpu_memory import lack, need_of, needed, written
from app.core.errors import InvalidInput
from app.core.model import ANNOTATION_POOLS, DEFAULT_POOL, Amounts, Pool, PoolName, Tenant
from app.core.places.obstacles import clash
from app.core.resources import ManagedResources, render

MOST_POOLS = 4
"""Pools that a sentence names; the others are counted."""

LONGEST = 80
"""Characters of what a user wrote, as a sentence repeats it."""

_EVERY_NODE = {DEFAULT_POOL: Pool(DEFAULT_POOL)}

_ASK = "ask for more devices or state less memory"
_NAME = "name a pool that there is, or none"
_LESS = "ask for less, or an admin for a higher limit"
_ALLOWED = "ask an admin for a pool that its tenant may use"
_SELECT = "correct its node selector"
_SMALLER = "ask for less on one node"


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod asks for that is about to be created. `claims`: some of it by resource claims."""

    demand: Amounts
    annotations: Mapping[str, str] = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    claims: bool = False


@dataclass(frozen=True, slots=True)
class Known:
    """The pools, and what the leader said that each offers, as far as it did.

    `tenants`: whose the pod is and all above it, from below, as far as they are written.
    """

    pools: Mapping[PoolName, Pool]
    tenants: Sequence[Tenant] = ()
    offered: Mapping[PoolName, Amounts] = field(default_factory=dict)


def unreadable(wish: Wish) -> Refuse | None:
    """Refuse a pod whose user says what memory it needs, but not legibly.

    Without it, it might start on devices that are too small.
    """
    try:
        needed(wish.annotations)
    except InvalidInput as error:
        return Refuse(422, f"Fairgate: {error}")
    return None


def hopeless(wish: Wish, known: Known, managed: ManagedResources) -> Refuse | None:
    """Refuse a pod that no pool can ever serve, and say why none can. Its memory is legible."""
    if wish.claims or any(r.startswith(IMPLICIT) for r in wish.demand):
        return None  # what its claims come to is only known later
    pools = known.pools or _EVERY_NODE
    named = named_pools(wish.annotations)
    if named and not any(name in pools for name in named):
        return Refuse(403, _missing(named, known.pools))
    reasons: dict[PoolName, tuple[str, str]] = {}
    for name, pool in sorted(pools.items()):
        found = next(_obstacles(wish, pool, known, managed), None)
        if found is None:
            return None
        reasons[name] = found
    each = [f"pool {name}: {reason}" for name, (reason, _) in reasons.items()]
    more = f"; and {len(each) - MOST_POOLS} more" if len(each) > MOST_POOLS else ""
    remedies = dict.fromkeys(remedy for _, remedy in reasons.values())
    return Refuse(
        403,
        f"Fairgate: no pool can ever serve this pod{_because(wish)}: "
        f"{'; '.join(each[:MOST_POOLS])}{more}. To have it run, {', or '.join(remedies)}.",
    )


def _obstacles(
    wish: Wish, pool: Pool, known: Known, managed: ManagedResources
) -> Iterator[tuple[str, str]]:
    """Return what keeps a pod out of a pool for good, and what to do about it."""
    named = named_pools(wish.annotations)
    if named and pool.name not in named:
        yield f"its annotation {ANNOTATION_POOLS} does not name it", _NAME
    own = known.tenants[0] if known.tenants else None
    if own is not None and own.pools and pool.name not in own.pools:
        yield f"its tenant {own.name} may not use it", _ALLOWED
    if other := clash(wish.selector, pool):
        yield other, _SELECT
    bytes_needed = needed(wish.annotations)
    if bytes_needed:
        short = lack(need_of(bytes_needed, wish.demand, managed), pool.gpu_memory)
        if short:
            yield short, _ASK
    yield from _beyond_limits(wish, pool, known, managed)
    yield from _beyond_growth(wish, pool, known)


def _beyond_limits(
    wish: Wish, pool: Pool, known: Known, managed: ManagedResources
) -> Iterator[tuple[str, str]]:
    for tenant in known.tenants:
        quota = tenant.quotas.get(pool.name)
        for resource, most in sorted(quota.limit.items()) if quota else ():
            asked = wish.demand.get(resource, 0)
            if asked > most and (resource in managed or resource in pool.weights):
                text = f"{render(resource, asked)} {resource} asked, and the limit of tenant "
                yield f"{text}{tenant.name} is {render(resource, most)}", _LESS


def _beyond_growth(wish: Wish, pool: Pool, known: Known) -> Iterator[tuple[str, str]]:
    """What a pool may grow to counts only where the leader said how large it is already."""
    offered = known.offered.get(pool.name)
    for resource, most in sorted(pool.max_capacity.items()) if offered is not None else ():
        asked, there = wish.demand.get(resource, 0), (offered or {}).get(resource, 0)
        if asked > max(most, there):
            text = (
                f"{render(resource, asked)} {resource} asked on one node, and the whole pool has "
            )
            yield f"{text}{render(resource, max(most, there))} at most", _SMALLER


def _missing(named: Sequence[str], pools: Mapping[PoolName, Pool]) -> str:
    wanted = ", ".join(named)[:LONGEST]
    there = "there are " + ", ".join(sorted(pools)[:MOST_POOLS])
    if not pools:
        there = f"without any Pool all nodes are the one pool {DEFAULT_POOL}"
    elif len(pools) > MOST_POOLS:
        there += f" and {len(pools) - MOST_POOLS} more"
    return (
        f"Fairgate: {ANNOTATION_POOLS} names {wanted}, and there is no such pool; {there}. "
        "Name one of these, or leave the annotation out to let it go to any."
    )


def _because(wish: Wish) -> str:
    said = written(wish.annotations)
    return f" ({said[:LONGEST]})" if said else ""
