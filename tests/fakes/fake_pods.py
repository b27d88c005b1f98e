"""Held pods in memory, and a Releaser without an API server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.core.effects import PodRef, Release
from app.core.errors import ClusterUnavailable, PodUnyielding
from app.core.model import ReleaseOutcome
from app.core.release_patch import release_fence
from app.core.well_known import RELEASE_HELD


@dataclass
class StoredPod:
    """The fields of a pod that a release reads."""

    uid: str
    stamp: str = RELEASE_HELD
    held: bool = True
    finished: bool = False
    labels: dict[str, str] = field(default_factory=dict)


class FakeReleaser:
    """`ports.cluster.Releaser` on `pods`, by namespace and name. It can be made to misbehave."""

    def __init__(self, may_act: Callable[[], bool] = lambda: True) -> None:
        self.pods: dict[tuple[str, str], StoredPod] = {}
        self.silent = False
        """No request gets through."""
        self.deaf = False
        """Patches take effect, but no reply comes back."""
        self.stubborn: set[str] = set()
        """Names of pods of which no change gets through."""
        self.unreadable: set[str] = set()
        """Names of pods that cannot be read."""
        self.late: list[Release] | None = None
        """A list: patches wait here unanswered until the test delivers them."""
        self._may_act = may_act

    async def release(self, order: Release) -> ReleaseOutcome | None:
        if not self._may_act():
            return ReleaseOutcome.HELD
        if self.late is not None:
            self.late.append(order)
            return None
        if self.silent or order.intent.ref.name in self.stubborn:
            return None
        if self.apply(order):
            return None if self.deaf else ReleaseOutcome.RELEASED
        return self._judge(order.intent.ref)

    async def read_outcome(self, order: Release) -> ReleaseOutcome | None:
        if self.silent:
            return None
        answer = self._judge(order.intent.ref)
        if answer is ReleaseOutcome.HELD:
            self._change(order.intent.ref)
            pod = self.pods[_key(order.intent.ref)]
            if pod.stamp == order.expected_annotation:
                pod.stamp = release_fence(order)
        return answer

    async def fence(self, ref: PodRef, epoch: int) -> ReleaseOutcome:
        if self.silent or ref.name in self.unreadable:
            raise ClusterUnavailable("no answer")
        answer = self._judge(ref)
        if answer is ReleaseOutcome.HELD:
            self._change(ref)
            self.pods[_key(ref)].stamp = f"{RELEASE_HELD}@{epoch}"
        return answer

    def _change(self, ref: PodRef) -> None:
        if ref.name in self.stubborn:
            raise PodUnyielding(f"pod {ref.name} cannot be changed")

    def apply(self, order: Release) -> bool:
        """Apply a release patch as the API server does; False if one of its tests fails."""
        ref = order.intent.ref
        pod = self.pods.get(_key(ref))
        if (
            pod is None
            or pod.uid != ref.uid
            or not pod.held
            or pod.stamp != order.expected_annotation
        ):
            return False
        pod.held = False
        pod.stamp = order.stamp
        pod.labels |= order.labels
        return True

    def _judge(self, ref: PodRef) -> ReleaseOutcome:
        pod = self.pods.get(_key(ref))
        if pod is None or pod.uid != ref.uid:
            return ReleaseOutcome.GONE
        if pod.held:
            return ReleaseOutcome.HELD
        return ReleaseOutcome.GONE if pod.finished else ReleaseOutcome.RELEASED


def _key(ref: PodRef) -> tuple[str, str]:
    return ref.namespace, ref.name
