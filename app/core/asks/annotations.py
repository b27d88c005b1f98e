"""What users write on their pods for Fairgate, read so that a mistake does no harm.

The API server has stored it already: nothing here refuses, the gate warns.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.core.asks.levels import level_misread, style_misread
from app.core.durations import duration
from app.core.errors import InvalidInput
from app.core.model import (
    ANNOTATION_GANG,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_MAX_RUNTIME,
    ANNOTATION_POOLS,
    ANNOTATION_PREEMPTIBLE,
    Millis,
)

Annotations = Mapping[str, str]

LARGEST_GANG = 10_000

OF_THE_JOB = "job"
"""Names no gang of its own: it stands for the Job that a pod belongs to."""

ALONE = ("", 1)


def named_pools(annotations: Annotations) -> tuple[str, ...]:
    """Return the pools that the user names, in that order; empty means any."""
    written = annotations.get(ANNOTATION_POOLS, "")
    return tuple(name.strip() for name in written.split(",") if name.strip())


def declared_runtime(annotations: Annotations) -> Millis | None:
    """Return how long the pod runs at most; None: its user does not say, or not legibly."""
    written = annotations.get(ANNOTATION_MAX_RUNTIME)
    try:
        return (duration(written) or None) if written is not None else None
    except InvalidInput:
        return None


def may_be_evicted(annotations: Annotations) -> bool:
    """Tell whether others may take back what the pod borrows: unless its user says "false"."""
    return annotations.get(ANNOTATION_PREEMPTIBLE) != "false"


def named_gang(annotations: Annotations) -> tuple[str, int]:
    """Return the gang that a pod is one of, and how many pods that has; `ALONE` for none.

    Without a legible size nobody could tell when it is complete, so its pods go each alone.
    """
    name = annotations.get(ANNOTATION_GANG, "").strip()
    count = whole(annotations.get(ANNOTATION_GANG_SIZE, ""))
    return (name, count) if name and name != OF_THE_JOB and count > 1 else ALONE


def whole(size: str) -> int:
    """Return how many pods a text says that a gang has; 0 if it says nothing that can be."""
    size = size.strip()
    if not (size.isascii() and size.isdecimal()):
        return 0
    count = int(size) if len(size) < 9 else 0
    return count if count <= LARGEST_GANG else 0


def misread(annotations: Annotations) -> Iterator[str]:
    """Return a warning for every annotation whose author probably meant something else."""
    runtime = annotations.get(ANNOTATION_MAX_RUNTIME)
    if runtime is not None and declared_runtime(annotations) is None:
        yield (
            f"Fairgate: {ANNOTATION_MAX_RUNTIME}: {runtime[:40]!r} is not a run time such as "
            "90s, 5m or 1h30m, so none is assumed; correct it."
        )
    gang = annotations.get(ANNOTATION_GANG, "").strip()
    size = annotations.get(ANNOTATION_GANG_SIZE, "")
    is_named = gang not in ("", OF_THE_JOB) and size.strip() != "1"
    if is_named and named_gang(annotations) == ALONE:
        yield (
            f"Fairgate: {ANNOTATION_GANG_SIZE}: {size[:40]!r} is not a whole number from 1 to "
            f"{LARGEST_GANG}, so this pod waits alone and not with gang {gang[:40]!r}; create it "
            "again with the number of its pods."
        )
    preemptible = annotations.get(ANNOTATION_PREEMPTIBLE, "true")
    if preemptible not in ("true", "false"):
        yield (
            f"Fairgate: {ANNOTATION_PREEMPTIBLE}: {preemptible[:40]!r} is neither true nor false, "
            'so this pod may be evicted; write "false" if it must not be.'
        )
    yield from style_misread(annotations)
    yield from level_misread(annotations)
