"""Equal needs become one object, so that what fits is asked once for all who need the same."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.backlog import Shape
from app.core.model import Amounts, Millis, Pin, Pod, PoolName, Resource
from app.core.pools import add_to

_Key = tuple[object, ...]

_Kind = tuple[frozenset[tuple[Resource, int]], Pin]
"""What makes pods alike: what they ask for, and the nodes they are pinned to."""


class Shapes:
    """All shapes in use, and those that were since `clear`."""

    def __init__(self) -> None:
        self._known: dict[_Key, Shape] = {}
        self._alone: dict[_Key, Shape] = {}

    def __len__(self) -> int:
        """Return how many are remembered; a pod alone takes two at most."""
        return len(self._known) + len(self._alone)

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()
        self._alone.clear()

    def of(self, pods: Sequence[Pod], pools: tuple[PoolName, ...]) -> Shape:
        """Return the shape of pods that are released together into one of these pools."""
        if len(pods) == 1:
            pod = pods[0]
            known = (_kind(pod), pools, pod.max_runtime, pod.preemptible)
            if known not in self._alone:
                self._alone[known] = self._together(pods, pools)
            return self._alone[known]
        return self._together(pods, pools)

    def _together(self, pods: Sequence[Pod], pools: tuple[PoolName, ...]) -> Shape:
        lifetime = _longest(pods)
        preemptible = all(pod.preemptible for pod in pods)
        counts: dict[_Kind, int] = {}
        for pod in pods:
            counts[_kind(pod)] = counts.get(_kind(pod), 0) + 1
        key = (frozenset(counts.items()), pools, lifetime, preemptible)
        shape = self._known.get(key)
        if shape is None:
            parts: list[tuple[Amounts, int]] = []
            total: dict[Resource, int] = {}
            demands = {asked: pod.demand for pod in pods for asked, _ in [_kind(pod)]}
            kinds = sorted(counts, key=_by_size, reverse=True)
            for asked, pin in kinds:
                count = counts[asked, pin]
                parts.append((demands[asked], count))
                add_to(total, {r: v * count for r, v in demands[asked].items()}, 1)
            pinned = any(pin is not None for _, pin in kinds)
            shape = self._known[key] = Shape(
                tuple(parts),
                total,
                pools,
                lifetime,
                preemptible,
                tuple(pin for _, pin in kinds) if pinned else (),
            )
        return shape


def _kind(pod: Pod) -> _Kind:
    return frozenset(pod.demand.items()), pod.only


def _by_size(kind: _Kind) -> tuple[list[tuple[Resource, int]], bool, tuple[str, ...]]:
    asked, pin = kind
    return sorted(asked), pin is not None, pin or ()


def _longest(pods: Sequence[Pod]) -> Millis | None:
    """Return the declared run time of all together, None if one does not say."""
    times = [pod.max_runtime for pod in pods if pod.max_runtime is not None]
    return max(times) if len(times) == len(pods) else None


def in_order(pods: Sequence[Pod], shape: Shape) -> list[Pod]:
    """Return the pods in the order of the parts of their shape."""
    left = list(pods)
    ordered: list[Pod] = []
    for number, (demand, _) in enumerate(shape.parts):
        pin = shape.pins[number] if shape.pins else None
        ordered += [pod for pod in left if pod.demand == demand and pod.only == pin]
        left = [pod for pod in left if pod.demand != demand or pod.only != pin]
    return ordered
