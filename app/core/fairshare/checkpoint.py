"""Fairness state in the API server, which survives the loss of Redis.

It has the last release, the decayed history and the totals of each tenant. This module has the
values and bounds their size.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from app.core.fairshare.sort_key import NEVER_SERVED, Served
from app.core.model import Amounts, Millis, PoolName, Resource, TenantName, UserName
from app.core.quantities import add_amounts

MAX_STORED_USERS = 200
"""Users of one tenant that are stored individually. The status of a Tenant, with the checkpoint in
it, is written up to once a second, so it must stay small."""

MAX_USER_NAME = 1024
"""Characters in the name of a user that is stored individually. The Tenant resource accepts no
more."""

OTHER_USERS = UserName("")
"""Key for the sum of all other users. The API server allows no empty user name."""

OTHER_TENANTS = TenantName("")
"""Key for the sum of all tenants that are not stored individually."""

MIN_STORED_PART = 1e-9
"""Smallest part of the cluster that is stored."""

Totals = Mapping[PoolName, Amounts]
"""Resource-milliseconds, in base units, per pool."""


@dataclass(frozen=True, slots=True)
class FairnessState:
    """The stored state of a tenant or a user.

    `last_served`: the stamp of its last release. `history`: the decayed average of its borrowing,
    in parts of the cluster. `totals`: its usage so far. A tenant has the `last_served` and
    `history` of all its users, but the `totals` of only those users that are not stored
    individually.
    """

    last_served: Served = NEVER_SERVED
    history: Mapping[Resource, float] = field(default_factory=dict)
    totals: Totals = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TenantCheckpoint:
    """The state of one tenant at a time, written by the leader of `epoch`."""

    at: Millis
    epoch: int
    own: FairnessState = field(default_factory=FairnessState)
    users: Mapping[UserName, FairnessState] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is no state to store."""
        own = self.own
        return not (self.users or own.history or own.totals) and own.last_served == NEVER_SERVED

    @property
    def size(self) -> int:
        """Approximate size in bytes when written."""
        return 200 + _size(self.own) + sum(_size(k, str(u)) for u, k in self.users.items())

    def equals_decayed(self, before: TenantCheckpoint, half_life: Millis) -> bool:
        """Return whether it equals an earlier checkpoint with decay applied."""
        if self.users.keys() != before.users.keys():
            return False
        faded = 0.5 ** (max(0, self.at - before.at) / half_life)
        return _repeats(self.own, before.own, faded) and all(
            _repeats(kept, before.users[user], faded) for user, kept in self.users.items()
        )


def build_checkpoint(
    at: Millis, epoch: int, own: FairnessState, users: Mapping[UserName, FairnessState]
) -> TenantCheckpoint:
    """Return the checkpoint of a tenant.

    Only users with much history are stored individually. The others are summed up, and so are
    users with a name of more than `MAX_USER_NAME` characters.
    """
    ordered = users_by_history({u: k for u, k in users.items() if len(u) <= MAX_USER_NAME})
    kept = {user: users[user] for user in sorted(ordered[:MAX_STORED_USERS])}
    left_out = [users[user].totals for user in sorted(users.keys() - kept.keys())]
    return TenantCheckpoint(
        at, epoch, FairnessState(own.last_served, own.history, _sum([own.totals, *left_out])), kept
    )


def users_by_history(users: Mapping[UserName, FairnessState]) -> list[UserName]:
    """Return users, those with the largest history first."""
    return sorted(users, key=lambda user: (*_history_size(users[user]), user), reverse=True)


def fit_checkpoints(
    checkpoints: Mapping[TenantName, TenantCheckpoint], room: int
) -> dict[TenantName, TenantCheckpoint]:
    """Return checkpoints within `room` bytes. `OTHER_TENANTS` has the totals of all others."""
    by_weight = sorted(
        checkpoints, key=lambda n: (*_history_size(checkpoints[n].own), n), reverse=True
    )
    kept: dict[TenantName, TenantCheckpoint] = {}
    left_out: list[TenantCheckpoint] = []
    for name in by_weight:
        checkpoint = checkpoints[name]
        if name != OTHER_TENANTS and checkpoint.size <= room:
            kept[name] = checkpoint
            room -= checkpoint.size
        else:
            left_out.append(checkpoint)
    if left_out:
        spent = _sum(k.totals for each in left_out for k in (each.own, *each.users.values()))
        last = max(left_out, key=lambda each: (each.epoch, each.at))
        kept[OTHER_TENANTS] = TenantCheckpoint(last.at, last.epoch, FairnessState(totals=spent))
    return kept


def storable_history(history: Mapping[Resource, float]) -> dict[Resource, float]:
    """Return the entries of a history that are large enough to store."""
    return {r: part for r, part in history.items() if part > MIN_STORED_PART}


def _history_size(kept: FairnessState) -> tuple[float, int]:
    """Return the sort key for `users_by_history`: history before totals, because it affects the
    order.
    """
    spent = sum(value for amounts in kept.totals.values() for value in amounts.values())
    return max(kept.history.values(), default=0.0), spent


def _sum(totals: Iterable[Totals]) -> Totals:
    summed: dict[PoolName, dict[Resource, int]] = {}
    for each in totals:
        for pool, amounts in each.items():
            summed[pool] = add_amounts(summed.get(pool, {}), amounts)
    return summed


def _size(kept: FairnessState, name: str = "") -> int:
    entries = sum(40 + len(r) for r in kept.history)
    for pool, amounts in kept.totals.items():
        entries += 10 + len(pool) + sum(45 + len(r) for r in amounts)
    return 90 + 2 * len(name.encode()) + entries


def _repeats(now: FairnessState, before: FairnessState, faded: float) -> bool:
    if (now.last_served, now.totals) != (before.last_served, before.totals):
        return False
    resources = {*now.history, *before.history}
    return all(
        abs(now.history.get(r, 0.0) - before.history.get(r, 0.0) * faded) <= MIN_STORED_PART
        for r in resources
    )
