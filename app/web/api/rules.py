"""What every queue waits for, found out little by little: to think of all at once takes too long.

What was found out longest ago is thought over first; what is new, before that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from app.core.model import Uid
from app.core.telling.outlook import Outlook
from app.core.telling.sums import QueueName

QUEUED = "queued"
"""Stands for a rule that nobody has thought of yet."""

THINKING = 0.03
"""Seconds for one call; the thread answers requests too. At least one rule is thought of."""

Sums = Mapping[QueueName, Mapping[str, int]]


class Rules:
    """Remembers rules from call to call. `clock` gives monotonic seconds."""

    def __init__(self, clock: Callable[[], float], thinking: float = THINKING) -> None:
        self._clock = clock
        self._thinking = thinking
        self._known: dict[Uid, str] = {}
        """By the first pod of a group, what was thought over last at the end."""

    def sums(self, outlook: Outlook) -> Sums:
        """Return how many pods each queue holds, by the word of the rule that holds them back."""
        groups = outlook.groups()
        # A dictionary keeps the order, a set does not.
        open_ones = dict.fromkeys(group.first for group in groups if group.rule is None)
        known = {uid: rule for uid, rule in self._known.items() if uid in open_ones}
        until = self._clock() + self._thinking
        for uid in [*(each for each in open_ones if each not in known), *known]:
            answer = outlook.why(uid)
            known.pop(uid, None)
            known[uid] = answer.rule.value if answer is not None else QUEUED
            if self._clock() >= until:
                break
        self._known = known
        found: dict[QueueName, dict[str, int]] = {}
        for group in groups:
            queue = found.setdefault(group.queue, {})
            rule = group.rule or known.get(group.first, QUEUED)
            queue[rule] = queue.get(rule, 0) + group.pods
        return {name: dict(sorted(rules.items())) for name, rules in found.items()}
