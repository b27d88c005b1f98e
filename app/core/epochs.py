"""Plausibility of epochs: the largest epoch that a real leader can have reached."""

from __future__ import annotations

from collections.abc import Iterable

IMPLAUSIBLE_EPOCH = 10**8
"""Upper bound of a real epoch. A term takes seconds, so a pod with a higher epoch is forged."""

MAX_EPOCH = 10**11
"""Upper bound of a stored epoch. It is high enough for the terms of a century after a forged epoch,
and for the highest epoch that Redis can cause (see store/lua/prelude.lua)."""


def highest_plausible(epochs: Iterable[int]) -> int:
    """Return the highest plausible epoch; 0 if there is no plausible epoch."""
    return max((epoch for epoch in epochs if epoch < IMPLAUSIBLE_EPOCH), default=0)
