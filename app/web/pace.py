"""How often one caller may ask: a bucket of tokens for each, and bounded memory for all of them.

Knows no HTTP; who a caller is, is whatever the hearer says.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MOST_CALLERS = 10_000
BURST_SECONDS = 2.0
"""Who was silent for so long may ask for all of it at once."""


class Pace:
    """So many requests a second from each caller; 0: as many as they like.

    Who is forgotten, because there are too many others, starts anew.
    """

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        """`clock` gives monotonic seconds."""
        self._rate = per_second
        self._most = max(1.0, per_second * BURST_SECONDS)
        self._clock = clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, who: str) -> float:
        """Count one request; return 0, or after how many seconds there is room for one."""
        wait = self.wait(who)
        if not wait and self._rate:
            at, left = self._left[who]
            self._left[who] = (at, left - 1)
        return wait

    def wait(self, who: str) -> float:
        """Return 0 if there is room for a request, or after how many seconds; counts nothing."""
        if not self._rate:
            return 0.0
        now = self._clock()
        at, left = self._left.pop(who, (now, self._most))
        left = min(self._most, left + (now - at) * self._rate)
        self._left[who] = (now, left)
        if len(self._left) > MOST_CALLERS:
            self._left.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._rate
