"""What outlives the loss of everything but the API server: turns, history and totals of a tenant.

Values, and what is left out when there is too much of it. When they are written, and how they
look then, is not known here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.core.fair.order import NEVER, Served
from app.core.model import Amounts, Millis, PoolName, Resource, TenantName, UserName
from app.core.resources import add

MOST_USERS = 200
"""Users of one tenant that are kept one by one. A Tenant's status is written up to once a second,
and the checkpoint with it, so it must stay small."""

OTHERS = UserName("")
"""Stands for all users that are not kept one by one. The API server names nobody so."""

ELSEWHERE = TenantName("")
"""Stands for all tenants that are not kept one by one."""

NOTHING = 1e-9
"""Part of the cluster that is not worth remembering."""

Totals = Mapping[PoolName, Amounts]
"""Resource-milliseconds, in base units, per pool."""


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a tenant or a user.

    `served` is the stamp of its last release, `history` the decayed average of what it borrowed,
    as parts of the cluster, `spent` what it used so far. A tenant's is that of its users, `spent`
    of those only that are not kept one by one.
    """

    served: Served = NEVER
    history: Mapping[Resource, float] = field(default_factory=dict)
    spent: Totals = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """What the leader of `epoch` knew of one tenant at a time."""

    at: Millis
    epoch: int
    own: Kept = field(default_factory=Kept)
    users: Mapping[UserName, Kept] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to keep."""
        own = self.own
        return not (self.users or own.history or own.spent) and own.served == NEVER

    @property
    def size(self) -> int:
        """About how many bytes it takes when it is written."""
        return 200 + _size(self.own) + sum(_size(k, str(u)) for u, k in self.users.items())

    def repeats(self, before: Checkpoint, half_life: Millis) -> bool:
        """Tell whether it says nothing that does not follow from an earlier one by time alone."""
        if self.users.keys() != before.users.keys():
            return False
        faded = 0.5 ** (max(0, self.at - before.at) / half_life)
        return _repeats(self.own, before.own, faded) and all(
            _repeats(kept, before.users[user], faded) for user, kept in self.users.items()
        )


def bounded(at: Millis, epoch: int, own: Kept, users: Mapping[UserName, Kept]) -> Checkpoint:
    """Return the checkpoint of a tenant: those with the longest memory one by one."""
    ordered = sorted(users, key=lambda user: (*_weight(users[user]), user), reverse=True)
    left_out = [users[user].spent for user in ordered[MOST_USERS:]]
    kept = {user: users[user] for user in sorted(ordered[:MOST_USERS])}
    return Checkpoint(at, epoch, Kept(own.served, own.history, _sum([own.spent, *left_out])), kept)


def fitting(
    checkpoints: Mapping[TenantName, Checkpoint], room: int
) -> dict[TenantName, Checkpoint]:
    """Return what fits in so many bytes; the totals of all others together, as ELSEWHERE."""
    by_weight = sorted(checkpoints, key=lambda n: (*_weight(checkpoints[n].own), n), reverse=True)
    kept: dict[TenantName, Checkpoint] = {}
    left_out: list[Checkpoint] = []
    for name in by_weight:
        checkpoint = checkpoints[name]
        if name != ELSEWHERE and checkpoint.size <= room:
            kept[name] = checkpoint
            room -= checkpoint.size
        else:
            left_out.append(checkpoint)
    if left_out:
        spent = _sum(k.spent for each in left_out for k in (each.own, *each.users.values()))
        last = max(left_out, key=lambda each: (each.epoch, each.at))
        kept[ELSEWHERE] = Checkpoint(last.at, last.epoch, Kept(spent=spent))
    return kept


def worth_keeping(history: Mapping[Resource, float]) -> dict[Resource, float]:
    """Return what of a history is worth remembering."""
    return {r: part for r, part in history.items() if part > NOTHING}


def _weight(kept: Kept) -> tuple[float, int]:
    """Return by what the longest memory is told: history first, for it decides turns."""
    spent = sum(value for amounts in kept.spent.values() for value in amounts.values())
    return max(kept.history.values(), default=0.0), spent


def _sum(totals: Iterable[Totals]) -> Totals:
    summed: dict[PoolName, dict[Resource, int]] = {}
    for each in totals:
        for pool, amounts in each.items():
            summed[pool] = add(summed.get(pool, {}), amounts)
    return summed


def _size(kept: Kept, name: str = "") -> int:
    entries = sum(40 + len(r) for r in kept.history)
    for pool, amounts in kept.spent.items():
        entries += 10 + len(pool) + sum(45 + len(r) for r in amounts)
    return 90 + 2 * len(name.encode()) + entries


def _repeats(now: Kept, before: Kept, faded: float) -> bool:
    if (now.served, now.spent) != (before.served, before.spent):
        return False
    resources = {*now.history, *before.history}
    return all(
        abs(now.history.get(r, 0.0) - before.history.get(r, 0.0) * faded) <= NOTHING
        for r in resources
    )
