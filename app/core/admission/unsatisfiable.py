"""Refuses pods that no pool can ever serve, judged by the Pools and Tenants alone.

Only certain reasons count, because nodes come and go, pools grow, and workloads end. If the webhook
cannot be certain at create, the pod waits, and the leader decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from app.core.admission.hold import DenyDecision
from app.core.errors import InvalidInput
from app.core.model import DEFAULT_POOL, Amounts, Pool, PoolName, Tenant
from app.core.placement.mismatch import selector_conflict
from app.core.podspec.annotations import gang_min_error, named_pools
from app.core.podspec.gpu_memory import (
    declaring_annotation,
    describe_shortage,
    need_of,
    parse_declared_memory,
)
from app.core.podspec.resource_claims import IMPLICIT
from app.core.quantities import ManagedResources, format_amount
from app.core.well_known import ANNOTATION_POOLS

MOST_POOLS = 4
"""Maximum number of pools that a sentence names. The others are counted."""

MAX_TEXT_LENGTH = 80
"""Maximum number of characters of a user's text that a sentence repeats."""

_EVERY_NODE = {DEFAULT_POOL: Pool(DEFAULT_POOL)}

_ASK = "ask for more devices or state less memory"
_NAME = "name an existing pool, or remove the annotation"
_LESS = "request less, or ask an admin for a higher limit"
_ALLOWED = "ask an admin for a pool that its tenant may use"
_SELECT = "correct its node selector"
_SMALLER = "request less on one node"


@dataclass(frozen=True, slots=True)
class PodRequirements:
    """Requests of a pod at create. `claims`: some of the requests are resource claims."""

    demand: Amounts
    annotations: Mapping[str, str] = field(default_factory=dict)
    selector: Mapping[str, str] = field(default_factory=dict)
    claims: bool = False


@dataclass(frozen=True, slots=True)
class KnownPools:
    """The pools, and their capacity if the leader has reported it.

    `tenants`: the Tenant of the pod and its ancestors, from the bottom up. Missing ones are
    omitted.
    """

    pools: Mapping[PoolName, Pool]
    tenants: Sequence[Tenant] = ()
    capacities: Mapping[PoolName, Amounts] = field(default_factory=dict)


def refuse_invalid_annotations(required: PodRequirements) -> DenyDecision | None:
    """Refuse a pod with an invalid annotation about its GPU memory or the minimum of its gang.

    The pod might otherwise start on devices that are too small, or its gang could never start.
    """
    try:
        parse_declared_memory(required.annotations)
    except InvalidInput as error:
        return DenyDecision(422, f"Fairgate: {error}")
    least = gang_min_error(required.annotations)
    return DenyDecision(422, least) if least else None


def refuse_unsatisfiable(
    required: PodRequirements, known: KnownPools, managed: ManagedResources
) -> DenyDecision | None:
    """Refuse a pod that no pool can ever serve, with the reasons. Call `refuse_invalid_annotations`
    before it.
    """
    if required.claims or any(r.startswith(IMPLICIT) for r in required.demand):
        return None  # the content of its claims is not known yet
    pools = known.pools or _EVERY_NODE
    named = named_pools(required.annotations)
    if named and not any(name in pools for name in named):
        return DenyDecision(403, _missing_pools_message(named, known.pools))
    reasons: dict[PoolName, tuple[str, str]] = {}
    for name, pool in sorted(pools.items()):
        found = next(_obstacles(required, pool, known, managed), None)
        if found is None:
            return None
        reasons[name] = found
    each = [f"pool {name}: {reason}" for name, (reason, _) in reasons.items()]
    more = f"; and {len(each) - MOST_POOLS} more" if len(each) > MOST_POOLS else ""
    remedies = dict.fromkeys(remedy for _, remedy in reasons.values())
    return DenyDecision(
        403,
        f"Fairgate: no pool can ever serve this pod{_gpu_memory_clause(required)}: "
        f"{'; '.join(each[:MOST_POOLS])}{more}. To make it run, {', or '.join(remedies)}.",
    )


def _obstacles(
    required: PodRequirements, pool: Pool, known: KnownPools, managed: ManagedResources
) -> Iterator[tuple[str, str]]:
    """Yield the permanent obstacles between a pod and a pool, each with a remedy."""
    named = named_pools(required.annotations)
    if named and pool.name not in named:
        yield f"its annotation {ANNOTATION_POOLS} does not name it", _NAME
    own = known.tenants[0] if known.tenants else None
    if own is not None and own.pools and pool.name not in own.pools:
        yield f"its tenant {own.name} may not use it", _ALLOWED
    if other := selector_conflict(required.selector, pool):
        yield other, _SELECT
    bytes_needed = parse_declared_memory(required.annotations)
    if bytes_needed:
        short = describe_shortage(need_of(bytes_needed, required.demand, managed), pool.gpu_memory)
        if short:
            yield short, _ASK
    yield from _limit_obstacles(required, pool, known, managed)
    yield from _growth_obstacles(required, pool, known)


def _limit_obstacles(
    required: PodRequirements, pool: Pool, known: KnownPools, managed: ManagedResources
) -> Iterator[tuple[str, str]]:
    for tenant in known.tenants:
        quota = tenant.quotas.get(pool.name)
        for resource, most in sorted(quota.limit.items()) if quota else ():
            asked = required.demand.get(resource, 0)
            if asked > most and (resource in managed or resource in pool.weights):
                text = (
                    f"{format_amount(resource, asked)} {resource} asked, and the limit of tenant "
                )
                yield f"{text}{tenant.name} is {format_amount(resource, most)}", _LESS


def _growth_obstacles(
    required: PodRequirements, pool: Pool, known: KnownPools
) -> Iterator[tuple[str, str]]:
    """`maxCapacity` counts only if the leader has reported the present capacity of the pool."""
    offered = known.capacities.get(pool.name)
    for resource, most in sorted(pool.max_capacity.items()) if offered is not None else ():
        asked, there = required.demand.get(resource, 0), (offered or {}).get(resource, 0)
        if asked > max(most, there):
            text = (
                f"{format_amount(resource, asked)} {resource} asked on one node, "
                "and the whole pool has "
            )
            yield f"{text}{format_amount(resource, max(most, there))} at most", _SMALLER


def _missing_pools_message(named: Sequence[str], pools: Mapping[PoolName, Pool]) -> str:
    wanted = ", ".join(named)[:MAX_TEXT_LENGTH]
    there = "there are " + ", ".join(sorted(pools)[:MOST_POOLS])
    if not pools:
        there = f"without any Pool all nodes are the one pool {DEFAULT_POOL}"
    elif len(pools) > MOST_POOLS:
        there += f" and {len(pools) - MOST_POOLS} more"
    return (
        f"Fairgate: {ANNOTATION_POOLS} names {wanted}, and there is no such pool; {there}. "
        "Name one of these pools, or remove the annotation to allow all pools."
    )


def _gpu_memory_clause(required: PodRequirements) -> str:
    said = declaring_annotation(required.annotations)
    return f" ({said[:MAX_TEXT_LENGTH]})" if said else ""
