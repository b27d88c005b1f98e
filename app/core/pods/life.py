"""The life of a managed pod as a table: what it was to us, what is seen now, what it is then.

A gate that is gone never comes back (Kubernetes forbids it), so a sighting that shows it again
is an old one.
"""

from __future__ import annotations

from enum import Enum

from app.core.model import GATE, Phase, Pod


class Life(Enum):
    """What a pod is to the engine. A pod that is over, or unknown, has none."""

    HELD = "held"
    RELEASING = "releasing"
    """The release patch may have been sent; counts as used."""
    USING = "using"


class Sight(Enum):
    """What one observation of a pod shows."""

    GATED = "gated"
    OPEN = "open"
    OVER = "over"


def sight(pod: Pod) -> Sight:
    """Tell what an observation shows. A terminating pod still uses what it has until it is gone."""
    if pod.phase is Phase.FINISHED:
        return Sight.OVER
    if GATE not in pod.gates:
        return Sight.OPEN
    return Sight.OVER if pod.terminating else Sight.GATED


LIVES: dict[tuple[Life | None, Sight], Life | None] = {
    (None, Sight.GATED): Life.HELD,
    (None, Sight.OPEN): Life.USING,
    (None, Sight.OVER): None,
    (Life.HELD, Sight.GATED): Life.HELD,
    (Life.HELD, Sight.OPEN): Life.USING,
    (Life.HELD, Sight.OVER): None,
    (Life.RELEASING, Sight.GATED): Life.RELEASING,
    (Life.RELEASING, Sight.OPEN): Life.USING,
    (Life.RELEASING, Sight.OVER): None,
    (Life.USING, Sight.GATED): Life.USING,
    (Life.USING, Sight.OPEN): Life.USING,
    (Life.USING, Sight.OVER): None,
}
