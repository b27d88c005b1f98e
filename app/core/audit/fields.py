"""Fields of audit entries about decisions. Sentences are short, numbers are text."""

from __future__ import annotations

from collections.abc import Mapping

from app.core.audit_entry import UNKNOWN, Fact
from app.core.effects import EvictForReclaim, EvictPod, Intend, PodRef, Release
from app.core.fairshare.decision import Decision, DecisionLevel
from app.core.model import Amounts, Millis, Pod, TenantName, UserName
from app.core.quantities import PODS, format_amount
from app.core.well_known import RELEASE_ADOPTED

LONGEST = 300
"""Maximum number of characters of a sentence."""
LONGEST_NAME = 64
MOST_LEVELS = 4


def pod_identity(pod: Pod | PodRef, user: UserName, tenant: TenantName) -> dict[str, Fact]:
    """Return the identity of a pod, with its tenant and user."""
    return {
        "uid": pod.uid,
        "namespace": pod.namespace,
        "pod": pod.name,
        "tenant": tenant,
        "user": user,
    }


def adoption_facts(pod: Pod, tenant: TenantName, pool: str | None) -> dict[str, Fact]:
    """Return the fields of a pod that runs without a release."""
    facts = pod_identity(pod, pod.user, tenant) | {"pool": pool or ""}
    return facts | {"amounts": amounts_as_text(pod.demand)}


def release_facts(
    pod: Pod, tenant: TenantName, order: Release | None, at: Millis
) -> dict[str, Fact]:
    """Return the fields of a release that an observed pod shows. `order`: its request."""
    facts = adoption_facts(pod, tenant, pod.pool) | {"stamp": pod.release_annotation}
    if pod.release_annotation == RELEASE_ADOPTED:
        return facts | {"byHand": True, "by": pod.gate_removed_by or UNKNOWN}
    if order is not None and order.stamp == pod.release_annotation:
        return facts | selection_facts(order, at)
    return facts | {"settled": True}


def intent_facts(intent: Intend) -> dict[str, Fact]:
    """Return the fields of a release that only its intent shows."""
    return pod_identity(intent.ref, intent.user, intent.tenant) | {
        "pool": intent.pool,
        "amounts": amounts_as_text(intent.demand),
        "stamp": intent.stamp,
    }


def selection_facts(order: Release, at: Millis) -> dict[str, Fact]:
    """Return how long a released pod waited, its expected node, and why it was selected."""
    facts: dict[str, Fact] = {"waited": max(0, at - order.waiting_since) // 1000}
    if order.node is not None:
        facts["node"] = order.node
    if order.decision is not None:
        facts |= _decision_facts(order.decision)
    return facts


def _decision_facts(decision: Decision) -> dict[str, Fact]:
    levels = tuple(_level_facts(level) for level in decision.levels[:MOST_LEVELS])
    return {
        "rule": decision.reason[:LONGEST],
        "backfilled": decision.is_backfilled,
        "compared": levels,
    }


def _level_facts(level: DecisionLevel) -> dict[str, Fact]:
    """Return the two scores of a level, which one rule of `Decision.reason` compares."""
    facts: dict[str, Fact] = {"first": level.winner[:LONGEST_NAME]}
    if level.key is not None:
        facts["score"] = _number(level.key.score)
    if level.runner_up is not None and level.runner_up_key is not None:
        facts |= {
            "next": level.runner_up[:LONGEST_NAME],
            "nextScore": _number(level.runner_up_key.score),
        }
    return facts


def _number(score: float) -> str:
    try:
        return f"{score:.6g}"
    except OverflowError:  # an integer beyond the range of float
        return str(score)


def eviction_facts(eviction: EvictForReclaim | EvictPod) -> dict[str, Fact]:
    """Return why a pod was evicted, and the beneficiary."""
    if isinstance(eviction, EvictPod):
        return {"why": eviction.why[:LONGEST]}
    other = eviction.beneficiary
    return {
        "why": eviction.cause.explanation,
        "cause": eviction.cause.value,
        "for": f"{other.namespace}/{other.name}",
        "forTenant": eviction.beneficiary_tenant,
        "borrowed": tuple(f"{each:.6g}" for each in eviction.weighted_shares.shares),
    }


def is_about(facts: Mapping[str, object], tenant: str) -> bool:
    """Return whether an entry is about a tenant: its pods, its users, or the Tenant itself."""
    itself = facts.get("kind") == "Tenant" and facts.get("name") == tenant
    return itself or facts.get("tenant") == tenant


def amounts_as_text(demand: Amounts) -> dict[str, Fact]:
    """Return the requests of a pod as text."""
    return {
        r: format_amount(r, value) for r, value in sorted(demand.items()) if value and r != PODS
    }
