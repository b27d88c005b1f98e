"""What an entry of the audit chain says of a decision: few words, numbers as text. Pure."""

from __future__ import annotations

from app.core.audit import Fact
from app.core.decision import Decision, Level
from app.core.effects import Evict, Expel, Release
from app.core.model import Amounts, Millis
from app.core.resources import PODS, render

LONGEST = 300
"""Characters of a sentence."""
LONGEST_NAME = 64
MOST_LEVELS = 4


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
