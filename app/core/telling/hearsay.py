"""What an engine that follows was told by the one that leads, and cannot know by itself.

It answers as its leader would, and decides nothing. Nobody who leads is told anything.
"""

from __future__ import annotations

from collections.abc import Mapping

from app.core.model import Amounts, Kind, Millis, NodeName, PoolName, Resource, TenantName, Uid
from app.core.places.growth import Growth
from app.core.places.placement import Withheld
from app.core.places.pools import add_to
from app.core.pods.roster import Roster
from app.core.telling.views import Bulletin, Reserved
from app.core.turns.reservation import Reservations
from app.core.turns.resting import Resting

MOST = 1000
"""Pods, kinds of pods, and gangs, that a bulletin names."""


class Hearsay:
    """What was heard last; `heard` is None until then."""

    def __init__(self, roster: Roster, growth: Growth) -> None:
        self.heard: Bulletin | None = None
        self._roster = roster
        self._growth = growth
        self._rooms: dict[tuple[PoolName, Uid], Withheld] = {}

    def hear(self, bulletin: Bulletin) -> None:
        """Take a bulletin as it is: what an older one said holds no more."""
        before, self.heard = self.heard, bulletin
        self._rooms.clear()
        self._roster.ban(bulletin.banned)
        self._roster.gangs.defer(bulletin.deferred)
        self._growth.hear(bulletin.closed, bulletin.barred)
        for uid in before.refused.keys() - bulletin.refused.keys() if before else ():
            self._rest(uid, 0)
        for uid, times in bulletin.refused.items():
            self._rest(uid, times)

    def kept(self, pool: PoolName, uid: Uid) -> tuple[TenantName, Withheld] | None:
        """Return whom room of a pool is kept free for, and where, a workload's own room aside."""
        told = self.heard.reserved if self.heard is not None else ()
        those = [each for each in told if each.pool == pool]
        others = [each for each in those if each.uid != uid]
        if not others:
            return None
        key = (pool, uid if len(others) < len(those) else Uid(""))
        if key not in self._rooms:
            rooms: dict[NodeName, dict[Resource, int]] = {}
            for each in others:
                for node, amounts in each.rooms.items():
                    add_to(rooms.setdefault(node, {}), amounts, 1)
            self._rooms[key] = Withheld(rooms)
        return others[0].tenant, self._rooms[key]

    def _rest(self, uid: Uid, times: int) -> None:
        tracked = self._roster.pods.get(uid)
        if tracked is not None and not tracked.uses:
            tracked.refusals = times
            if tracked.rests != bool(times):
                self._roster.rest(tracked, bool(times))

    @property
    def owners(self) -> frozenset[Uid]:
        """The workloads that room is kept free for."""
        return frozenset(each.uid for each in self.heard.reserved) if self.heard else frozenset()


def bulletin(
    at: Millis,
    epoch: int,
    drift: float,
    roster: Roster,
    reservations: Reservations,
    resting: Resting,
    growth: Growth,
) -> Bulletin:
    """Return what only an engine that leads knows."""
    refused = [uid for uid in resting.resting() if uid in roster.pods]
    return Bulletin(
        at,
        epoch,
        round(drift, 4),
        tuple(
            Reserved(each.pool, each.owner.uid, each.leaf.tenant, _whole(each.rooms))
            for each in reservations.owners()
        ),
        {uid: roster.pods[uid].refusals for uid in refused[:MOST]},
        frozenset(sorted(roster.banned, key=_text)[:MOST]),
        dict(growth.closed),
        dict(growth.all_barred()[:MOST]),
        dict(sorted(roster.gangs.deferred.items())[:MOST]),
    )


def _text(kind: Kind) -> tuple[str, str, list[tuple[Resource, int]]]:
    tenant, user, amounts = kind
    return tenant, user, sorted(amounts)


def _whole(rooms: Mapping[NodeName, Amounts]) -> dict[NodeName, dict[Resource, int]]:
    return {node: {r: v for r, v in amounts.items() if v} for node, amounts in rooms.items()}
