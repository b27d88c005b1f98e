"""Heads of queues that may go to several pools: in which of them they fit now.

Their place in the order depends on that. Knows nothing of shares; `shares` asks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from app.core.asks.shape import Shape
from app.core.fair.branch import Leaf
from app.core.model import PoolName

Pools = tuple[PoolName, ...]


class Undecided:
    """Leaves by the shape of their heads. False if there are none."""

    def __init__(self, fitting: Callable[[Shape], Sequence[PoolName]]) -> None:
        """`fitting` tells in which of its pools a shape fits now, the best packed first."""
        self._fitting = fitting
        self._leaves: dict[Shape, dict[Leaf, None]] = {}
        self._fitted: dict[Shape, Pools] = {}

    def __bool__(self) -> bool:
        return bool(self._leaves)

    def __iter__(self) -> Iterator[Leaf]:
        for leaves in self._leaves.values():
            yield from leaves

    def fitted(self, shape: Shape) -> Pools:
        """Return where a shape fitted when that was last looked at."""
        if len(shape.pools) > 1 and shape not in self._fitted:
            self._fitted[shape] = tuple(self._fitting(shape))
        return self._fitted.get(shape, ())

    def moved(self) -> Iterator[Leaf]:
        """Look again; return the leaves whose heads fit elsewhere than before."""
        for shape, before in self._fitted.items():
            fitting = tuple(self._fitting(shape))
            if fitting != before:
                self._fitted[shape] = fitting
                yield from self._leaves[shape]

    def follow(self, leaf: Leaf, before: Shape | None) -> None:
        """Take note of the head of a leaf, and forget the one before it."""
        now = leaf.head[1] if leaf.head else None
        if now is before:
            return
        if before is not None and before in self._leaves:
            self._leaves[before].pop(leaf, None)
            if not self._leaves[before]:
                del self._leaves[before]
                self._fitted.pop(before, None)
        if now is not None and len(now.pools) > 1:
            self._leaves.setdefault(now, {})[leaf] = None
