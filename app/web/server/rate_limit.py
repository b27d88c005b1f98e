"""Rate limit per caller: token buckets with bounded memory. It is independent of HTTP."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

MOST_CALLERS = 10_000
BURST_SECONDS = 2.0
"""Size of a bucket, in seconds of the rate."""


class RateLimit:
    """Allows `per_second` requests to each caller; 0: no limit.

    If there are more than `MOST_CALLERS`, the least recent caller starts again with a full bucket.
    """

    def __init__(self, per_second: float, clock: Callable[[], float]) -> None:
        """`clock` returns monotonic seconds."""
        self._rate = per_second
        self._bucket_size = max(1.0, per_second * BURST_SECONDS)
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def count_request(self, who: str, cost: int = 1) -> float:
        """Count one request and return 0. If the bucket is empty, return the seconds to wait.

        A request that costs more than the bucket has delays the next ones.
        """
        wait = self.seconds_to_wait(who)
        if not wait and self._rate:
            at, left = self._buckets[who]
            self._buckets[who] = (at, left - cost)
        return wait

    def return_token(self, who: str) -> None:
        """Return one token of a request that should not count."""
        if self._rate and who in self._buckets:
            at, left = self._buckets[who]
            self._buckets[who] = (at, min(self._bucket_size, left + 1))

    def seconds_to_wait(self, who: str) -> float:
        """Return the seconds until the next request is allowed, 0 if at once. Take no token."""
        if not self._rate:
            return 0.0
        now = self._clock()
        at, left = self._buckets.pop(who, (now, self._bucket_size))
        left = min(self._bucket_size, left + (now - at) * self._rate)
        self._buckets[who] = (now, left)
        if len(self._buckets) > MOST_CALLERS:
            self._buckets.popitem(last=False)
        return 0.0 if left >= 1 else (1 - left) / self._rate
