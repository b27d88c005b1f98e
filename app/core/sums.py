"""How many pods of every queue wait, and for what. Reads only.

Pods of one queue and one shape are held back by the same rule, so that one of them is asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.core.backlog import Shape
from app.core.branch import Leaf
from app.core.model import TenantName, Uid, UserName, Wait
from app.core.roster import Roster
from app.core.scene import workload_of
from app.core.tracked import Tracked

QueueName = tuple[TenantName, UserName]


def sums(
    roster: Roster, rule: Callable[[Uid], str | None]
) -> Mapping[QueueName, Mapping[str, int]]:
    """Return how many pods each queue holds, by `rule` of what holds them back."""
    groups: dict[tuple[Leaf, Wait | None, Shape | None], list[Tracked]] = {}
    for leaf, waiting in roster.waiting.items():
        for tracked in waiting.values():
            if not tracked.uses:
                shape = workload_of(tracked).shape
                groups.setdefault((leaf, tracked.wait, shape), []).append(tracked)
    found: dict[QueueName, dict[str, int]] = {}
    for (leaf, _, _), members in groups.items():
        first = min(members, key=lambda each: each.turn)
        word = rule(first.pod.uid)
        if word is not None:
            queue = found.setdefault(leaf.account, {})
            queue[word] = queue.get(word, 0) + len(members)
    return {name: dict(sorted(found[name].items())) for name in sorted(found)}
