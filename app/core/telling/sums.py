"""How many pods of every queue wait, in groups that one rule holds back. Reads only.

Pods of one queue and one shape are held back by the same rule, so that one of them need be asked.
"""

from __future__ import annotations

from dataclasses import dataclass

from app.core.asks.shape import Shape
from app.core.fair.branch import Leaf
from app.core.model import TenantName, Uid, UserName, Wait
from app.core.pods.roster import Roster
from app.core.pods.tracked import Tracked
from app.core.telling.reasons import RULES
from app.core.telling.scene import workload_of

QueueName = tuple[TenantName, UserName]


@dataclass(frozen=True, slots=True)
class Group:
    """Held pods of a queue: how many, and the first of them. `rule` is None if it takes thought."""

    queue: QueueName
    first: Uid
    pods: int
    rule: str | None


def groups(roster: Roster) -> tuple[Group, ...]:
    """Return all that is held, queue by queue; costs a few steps a pod."""
    found: dict[tuple[Leaf, Wait | None, Shape | None], list[Tracked]] = {}
    for leaf, waiting in roster.waiting.items():
        for tracked in waiting.values():
            if not tracked.uses:
                shape = workload_of(tracked).shape
                found.setdefault((leaf, tracked.wait, shape), []).append(tracked)
    made = []
    for (leaf, wait, _), members in found.items():
        first = min(members, key=lambda each: each.turn)
        rule = RULES.get(wait) if wait is not None else None
        word = rule.value if rule is not None else None
        made.append(Group(leaf.account, first.pod.uid, len(members), word))
    return tuple(sorted(made, key=lambda group: (group.queue, group.first)))
