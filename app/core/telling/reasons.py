"""Why a pod waits, as values: the rule, a sentence, the numbers, who comes first, what would help.

Others are named by their tenants, never by their users or pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from app.core.model import Wait


class Rule(Enum):
    """What holds a pod back; the first that applies."""

    OTHER_GATE = "another gate"
    GANG = "gang incomplete"
    GANG_DEFERRED = "gang begins anew"
    CLAIM = "resource claim"
    PAUSED = "tenant paused"
    NO_POOL = "no pool"
    REFUSED = "release refused"
    NO_NODE = "found no node"
    LIMIT = "limit"
    PREEMPTIBLE = "not preemptible"
    RESERVATION = "reservation"
    GUARANTEE = "guarantee of others"
    ORDER = "fair order"
    CAPACITY = "capacity"


RULES = {
    Wait.OTHER_GATE: Rule.OTHER_GATE,
    Wait.GANG_INCOMPLETE: Rule.GANG,
    Wait.GANG_DEFERRED: Rule.GANG_DEFERRED,
    Wait.CLAIM: Rule.CLAIM,
    Wait.TENANT_PAUSED: Rule.PAUSED,
    Wait.NO_POOL: Rule.NO_POOL,
    Wait.REFUSED: Rule.REFUSED,
    Wait.NO_NODE: Rule.NO_NODE,
}
"""The rule that keeps a pod out of its queue. Of those that wait for their turn more is asked."""


@dataclass(frozen=True, slots=True)
class Ahead:
    """A sibling that comes first, `own` being who it comes before. The lower score goes first."""

    tenant: str
    score: str
    own: str
    own_score: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """What of `Why` is the same for all that a user waits for and that needs the same."""

    rule: Rule
    text: str
    numbers: Mapping[str, str] = field(default_factory=dict)
    ahead: tuple[Ahead, ...] = ()
    remedies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Why:
    """The rule, a sentence, the place in the own queue (0: none), and the numbers compared.

    `ahead` are those that come first at the highest level at which anybody does, `remedies`
    sentences that say what would change it.
    """

    rule: Rule
    text: str
    position: int = 0
    length: int = 0
    numbers: Mapping[str, str] = field(default_factory=dict)
    ahead: tuple[Ahead, ...] = ()
    remedies: tuple[str, ...] = ()
