"""Equal needs become one object, so that what fits is asked once for all who need the same."""

from __future__ import annotations

from collections.abc import Sequence

from app.core.asks.levels import alone
from app.core.asks.shape import Manner, Shape
from app.core.asks.terms import ANYWHERE, Spacing, Terms
from app.core.model import Amounts, Millis, Pin, Pod, PoolName, Resource
from app.core.places.pools import add_to
from app.core.places.reach import terms_of

_Key = tuple[object, ...]

_Kind = tuple[frozenset[tuple[Resource, int]], Pin, Terms, tuple[Spacing, ...]]
"""What makes pods alike: what they ask for, the nodes they are pinned to, their terms, and the
distance they keep."""


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

    def of(
        self, pods: Sequence[Pod], pools: tuple[PoolName, ...], manner: Manner | None = None
    ) -> Shape:
        """Return the shape of pods that are released together into one of these pools.

        `manner` is that of their gang; None: the first one's own.
        """
        if manner is None:
            manner = alone(pods[0].style)
        if len(pods) == 1:
            pod = pods[0]
            sized = pod.gpu_memory > 0
            known = (_kind(pod), pools, pod.max_runtime, pod.preemptible, sized, manner)
            if known not in self._alone:
                self._alone[known] = self._together(pods, pools, manner)
            return self._alone[known]
        return self._together(pods, pools, manner)

    def _together(self, pods: Sequence[Pod], pools: tuple[PoolName, ...], manner: Manner) -> Shape:
        lifetime = _longest(pods)
        preemptible = all(pod.preemptible for pod in pods)
        sized = any(pod.gpu_memory for pod in pods)
        counts: dict[_Kind, int] = {}
        for pod in pods:
            counts[_kind(pod)] = counts.get(_kind(pod), 0) + 1
        key = (frozenset(counts.items()), pools, lifetime, preemptible, sized, manner)
        shape = self._known.get(key)
        if shape is None:
            parts: list[tuple[Amounts, int]] = []
            total: dict[Resource, int] = {}
            demands = {asked: pod.demand for pod in pods for asked, *_ in [_kind(pod)]}
            kinds = sorted(counts, key=_by_size, reverse=True)
            for kind in kinds:
                asked, count = kind[0], counts[kind]
                parts.append((demands[asked], count))
                add_to(total, {r: v * count for r, v in demands[asked].items()}, 1)
            pinned = any(pin is not None for _, pin, _, _ in kinds)
            stated = any(terms != ANYWHERE for _, _, terms, _ in kinds)
            spaced = any(spacings for _, _, _, spacings in kinds)
            shape = self._known[key] = Shape(
                tuple(parts),
                total,
                pools,
                lifetime,
                preemptible,
                tuple(pin for _, pin, _, _ in kinds) if pinned else (),
                tuple(terms for _, _, terms, _ in kinds) if stated else (),
                tuple(spacings for _, _, _, spacings in kinds) if spaced else (),
                manner,
                sized,
            )
        return shape


def _kind(pod: Pod) -> _Kind:
    return frozenset(pod.demand.items()), pod.only, terms_of(pod), pod.spacings


def _by_size(kind: _Kind) -> tuple[list[tuple[Resource, int]], bool, tuple[str, ...], str]:
    asked, pin, terms, spacings = kind
    stated = terms != ANYWHERE or spacings
    return sorted(asked), pin is not None, pin or (), repr((terms, spacings)) if stated else ""


def _longest(pods: Sequence[Pod]) -> Millis | None:
    """Return the declared run time of all together, None if one does not say."""
    times = [pod.max_runtime for pod in pods if pod.max_runtime is not None]
    return max(times) if len(times) == len(pods) else None


def in_order(pods: Sequence[Pod], shape: Shape) -> list[Pod]:
    """Return the pods in the order of the parts of their shape."""
    if len(shape.parts) == 1:
        return list(pods)
    left = list(pods)
    ordered: list[Pod] = []
    for number, (demand, _) in enumerate(shape.parts):
        pin = shape.pins[number] if shape.pins else None
        terms = shape.terms[number] if shape.terms else ANYWHERE
        spacings = shape.spacings[number] if shape.spacings else ()
        kind = (frozenset(demand.items()), pin, terms, spacings)
        ordered += [pod for pod in left if _kind(pod) == kind]
        left = [pod for pod in left if _kind(pod) != kind]
    return ordered
