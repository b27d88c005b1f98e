"""Cache of the wait reason of every queue.

Each call refreshes a few entries, because a full refresh is too slow: first new ones, then the
oldest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from app.core.explain.backlog_stats import QueueName
from app.core.explain.queries import EngineQueries
from app.core.model import Millis, Resource, Uid
from app.core.placement.pools import add_to

QUEUED = "queued"
"""Placeholder for a wait reason that is not evaluated yet."""

TIME_LIMIT_SECONDS = 0.03
"""Seconds for one call, which blocks other requests. At least one entry is refreshed."""


@dataclass(slots=True)
class QueueBacklog:
    """The pending pods of one queue: their number by wait reason, requests, and oldest creation."""

    rules: dict[str, int]
    request: dict[Resource, int]
    since: Millis

    @property
    def pods(self) -> int:
        """The number of pending pods."""
        return sum(self.rules.values())


Backlogs = Mapping[QueueName, QueueBacklog]


class WaitReasonCache:
    """The cache. `clock` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float], time_limit: float = TIME_LIMIT_SECONDS) -> None:
        self._clock = clock
        self._time_limit = time_limit
        self._reasons: dict[Uid, str] = {}
        """Wait reasons by the first pod of each group, the most recently evaluated last."""

    def backlogs(self, queries: EngineQueries) -> Backlogs:
        """Return the pending pods of each queue."""
        groups = queries.wait_groups()
        # A dictionary preserves the order, unlike a set.
        open_ones = dict.fromkeys(group.first for group in groups if group.rule is None)
        known = {uid: rule for uid, rule in self._reasons.items() if uid in open_ones}
        until = self._clock() + self._time_limit
        for uid in [*(each for each in open_ones if each not in known), *known]:
            answer = queries.explain_wait(uid)
            known.pop(uid, None)
            known[uid] = answer.rule.value if answer is not None else QUEUED
            if self._clock() >= until:
                break
        self._reasons = known
        found: dict[QueueName, QueueBacklog] = {}
        for group in groups:
            queue = found.setdefault(group.queue, QueueBacklog({}, {}, group.since))
            rule = group.rule or known.get(group.first, QUEUED)
            queue.rules[rule] = queue.rules.get(rule, 0) + group.pods
            add_to(queue.request, group.request, 1)
            queue.since = min(queue.since, group.since)
        return found
