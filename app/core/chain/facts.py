"""What an entry of the audit chain says of a decision: few words, numbers as text. Pure."""

from __future__ import annotations

from app.core.audit import UNKNOWN, Fact
from app.core.effects import Evict, Expel, Intend, PodRef, Release
from app.core.fair.decision import Decision, Level
from app.core.model import ADOPTED, Amounts, Millis, Pod, TenantName, UserName
from app.core.resources import PODS, render

LONGEST = 300
"""Characters of a sentence."""
LONGEST_NAME = 64
MOST_LEVELS = 4


def who(pod: Pod | PodRef, user: UserName, tenant: TenantName) -> dict[str, Fact]:
    """Return which pod it is about, and whose it is."""
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "pod": pod.name,
        "tenant": tenant,
        "user": user,
    }


def adopted(pod: Pod, tenant: TenantName, pool: str | None) -> dict[str, Fact]:
    """Return what is told of a pod that ran without us."""
    facts = who(pod, pod.user, tenant) | {"pool": pool or ""}
    return facts | {"amounts": texts(pod.demand)}


def released(pod: Pod, tenant: TenantName, order: Release | None, at: Millis) -> dict[str, Fact]:
    """Return what is told of a release that shows in the pod itself; `order`: what asked for it."""
    facts = adopted(pod, tenant, pod.pool) | {"stamp": pod.release}
    if pod.release == ADOPTED:
        return facts | {"byHand": True, "by": pod.freed_by or UNKNOWN}
    if order is not None and order.stamp == pod.release:
        return facts | because(order, at)
    return facts | {"settled": True}


def intended(intent: Intend) -> dict[str, Fact]:
    """Return what is told of a release that only its intent shows."""
    return who(intent.ref, intent.user, intent.tenant) | {
        "pool": intent.pool,
        "amounts": texts(intent.demand),
        "stamp": intent.stamp,
    }


def because(order: Release, at: Millis) -> dict[str, Fact]:
    """Return how long a released pod waited, where it is expected, and why it was its turn."""
    facts: dict[str, Fact] = {"waited": max(0, at - order.since) // 1000}
    if order.node is not None:
        facts["node"] = order.node
    if order.decision is not None:
        facts |= _decided(order.decision)
    return facts


def _decided(decision: Decision) -> dict[str, Fact]:
    levels = tuple(_compared(level) for level in decision.levels[:MOST_LEVELS])
    return {
        "rule": decision.reason[:LONGEST],
        "backfilled": decision.backfilled,
        "compared": levels,
    }


def _compared(level: Level) -> dict[str, Fact]:
    """Return the two scores of a level; who has the lower one goes first."""
    facts: dict[str, Fact] = {"first": level.winner[:LONGEST_NAME]}
    if level.key is not None:
        facts["score"] = _number(level.key.score)
    if level.rival is not None and level.rival_key is not None:
        facts |= {"next": level.rival[:LONGEST_NAME], "nextScore": _number(level.rival_key.score)}
    return facts


def _number(score: float) -> str:
    try:
        return f"{score:.6g}"
    except OverflowError:  # a whole number of more bits than a float has
        return str(score)


def reason(eviction: Evict | Expel) -> dict[str, Fact]:
    """Return why a pod was evicted, and for whom."""
    if isinstance(eviction, Expel):
        return {"why": eviction.why[:LONGEST]}
    other = eviction.beneficiary
    return {
        "why": eviction.cause.explanation,
        "cause": eviction.cause.value,
        "for": f"{other.namespace}/{other.name}",
        "forTenant": eviction.beneficiary_tenant,
        "borrowed": tuple(f"{each:.6g}" for each in eviction.compared),
    }


def texts(demand: Amounts) -> dict[str, Fact]:
    """Return what a pod reserves, as people write it."""
    return {r: render(r, value) for r, value in sorted(demand.items()) if value and r != PODS}
