"""An Adopter, an Evictor and an Installation without an API server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from app.core.effects import Adopt, GiveReclaimNotice, PodRef, WithdrawReclaimNotice
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.model import Millis, Uid
from app.core.well_known import ANNOTATION_RECLAIM_AT, RELEASE_ADOPTED


@dataclass
class FreePod:
    """A released pod with the fields that corrections use."""

    uid: str
    stamp: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    budget: list[int] | None = None
    """Evictions that the disruption budget still allows, shared by all pods of the budget."""


class FakeCorrector:
    """`Adopter`, `Evictor` and `ReclaimNotifier` of `ports.cluster` on `pods`.

    The keys of `pods` are namespace and name.
    """

    def __init__(self) -> None:
        self.pods: dict[tuple[str, str], FreePod] = {}
        self.silent = False
        """No request gets through."""
        self.asked: list[PodRef] = []
        self.deleted: list[str] = []
        """Pods that were deleted rather than evicted."""
        self.meanwhile: Callable[[], None] = lambda: None
        """Happens once it was told who would be kept."""

    async def adopt(self, order: Adopt) -> None:
        pod = self._find(order.ref)
        if pod is None:
            return
        if pod.uid != order.ref.uid:
            raise ClusterRefused("uid: field is immutable", 422)
        pod.stamp = RELEASE_ADOPTED
        pod.labels |= order.labels

    async def give_notice(self, order: GiveReclaimNotice) -> None:
        pod = self._find(order.ref)
        if pod is not None and pod.uid == order.ref.uid:
            pod.annotations[ANNOTATION_RECLAIM_AT] = str(order.ends_at)

    async def withdraw_notice(self, order: WithdrawReclaimNotice) -> None:
        pod = self._find(order.ref)
        if pod is not None and pod.uid == order.ref.uid:
            pod.annotations.pop(ANNOTATION_RECLAIM_AT, None)

    async def evict(self, ref: PodRef) -> bool:
        pod = self._find(ref)
        if pod is None or pod.uid != ref.uid:
            return True
        if pod.budget is not None:
            if pod.budget[0] <= 0:
                return False
            pod.budget[0] -= 1
        del self.pods[ref.namespace, ref.name]
        return True

    async def delete(self, ref: PodRef) -> None:
        pod = self._find(ref)
        if pod is not None and pod.uid == ref.uid:
            del self.pods[ref.namespace, ref.name]
            self.deleted.append(ref.name)

    async def find_unevictable(self, refs: Sequence[PodRef]) -> Mapping[Uid, str]:
        there = [(ref.uid, pod) for ref in refs if (pod := self._find(ref)) is not None]
        guarded = [(uid, pod.budget) for uid, pod in there if pod.uid == uid and pod.budget]
        answer = {
            uid: f"a budget allows {budget[0]}"
            for uid, budget in guarded
            if sum(other is budget for _, other in guarded) > budget[0]
        }
        self.meanwhile()
        return answer

    def _find(self, ref: PodRef) -> FreePod | None:
        self.asked.append(ref)
        if self.silent:
            raise ClusterUnavailable("no answer")
        return self.pods.get((ref.namespace, ref.name))


class FakeInstallation:
    """`ports.cluster.InstallRecord` in memory."""

    def __init__(self, since: Millis | None = None) -> None:
        self.kept = since

    async def ensure_install_time(self, now: Millis) -> Millis:
        if self.kept is None:
            self.kept = now
        return self.kept
