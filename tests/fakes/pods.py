"""Held pods in memory, and a Releaser without an API server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from app.core.admission.gate import fence_of
from app.core.effects import PodRef, Release
from app.core.errors import ClusterUnavailable, PodUnyielding
from app.core.model import HELD, Answer


@dataclass
class StoredPod:
    """What a release looks at."""

    uid: str
    stamp: str = HELD
    held: bool = True
    finished: bool = False
    labels: dict[str, str] = field(default_factory=dict)


class FakeReleaser:
    """`ports.Releaser` on `pods`, keyed by namespace and name. Can be told to misbehave."""

    def __init__(self, may_act: Callable[[], bool] = lambda: True) -> None:
        self.pods: dict[tuple[str, str], StoredPod] = {}
        self.silent = False
        """No request gets through."""
        self.deaf = False
        """Patches take effect, but no reply comes back."""
        self.stubborn: set[str] = set()
        """Names of pods of which no change gets through."""
        self.late: list[Release] | None = None
        """A list: patches wait here unanswered until the test delivers them."""
        self._may_act = may_act

    async def release(self, order: Release) -> Answer | None:
        if not self._may_act():
            return Answer.HELD
        if self.late is not None:
            self.late.append(order)
            return None
        if self.silent or order.intent.ref.name in self.stubborn:
            return None
        if self.apply(order):
            return None if self.deaf else Answer.RELEASED
        return self._judge(order.intent.ref)

    async def look(self, order: Release) -> Answer | None:
        if self.silent:
            return None
        answer = self._judge(order.intent.ref)
        if answer is Answer.HELD:
            self._change(order.intent.ref)
            pod = self.pods[_key(order.intent.ref)]
            if pod.stamp == order.tested:
                pod.stamp = fence_of(order)
        return answer

    async def fence(self, ref: PodRef, epoch: int) -> Answer:
        if self.silent:
            raise ClusterUnavailable("no answer")
        answer = self._judge(ref)
        if answer is Answer.HELD:
            self._change(ref)
            self.pods[_key(ref)].stamp = f"{HELD}@{epoch}"
        return answer

    def _change(self, ref: PodRef) -> None:
        if ref.name in self.stubborn:
            raise PodUnyielding(f"pod {ref.name} cannot be changed")

    def apply(self, order: Release) -> bool:
        """Do what the API server does with a release patch; False if one of its tests fails."""
        ref = order.intent.ref
        pod = self.pods.get(_key(ref))
        if pod is None or pod.uid != ref.uid or not pod.held or pod.stamp != order.tested:
            return False
        pod.held = False
        pod.stamp = order.stamp
        pod.labels |= order.labels
        return True

    def _judge(self, ref: PodRef) -> Answer:
        pod = self.pods.get(_key(ref))
        if pod is None or pod.uid != ref.uid:
            return Answer.GONE
        if pod.held:
            return Answer.HELD
        return Answer.GONE if pod.finished else Answer.RELEASED


def _key(ref: PodRef) -> tuple[str, str]:
    return ref.namespace, ref.name
