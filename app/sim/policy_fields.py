"""The fields of a Policy as people write them, in scenario files and after `--set`.

Lengths of time are read as a cluster reads them, so that what is written here holds there too.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.core.policy import Reclaim, WithinQueue
from app.sim import readers


def _reclaim(text: str) -> Reclaim:
    """A bare off is a boolean to YAML, and some programs write it out again as false."""
    if text.lower() in ("off", "false"):
        return Reclaim.OFF
    return readers.choice(Reclaim)(text)


FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "history": ("history", readers.decimal),
    "halfLife": ("half_life", readers.some_cluster_time),
    "minCharge": ("min_charge", readers.cluster_time),
    "reserveAfter": ("reserve_after", readers.cluster_time),
    "backfill": ("backfill", readers.switch),
    "reclaim": ("reclaim", _reclaim),
    "withinQueue": ("within_queue", readers.choice(WithinQueue)),
    "minRuntime": ("min_runtime", readers.cluster_time),
}
"""By the name that people write: the attribute of a Policy, and how its value is read."""
