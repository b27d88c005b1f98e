"""Decides whether a waiting pod may use a ResourceClaim that is charged already.

A pod may not join a claim while the pod that is charged for it is being evicted: that would free
no device. A pod that no reclaim takes may not join the claim of a pod that one may take: the
charge could move to it, and stay for ever. Disruption budgets do not matter for this: they change,
and may allow an eviction only after the pod has joined.

An allocated claim without a user is a leftover. Pods may use it as it is after `LEFTOVER_MS`, if
its devices are within the limits of the tenant.
"""

from __future__ import annotations

from app.core.lifecycle.claim_users import ClaimKey, ClaimUse
from app.core.model import Pod, Uid

LEFTOVER_MS = 60_000
"""Time for which waiting pods may not use a claim that is allocated and has no user. Kubernetes
usually deallocates such a claim within seconds."""

JOINS_EVICTED = (
    "the pod that is charged for resource claim {claim} is to be evicted; this pod waits for its "
    "turn until that has ended"
)
JOINS_LEFTOVER = (
    "resource claim {claim} is still allocated after its last pod, and is usually freed within "
    "seconds; after a minute the pod may use it as it is"
)
JOINS_OVER_LIMIT = (
    "resource claim {claim} is still allocated after its last pod, and its devices are beyond a "
    "limit of the tenant; the pod may use it when other pods have ended, or the claim is freed"
)
JOINS_RECLAIMABLE = (
    "resource claim {claim} is in use by pods that a reclaim may evict, or was left by one, and "
    "this pod may not use borrowed capacity; it waits until the claim is free"
)


class ClaimJoins:
    """The claims and pods for which joining is restricted.

    `protected`: preemptible pods that no reclaim will take, because their gang has others.
    """

    def __init__(self) -> None:
        self.protected: set[Uid] = set()
        self._leftovers: dict[ClaimKey, str] = {}
        """Claims that are charged without a user, and why waiting pods may not use them, or ""."""
        self._reclaimed: dict[ClaimKey, None] = {}

    def is_reclaimed(self, key: ClaimKey) -> bool:
        """Return whether no pod may join a claim, because the charged pod is being evicted."""
        return key in self._reclaimed

    @property
    def reclaimed_claims(self) -> tuple[ClaimKey, ...]:
        """The claims that no pod may join, because the charged pod is being evicted."""
        return tuple(self._reclaimed)

    def set_reclaimed(self, key: ClaimKey, reclaimed: bool) -> None:
        """Set whether the pod that is charged for a claim is being evicted."""
        if reclaimed:
            self._reclaimed[key] = None
        else:
            self._reclaimed.pop(key, None)

    def is_leftover(self, key: ClaimKey) -> bool:
        """Return whether a claim is charged without a user."""
        return key in self._leftovers

    def is_fresh_leftover(self, key: ClaimKey) -> bool:
        """Return whether a claim is charged without a user, and no pod may use it yet."""
        return self._leftovers.get(key) == JOINS_LEFTOVER

    def set_leftover(self, key: ClaimKey, why: str | None) -> bool:
        """Set why waiting pods may not use a charged claim without users ("": they may).

        None: it is not charged. Return whether that changed.
        """
        if self._leftovers.get(key) == why:
            return False
        if why is None:
            del self._leftovers[key]
        else:
            self._leftovers[key] = why
        return True

    def why_not_join(self, pod: Pod, key: ClaimKey, use: ClaimUse | None) -> str:
        """Return why a waiting pod may not join a claim that is charged already, or "".

        `use`: the release of the charged pod. None: the claim is a leftover.
        """
        why = ""
        may_be_reclaimed = pod.preemptible and pod.uid not in self.protected
        if use is not None and key in self._reclaimed:
            why = JOINS_EVICTED
        elif not may_be_reclaimed and not (use and use.is_protected):
            why = JOINS_RECLAIMABLE
        elif use is None:
            why = self._leftovers[key]
        return why.format(claim=key[1])
