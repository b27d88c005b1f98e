"""Ports of leader election: epochs, terms and the lease."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol


class EpochFloor(Protocol):
    """Stores the highest epoch outside Redis and the Lease. May raise ClusterError."""

    async def read_epoch_floor(self) -> int:
        """Return the highest epoch that was ever claimed, 0 if there is no such epoch."""

    async def claim_epoch(self, epoch: int) -> None:
        """Raise the floor to `epoch`. Raises EpochStale if the floor is equal or higher."""


class TermListener(Protocol):
    """Is notified when this replica starts and stops leading."""

    def start_term(self, epoch: int) -> None:
        """Start a term. No release has happened in it yet."""

    async def end_term(self) -> None:
        """End the term, if one is active. Returns soon."""


class Leadership(Protocol):
    """Leader election on one Lease."""

    async def acquire(self, fit: Callable[[], Awaitable[bool]] | None = None) -> int:
        """Wait until this replica leads. Return `leaseTransitions` of the acquired Lease.

        `fit` is called each time the Lease is available. If it returns False, another replica may
        lead.
        """

    def seconds_left(self) -> float:
        """Return for how many seconds this replica may still act, by the monotonic clock.

        At 0 or less it may not act. No request may be sent that could take longer.
        """

    async def wait_until_lost(self) -> None:
        """Wait until leadership has ended."""

    async def release_lease(self) -> None:
        """Release the Lease, so that another replica need not wait until it expires."""
