"""Fields of audit entries about decisions. Sentences are short, numbers are text."""

from __future__ import annotations

from app.core.audit_entry import UNKNOWN, Fact
from app.core.effects import EvictForReclaim, EvictPod, Intend, PodRef, Release
from app.core.fairshare.decision import Decision, DecisionLevel
from app.core.model import Amounts, Millis, Pod, TenantName, UserName
from app.core.quantities import PODS, render
from app.core.well_known import ADOPTED

LONGEST = 300
"""Maximum number of characters of a sentence."""
LONGEST_NAME = 64
MOST_LEVELS = 4


def who(pod: Pod | PodRef, user: UserName, tenant: TenantName) -> dict[str, Fact]:
    """Return the identity of a pod, with its tenant and user."""
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "pod": pod.name,
        "tenant": tenant,
        "user": user,
    }


def adopted(pod: Pod, tenant: TenantName, pool: str | None) -> dict[str, Fact]:
    """Return the fields of a pod that runs without a release."""
    facts = who(pod, pod.user, tenant) | {"pool": pool or ""}
    return facts | {"amounts": texts(pod.demand)}


def released(pod: Pod, tenant: TenantName, order: Release | None, at: Millis) -> dict[str, Fact]:
    """Return the fields of a release that an observed pod shows. `order`: its request."""
    facts = adopted(pod, tenant, pod.pool) | {"stamp": pod.release}
    if pod.release == ADOPTED:
        return facts | {"byHand": True, "by": pod.freed_by or UNKNOWN}
    if order is not None and order.stamp == pod.release:
        return facts | because(order, at)
    return facts | {"settled": True}


def intended(intent: Intend) -> dict[str, Fact]:
    """Return the fields of a release that only its intent shows."""
    return who(intent.ref, intent.user, intent.tenant) | {
        "pool": intent.pool,
        "amounts": texts(intent.demand),
        "stamp": intent.stamp,
    }


def because(order: Release, at: Millis) -> dict[str, Fact]:
    """Return how long a released pod waited, its expected node, and why it was selected."""
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


def _compared(level: DecisionLevel) -> dict[str, Fact]:
    """Return the two scores of a level, which one rule of `Decision.reason` compares."""
    facts: dict[str, Fact] = {"first": level.winner[:LONGEST_NAME]}
    if level.key is not None:
        facts["score"] = _number(level.key.score)
    if level.rival is not None and level.rival_key is not None:
        facts |= {"next": level.rival[:LONGEST_NAME], "nextScore": _number(level.rival_key.score)}
    return facts


def _number(score: float) -> str:
    try:
        return f"{score:.6g}"
    except OverflowError:  # an integer beyond the range of float
        return str(score)


def reason(eviction: EvictForReclaim | EvictPod) -> dict[str, Fact]:
    """Return why a pod was evicted, and the beneficiary."""
    if isinstance(eviction, EvictPod):
        return {"why": eviction.why[:LONGEST]}
    other = eviction.beneficiary
    return {
        "why": eviction.cause.explanation,
        "cause": eviction.cause.value,
        "for": f"{other.namespace}/{other.name}",
        "forTenant": eviction.beneficiary_tenant,
        "borrowed": tuple(f"{each:.6g}" for each in eviction.compared.shares),
    }


def texts(demand: Amounts) -> dict[str, Fact]:
    """Return the requests of a pod as text."""
    return {r: render(r, value) for r, value in sorted(demand.items()) if value and r != PODS}
