"""The succeeded pods of gangs that still exist. A gang no longer requires them."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

from app.core.lifecycle.gang_declarations import GangDeclarations, GangReference, GangSource
from app.core.lifecycle.pod_record import GangKey
from app.core.model import Uid


class _Succeeded(NamedTuple):
    key: GangKey
    owner: GangSource
    named: GangReference


class SucceededPods:
    """The succeeded pods of each gang, each with the owners of all pods that the gang had then."""

    def __init__(self) -> None:
        self._pods: dict[Uid, _Succeeded] = {}
        self._by_owner: dict[GangSource, dict[Uid, None]] = {}
        self._by_gang: dict[GangKey, dict[Uid, frozenset[str]]] = {}

    def pods_of(self, key: GangKey) -> dict[Uid, frozenset[str]]:
        """Return the pods of a gang. The result follows later changes until `forget_gang`."""
        return self._by_gang.setdefault(key, {})

    def count_by_group(self, key: GangKey) -> Counter[str]:
        """Return the number of pods of a gang for each object that they name."""
        return Counter(self._pods[uid].named.source.name for uid in self._by_gang.get(key, ()))

    def record(
        self,
        key: GangKey,
        owner: GangSource,
        named: GangReference,
        uid: Uid,
        owners: frozenset[str],
    ) -> None:
        """Record a succeeded pod, unless it is known. `owner`: the object that owns the gang."""
        if uid not in self._pods:
            self._pods[uid] = _Succeeded(key, owner, named)
            self._by_owner.setdefault(owner, {})[uid] = None
            self.pods_of(key)[uid] = owners

    def remove(self, uid: Uid) -> GangKey | None:
        """Remove a pod that no longer exists. Return its gang, or None if it is not known."""
        found = self._pods.pop(uid, None)
        if found is None:
            return None
        del self.pods_of(found.key)[uid]
        pods = self._by_owner[found.owner]
        del pods[uid]
        if not pods:
            del self._by_owner[found.owner]
        return found.key

    def regroup(self, owner: GangSource, declared: GangDeclarations) -> None:
        """Give the pods of the gangs of an object to the gangs that they have now."""
        for uid in list(self._by_owner.get(owner, ())):
            key, _, named = self._pods[uid]
            owners = self.pods_of(key)[uid]
            self.remove(uid)
            self.forget_gang(key)
            now = (*key[:2], declared.name_of(named))
            self.record(now, declared.owner_of(named.source), named, uid, owners)

    def forget_gang(self, key: GangKey) -> None:
        """Remove a gang that has no other pods, unless it has succeeded pods."""
        if not self._by_gang.get(key):
            self._by_gang.pop(key, None)
