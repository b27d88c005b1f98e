"""Equal needs become one object, so that what fits is asked once for all who need the same."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.backlog import Parts, Shape
from app.core.model import Amounts, Millis, Pod, PoolName, Resource
from app.core.pools import add_to

_Key = tuple[object, ...]


class Shapes:
    """All shapes in use."""

    def __init__(self) -> None:
        self._known: dict[_Key, Shape] = {}
        self._alone: dict[_Key, Shape] = {}

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()
        self._alone.clear()

    def of(self, pods: Sequence[Pod], pools: tuple[PoolName, ...]) -> Shape:
        """Return the shape of pods that are released together into one of these pools."""
        if len(pods) == 1:
            pod = pods[0]
            known = (frozenset(pod.demand.items()), pools, pod.max_runtime, pod.preemptible)
            if known not in self._alone:
                self._alone[known] = self._together(pods, pools)
            return self._alone[known]
        return self._together(pods, pools)

    def _together(self, pods: Sequence[Pod], pools: tuple[PoolName, ...]) -> Shape:
        lifetime = _longest(pods)
        preemptible = all(pod.preemptible for pod in pods)
        counts: dict[frozenset[tuple[Resource, int]], int] = {}
        for pod in pods:
            asked = frozenset(pod.demand.items())
            counts[asked] = counts.get(asked, 0) + 1
        key = (frozenset(counts.items()), pools, lifetime, preemptible)
        shape = self._known.get(key)
        if shape is None:
            parts: list[tuple[Amounts, int]] = []
            total: dict[Resource, int] = {}
            kinds = {frozenset(pod.demand.items()): pod.demand for pod in pods}
            for asked in sorted(counts, key=sorted, reverse=True):
                parts.append((kinds[asked], counts[asked]))
                add_to(total, {r: v * counts[asked] for r, v in kinds[asked].items()}, 1)
            shape = self._known[key] = Shape(
                tuple(parts),
                total,
                pools,
                lifetime,
                preemptible,
            )
        return shape


def _longest(pods: Sequence[Pod]) -> Millis | None:
    """Return the declared run time of all together, None if one does not say."""
    times = [pod.max_runtime for pod in pods if pod.max_runtime is not None]
    return max(times) if len(times) == len(pods) else None


def in_order(pods: Sequence[Pod], parts: Parts) -> list[Pod]:
    """Return the pods in the order of the parts of their shape."""
    left = list(pods)
    ordered: list[Pod] = []
    for demand, _ in parts:
        ordered += [pod for pod in left if pod.demand == demand]
        left = [pod for pod in left if pod.demand != demand]
    return ordered
