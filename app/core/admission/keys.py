"""Which of the keys that begin with `fairgate.io/` users may write. Names only."""

from __future__ import annotations

OURS = "fairgate.io/"

FROZEN = frozenset(OURS + key for key in ("gang", "gang-size", "gang-failure"))
"""Read once, when the pod is created."""

FOR_USERS = FROZEN | frozenset(
    OURS + key
    for key in (
        "placement",
        "topology",
        "gpu-memory",
        "model-size",
        "max-runtime",
        "preemptible",
        "pools",
    )
)
"""Our annotations that users may write; until the release, if they are not frozen."""
