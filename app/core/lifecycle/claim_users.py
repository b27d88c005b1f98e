"""The pods that name a ResourceClaim: waiting pods by workload, and ungated pods by release."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from sortedcontainers import SortedDict, SortedSet

from app.core.fairshare.sort_key import Served
from app.core.model import PoolName, Uid, UserName

ClaimKey = tuple[str, str]
"""Namespace and name of a claim."""


class ClaimUse(NamedTuple):
    """The release of an ungated pod, and its pool if that is known.

    `is_protected`: no reclaim takes it, because it or its gang is not preemptible.
    """

    served: Served
    pool: PoolName | None
    is_protected: bool = False


class ChargedPod(NamedTuple):
    """The pod that is charged for a claim."""

    served: Served
    uid: Uid
    pool: PoolName | None


class PodClaims(NamedTuple):
    """The claims of a pod, its workload and its use. `unbound`: it is ungated and has no node."""

    keys: tuple[ClaimKey, ...]
    group: tuple[str, ...]
    use: ClaimUse | None
    unbound: bool
    user: UserName


@dataclass(slots=True)
class ClaimUsers:
    """The pods that name one claim: waiting pods by workload, and ungated pods.

    `unbound`: the ungated pods without a node.
    """

    waiting: dict[tuple[str, ...], SortedSet[Uid]] = field(default_factory=dict)
    using: SortedDict[tuple[Served, Uid], PoolName | None] = field(default_factory=SortedDict)
    unbound: set[Uid] = field(default_factory=set)

    @property
    def charged_pod(self) -> ChargedPod | None:
        """The ungated pod with the earliest release. None: no pod uses the claim."""
        if not self.using:
            return None
        (served, uid), pool = self.using.peekitem(0)
        return ChargedPod(served, uid, pool)

    @property
    def bound_pods(self) -> set[Uid]:
        """The pods with a node."""
        return {uid for _, uid in self.using} - self.unbound
