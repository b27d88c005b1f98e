"""Reclaim cooldown: for one hour, a reclaim in the opposite direction is refused and reported.

The reclaim rules already prevent circular evictions. The cooldown is a safeguard. Reclaims within a
guarantee are exempt, because they take from borrowers only. Audit markers store the cooldowns for
the next leader.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from app.core.effects import Effect, EmitEvent, EventReason, PodRef, ReclaimOnCooldown
from app.core.model import Millis, PoolName, TenantName, Uid

COOLDOWN_MS = 3_600_000
"""Duration of a cooldown."""

MARKER_PREFIX = "Reclaim/"
"""Key prefix of cooldown markers. No pod uid starts with it."""


class ReclaimRecord(NamedTuple):
    """A workload of the `loser` was evicted in a pool for a workload of the `winner`."""

    pool: PoolName
    loser: TenantName
    winner: TenantName

    @property
    def key(self) -> str:
        """The key of its audit marker."""
        return MARKER_PREFIX + json.dumps(self)


class ReclaimCooldowns:
    """The reclaims of the last hour."""

    def __init__(self) -> None:
        self._until: dict[ReclaimRecord, Millis] = {}

    def record_reclaim(self, taking: ReclaimRecord, now: Millis) -> tuple[str, str]:
        """Record a reclaim that happens now. Return its audit marker: key and text."""
        until = Millis(now + COOLDOWN_MS)
        self._until[taking] = max(until, self._until.get(taking, until))
        return taking.key, str(self._until[taking])

    def forbidden_until(self, taking: ReclaimRecord, now: Millis) -> Millis | None:
        """Return the end of the cooldown that forbids this reclaim, or None."""
        until = self._until.get(ReclaimRecord(taking.pool, taking.winner, taking.loser))
        return until if until is not None and until > now else None

    def expire(self, now: Millis) -> Iterator[str]:
        """Remove expired cooldowns. Yield the keys of their audit markers."""
        over = [taking for taking, until in self._until.items() if until <= now]
        for taking in over:
            del self._until[taking]
            yield taking.key

    def audit_markers(self) -> Iterator[tuple[str, str]]:
        """Return the audit markers of all cooldowns."""
        return ((taking.key, str(until)) for taking, until in self._until.items())

    def restore_audit_markers(self, notes: Mapping[str, str], now: Millis) -> None:
        """Restore cooldowns of earlier leaders. Each ends at most `COOLDOWN_MS` from now."""
        for key, text in notes.items():
            if is_cooldown_marker(key) and (read := _parse_marker(key, text)):
                taking, noted = read
                until = min(noted, now + COOLDOWN_MS)
                self._until[taking] = Millis(max(until, self._until.get(taking, 0)))


class CooldownReports:
    """Reports, once, that a cooldown protects a tenant from the reclaim for a waiting pod."""

    def __init__(self) -> None:
        self._reported: dict[tuple[Uid, PoolName, TenantName], Millis] = {}

    def end_term(self) -> None:
        """End a leader term."""
        self._reported.clear()

    def report(
        self,
        waiting: PodRef,
        winner: TenantName,
        on_cooldown: Mapping[tuple[Uid, PoolName, TenantName], Millis],
        now: Millis,
    ) -> list[Effect]:
        """Report the new ones among the protected tenants. `winner`: the tenant of the pod."""
        effects: list[Effect] = []
        self._reported = {key: until for key, until in self._reported.items() if until > now}
        for key, until in on_cooldown.items():
            _, pool, rival = key
            if key not in self._reported:
                self._reported[key] = until
                effects.append(ReclaimOnCooldown(waiting, winner, rival, pool, until))
                minutes = -(-(until - now) // 60_000)
                effects.append(
                    EmitEvent(
                        waiting,
                        EventReason.WAITING,
                        f"no work of tenant {rival} is evicted for it in pool {pool} for "
                        f"{minutes} min, because work of tenant {winner} was evicted there "
                        "for that tenant within the last hour",
                    )
                )
        return effects


def _parse_marker(key: str, text: str) -> tuple[ReclaimRecord, int] | None:
    """Parse an audit marker. Return None if it is invalid: other writers may have made it."""
    try:
        parts, until = json.loads(key.removeprefix(MARKER_PREFIX)), int(text)
    except (ValueError, RecursionError):
        return None
    match parts:
        case [str(pool), str(loser), str(winner)]:
            return ReclaimRecord(PoolName(pool), TenantName(loser), TenantName(winner)), until
    return None


def is_cooldown_marker(key: str) -> bool:
    """Return whether a key belongs to a cooldown marker."""
    return key.startswith(MARKER_PREFIX)
