"""Value types of a wait reason: rule, sentence, numbers, competitors and remedies.

Others are named by their tenants, never by their users or pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from app.core.model import Wait


class Rule(Enum):
    """The first rule that prevents the release of a pod."""

    TOO_LARGE = "too large"
    OTHER_GATE = "another gate"
    GANG = "gang incomplete"
    GANG_DEFERRED = "gang begins anew"
    CLAIM = "resource claim"
    NO_TENANT = "no tenant"
    PAUSED = "tenant paused"
    NO_POOL = "no pool"
    REFUSED = "release refused"
    NO_NODE = "found no node"
    POSTPONED = "postponed"
    LIMIT = "limit"
    PREEMPTIBLE = "not preemptible"
    RESERVATION = "reservation"
    GUARANTEE = "guarantee of others"
    ORDER = "fair order"
    CAPACITY = "capacity"
    BINDING = "binding stalled"
    UNOWNED = "unowned pods"


RULES = {
    Wait.TOO_LARGE: Rule.TOO_LARGE,
    Wait.OTHER_GATE: Rule.OTHER_GATE,
    Wait.GANG_INCOMPLETE: Rule.GANG,
    Wait.GANG_DEFERRED: Rule.GANG_DEFERRED,
    Wait.CLAIM: Rule.CLAIM,
    Wait.NO_TENANT: Rule.NO_TENANT,
    Wait.TENANT_PAUSED: Rule.PAUSED,
    Wait.NO_POOL: Rule.NO_POOL,
    Wait.REFUSED: Rule.REFUSED,
    Wait.NO_NODE: Rule.NO_NODE,
    Wait.POSTPONED: Rule.POSTPONED,
}
"""The rule that keeps a pod out of its queue. Queued pods need further evaluation."""


@dataclass(frozen=True, slots=True)
class SiblingAhead:
    """A sibling that comes before the branch `own`. `reason`: the rule that decided, in words."""

    tenant: str
    score: str
    own: str
    own_score: str
    reason: str


@dataclass(frozen=True, slots=True)
class SharedReason:
    """The part of a `WaitExplanation` that the workloads of one user and class share."""

    rule: Rule
    text: str
    numbers: Mapping[str, str] = field(default_factory=dict)
    ahead: tuple[SiblingAhead, ...] = ()
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class WaitExplanation:
    """The rule, a sentence, the position in the own queue (0 if not queued), and compared numbers.

    `ahead` are the competitors at the highest level with any. `remedies` are sentences about
    changes that would help.
    """

    rule: Rule
    text: str
    position: int = 0
    length: int = 0
    numbers: Mapping[str, str] = field(default_factory=dict)
    ahead: tuple[SiblingAhead, ...] = ()
    remedies: tuple[str, ...] = ()
