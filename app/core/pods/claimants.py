"""Who is charged for which claim: every claim once, whoever shares it.

A claim in use is charged to the pod that was released first of those that still use it. While
nobody uses it, each workload that waits for it must expect to pay: a pod alone, or one of a gang.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sortedcontainers import SortedDict

from app.core.asks.claims import Classes, ResourceClaim
from app.core.fair.order import Served
from app.core.model import ClaimRef, Pod, PoolName, Resource, Uid
from app.core.resources import ManagedResources, add

Key = tuple[str, str]
"""Namespace and name of a claim."""


class Use(NamedTuple):
    """A pod past the gate: its release, and the pool it went to if that is known."""

    served: Served
    pool: PoolName | None


class _First(NamedTuple):
    served: Served
    uid: Uid
    pool: PoolName | None


class _Standing(NamedTuple):
    """How a pod stands to its claims."""

    keys: tuple[Key, ...]
    group: tuple[str, ...]
    use: Use | None


@dataclass(slots=True)
class _Users:
    """The pods that name one claim: those that wait, by workload, and those past the gate."""

    waiting: dict[tuple[str, ...], set[Uid]] = field(default_factory=dict)
    using: SortedDict[tuple[Served, Uid], PoolName | None] = field(default_factory=SortedDict)

    @property
    def first(self) -> _First | None:
        """Return who is charged, or None if nobody uses it."""
        if not self.using:
            return None
        (served, uid), pool = self.using.peekitem(0)
        return _First(served, uid, pool)


class Claimants:
    """The claims as last observed, and the pods that name them."""

    def __init__(
        self, managed: ManagedResources, classes: Mapping[str, Resource] | None = None
    ) -> None:
        self._managed = managed
        self._classes = Classes(managed, classes or {})
        self._claims: dict[Key, ResourceClaim] = {}
        self._lost: set[Key] = set()
        self._successors: dict[Key, ResourceClaim] = {}
        self._users: dict[Key, _Users] = {}
        self._standings: dict[Uid, _Standing] = {}
        self._stale: dict[Uid, None] = {}

    def put_claim(self, claim: ResourceClaim) -> None:
        """A claim exists in this state.

        One that takes the name of a lost one, and asks for less, counts once nobody past the gate
        uses that any more: they may run with the devices of the lost one.
        """
        if claim.key in self._lost and self._asks_for_less(claim):
            self._successors[claim.key] = claim
            return
        self._lost.discard(claim.key)
        if self._claims.get(claim.key) != claim:
            self._claims[claim.key] = claim
            self._doubt(claim.key)

    def drop_claim(self, key: Key) -> None:
        """A claim exists no more. Pods past the gate are charged for it all the same.

        They may run with its devices: whoever may edit a claim can make it vanish meanwhile.
        """
        if key not in self._claims:
            return
        if self._successors.pop(key, None) is not None:
            return
        users = self._users.get(key)
        if users is not None and users.using:
            self._lost.add(key)
        else:
            del self._claims[key]
        self._doubt(key)

    def _asks_for_less(self, claim: ResourceClaim) -> bool:
        new, old = self._classes.count(claim), self._classes.count(self._claims[claim.key])
        return any(new.get(resource, 0) < value for resource, value in old.items())

    def put_class(self, name: str, stated: Resource | None) -> None:
        """A DeviceClass names this resource as its own, or none; or it exists no more."""
        if self._classes.put(name, stated):
            self._stale.update(dict.fromkeys(self._standings))

    def reckon(self, pod: Pod, use: Use | None) -> Pod:
        """Return a pod with what it is to be charged. `use` is None while it is held.

        Whoever shares a claim with it may stand otherwise from now on: see `take_stale`.
        """
        if pod.plain is None:
            return pod
        keys = dict.fromkeys((pod.namespace, ref.name) for ref in pod.claims if ref.name)
        group = (pod.namespace, pod.user, pod.gang) if pod.gang else (pod.uid,)
        standing = _Standing(tuple(keys), group, use)
        known = self._standings.get(pod.uid)
        if known != standing:
            self._standings[pod.uid] = standing
            self._move(pod.uid, known, standing)
        return self._charge(pod, pod.plain, standing)

    def leave(self, uid: Uid) -> None:
        """A pod is gone; harmless if it has no claims."""
        self._move(uid, self._standings.pop(uid, None), None)

    def take_stale(self) -> list[Uid]:
        """Return, once, the pods that must be reckoned again."""
        stale, self._stale = list(self._stale), {}
        return stale

    def _move(self, uid: Uid, old: _Standing | None, new: _Standing | None) -> None:
        if old is not None:
            for key in old.keys:
                self._part(uid, old, key)
        if new is not None:
            for key in new.keys:
                self._join(uid, new, key)
        for key in old.keys if old else ():
            users = self._users[key]
            if not users.using and key in self._lost:
                self._lost.discard(key)
                del self._claims[key]
                if key in self._successors:
                    self._claims[key] = self._successors.pop(key)
                    self._doubt(key)
            if not users.using and not users.waiting:
                del self._users[key]

    def _join(self, uid: Uid, standing: _Standing, key: Key) -> None:
        users = self._users.setdefault(key, _Users())
        if standing.use is None:
            peers = users.waiting.setdefault(standing.group, set())
            if peers:
                self._stale[min(peers)] = None
            peers.add(uid)
            return
        before = users.first
        users.using[standing.use.served, uid] = standing.use.pool
        self._pass_on(users, before)

    def _part(self, uid: Uid, standing: _Standing, key: Key) -> None:
        users = self._users[key]
        if standing.use is None:
            peers = users.waiting[standing.group]
            peers.discard(uid)
            if peers:
                self._stale[min(peers)] = None
            else:
                del users.waiting[standing.group]
        else:
            before = users.first
            del users.using[standing.use.served, uid]
            self._pass_on(users, before)

    def _pass_on(self, users: _Users, before: _First | None) -> None:
        """Another pod pays than before: both must be reckoned again, and all who wait."""
        after = users.first
        if before == after:
            return
        for each in (before, after):
            if each is not None:
                self._stale[each.uid] = None
        for peers in users.waiting.values():
            self._stale.update(dict.fromkeys(sorted(peers)))

    def _doubt(self, key: Key) -> None:
        users = self._users.get(key)
        if users is None:
            return
        self._stale.update(dict.fromkeys(uid for _, uid in users.using))
        for peers in users.waiting.values():
            self._stale.update(dict.fromkeys(sorted(peers)))

    def _charge(self, pod: Pod, plain: Mapping[Resource, int], standing: _Standing) -> Pod:
        demand = self._classes.rename(plain)
        asks = self._managed.asked(demand)
        tied: PoolName | None = None
        counted: set[Key] = set()
        awaits: list[str] = []
        for ref in pod.claims:
            key = (pod.namespace, ref.name)
            claim = self._claims.get(key)
            if standing.use is None and not self._may_use(pod, ref):
                awaits.append(ref.entry)
            if claim is None or key in counted:
                continue
            counted.add(key)
            amounts = self._classes.count(claim)
            if amounts:
                asks = True
                first = self._users[key].first
                if self._pays(pod.uid, standing, key):
                    demand = add(demand, amounts)
                elif standing.use is None and first is not None:
                    tied = tied or first.pool
        # Of what it awaits nothing is known: it may be managed.
        asks = asks or bool(awaits)
        return replace(pod, demand=demand, awaits=tuple(awaits), tied=tied, asks=asks)

    def _may_use(self, pod: Pod, ref: ClaimRef) -> bool:
        """Tell whether the claim is there that a held pod would get."""
        key = (pod.namespace, ref.name)
        claim = self._claims.get(key)
        if claim is None or key in self._lost:
            return False
        return claim.made_for(pod) or not ref.generated

    def _pays(self, uid: Uid, standing: _Standing, key: Key) -> bool:
        users = self._users[key]
        first = users.first
        if first is not None:
            return first.uid == uid
        return uid == min(users.waiting[standing.group])
