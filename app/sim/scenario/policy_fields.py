"""The fields of a Policy as written in scenario files and after `--set`.

Durations are parsed as on a cluster, so that the same value is valid in both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from app.core.policy import DisruptionBudgets, Reclaim, WithinQueue
from app.sim.scenario import value_parsers


def _reclaim(text: str) -> Reclaim:
    """Read a reclaim mode. A bare off is a YAML boolean, which some programs rewrite as false."""
    if text.lower() in ("off", "false"):
        return Reclaim.OFF
    return value_parsers.choice(Reclaim)(text)


FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "history": ("history", value_parsers.decimal),
    "halfLife": ("half_life", value_parsers.positive_cluster_time),
    "minCharge": ("min_charge", value_parsers.cluster_time),
    "reserveAfter": ("reserve_after", value_parsers.cluster_time),
    "backfill": ("backfill", value_parsers.switch),
    "reclaim": ("reclaim", _reclaim),
    "withinQueue": ("within_queue", value_parsers.choice(WithinQueue)),
    "disruptionBudgets": ("disruption_budgets", value_parsers.choice(DisruptionBudgets)),
    "minRuntime": ("min_runtime", value_parsers.cluster_time),
    "maxReclaimNotice": ("max_reclaim_notice", value_parsers.cluster_time),
}
"""Written name of a field to the attribute of `Policy` and the parser of its value."""
