"""Pauses between updates of many pods, in proportion to their number.

A user with permission to change an object that many pods depend on must not be able to occupy the
leader. Budgets and claims use these pauses.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Generic, TypeVar

from app.core.model import Millis

FEW_PODS = 20
"""Maximum of pods that are updated after every change, without a pause."""

REST_MS = 1
"""Pause per updated pod."""

Key = TypeVar("Key", bound=Hashable)


class UpdatePauses(Generic[Key]):
    """The keys in a pause, each with the end of its pause."""

    def __init__(self) -> None:
        self._paused_until: dict[Key, Millis] = {}
        self._first_end: Millis | None = None
        """No pause ends earlier. None if there is no pause."""

    def __contains__(self, key: Key) -> bool:
        return key in self._paused_until

    def start(self, key: Key, pods: int, now: Millis) -> None:
        """Start the pause after an update of this number of pods. Few pods need no pause."""
        if pods > FEW_PODS:
            until = self._paused_until[key] = Millis(now + REST_MS * pods)
            self._first_end = min(until, self._first_end or until)

    def end_expired(self, now: Millis) -> list[Key]:
        """End the pauses that are over. Return their keys."""
        if self._first_end is None or self._first_end > now:
            return []
        expired = [key for key, until in self._paused_until.items() if until <= now]
        for key in expired:
            del self._paused_until[key]
        self._first_end = min(self._paused_until.values(), default=None)
        return expired

    def due(self, keys: Iterable[Key]) -> Millis | None:
        """Return when the first of these keys leaves its pause. None if no key is in a pause."""
        ends = (self._paused_until[key] for key in keys if key in self._paused_until)
        return min(ends, default=None)
