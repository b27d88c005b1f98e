"""What a workload needs, and where and how it may be put: one value for all that need the same."""

from __future__ import annotations

from dataclasses import dataclass

from app.core.asks.terms import Spacing, Terms
from app.core.model import Amounts, Millis, Near, NodeName, Pin, PoolName, Style

Parts = tuple[tuple[Amounts, int], ...]
"""The pods of a workload: what each asks for, and how many of that kind there are."""

Pins = tuple[Pin, ...]
"""Where the pods of each part may go; empty: none of them is pinned to nodes."""


@dataclass(frozen=True, slots=True)
class Manner:
    """How a workload is laid out. `style` None: as its pool is.

    `near`: the level it is to be kept together at; None: as close as the levels of its pool allow.
    `beside`: the nodes that the rest of its gang is on.
    """

    style: Style | None = None
    near: Near | None = None
    beside: tuple[NodeName, ...] = ()

    @property
    def confined(self) -> str:
        """The label of which all its nodes must have one value; "": none."""
        return self.near.label if self.near is not None and self.near.required else ""


ANYHOW = Manner()


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """What a workload needs, and where it may go. Compared by identity: interned.

    `total` sums the parts, `lifetime` is the run time its owner declared. `pins` and `terms` say
    for each part where its pods may go (see `Placement.pins`), `spacings` what distance they keep;
    () where no part states any. `sized`: it says how much memory of devices it needs, so the
    smallest devices that do are best.
    """

    parts: Parts
    total: Amounts
    pools: tuple[PoolName, ...]
    lifetime: Millis | None = None
    preemptible: bool = True
    pins: Pins = ()
    terms: tuple[Terms, ...] = ()
    spacings: tuple[tuple[Spacing, ...], ...] = ()
    manner: Manner = ANYHOW
    sized: bool = False
