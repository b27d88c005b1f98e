"""The `fairgate.io/*` annotations that users write on pods, parsed and checked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import islice

from app.core.durations import parse_duration
from app.core.errors import InvalidInput
from app.core.model import Millis, NodeName, PlacementStrategy, TopologyConstraint
from app.core.podspec.equivalence_class import DEFAULT_LAYOUT, GangLayout
from app.core.safe_text import quote_text
from app.core.well_known import (
    ANNOTATION_CHECKPOINT_INTERVAL,
    ANNOTATION_GANG,
    ANNOTATION_GANG_MIN,
    ANNOTATION_GANG_SIZE,
    ANNOTATION_MAX_RUNTIME,
    ANNOTATION_PLACEMENT,
    ANNOTATION_POOLS,
    ANNOTATION_PREEMPTIBLE,
    ANNOTATION_RECLAIM_NOTICE,
    ANNOTATION_TOPOLOGY,
    KEY_PREFIX,
    USER_KEYS,
    WRITTEN_KEYS,
)

Annotations = Mapping[str, str]

LARGEST_GANG = 10_000

OF_THE_JOB = "job"
"""Value of the gang annotation that stands for the Job of the pod instead of a gang name."""

ALONE = ("", 1)

MOST_UNKNOWN = 4
"""Maximum number of unknown labels, and of unknown annotations, that a pod is warned about."""

_LONGEST_KEY = len(KEY_PREFIX) + 63
_NAMES = {key.removeprefix(KEY_PREFIX): key for key in sorted(USER_KEYS)}

_TIMES = {
    ANNOTATION_MAX_RUNTIME: "a run time",
    ANNOTATION_RECLAIM_NOTICE: "a time",
    ANNOTATION_CHECKPOINT_INTERVAL: "a time",
}


def named_pools(annotations: Annotations) -> tuple[str, ...]:
    """Return the pools that the user names, in that order. Empty: any pool."""
    written = annotations.get(ANNOTATION_POOLS, "")
    return tuple(name.strip() for name in written.split(",") if name.strip())


def declared_runtime(annotations: Annotations) -> Millis | None:
    """Return the declared maximum run time of the pod. None if absent or invalid."""
    return _some_time(annotations, ANNOTATION_MAX_RUNTIME)


def wanted_notice(annotations: Annotations) -> Millis | None:
    """Return the notice that the pod wants before a reclaim. None if absent or invalid."""
    return _some_time(annotations, ANNOTATION_RECLAIM_NOTICE)


def checkpoint_interval(annotations: Annotations) -> Millis | None:
    """Return the longest time between two checkpoints of the pod. None if absent or invalid."""
    return _some_time(annotations, ANNOTATION_CHECKPOINT_INTERVAL)


def _some_time(annotations: Annotations, key: str) -> Millis | None:
    written = annotations.get(key)
    try:
        return (parse_duration(written) or None) if written is not None else None
    except InvalidInput:
        return None


def may_be_evicted(annotations: Annotations) -> bool:
    """Return whether the pod may be evicted for reclaim. Only the value "false" forbids it."""
    return annotations.get(ANNOTATION_PREEMPTIBLE) != "false"


def named_gang(annotations: Annotations) -> tuple[str, int]:
    """Return the gang that the pod names and its size; `ALONE` if there is no valid gang.

    A gang without a valid size could never be complete, so its pods are released separately.
    """
    name = annotations.get(ANNOTATION_GANG, "").strip()
    count = parse_gang_size(annotations.get(ANNOTATION_GANG_SIZE, ""))
    return (name, count) if name and name != OF_THE_JOB and count > 1 else ALONE


def gang_min_count(annotations: Annotations) -> int:
    """Return how many pods the gang needs to start; 0 means all, also if the value is invalid."""
    return parse_gang_size(annotations.get(ANNOTATION_GANG_MIN, ""))


def gang_min_error(annotations: Annotations) -> str:
    """Return why the minimum of a gang is refused; "" if it is valid or absent."""
    written = annotations.get(ANNOTATION_GANG_MIN)
    if written is None:
        return ""
    least = parse_gang_size(written)
    if not least:
        return (
            f"Fairgate: {ANNOTATION_GANG_MIN}: {quote_text(written)} is not a whole number from 1 "
            "to "
            f"{LARGEST_GANG}; write the number of pods that the gang needs to start, "
            "or remove the annotation."
        )
    if not annotations.get(ANNOTATION_GANG, "").strip():
        return (
            f"Fairgate: {ANNOTATION_GANG_MIN} is for pods of a gang, and this pod has no "
            f"annotation {ANNOTATION_GANG}; name the gang, or remove {ANNOTATION_GANG_MIN}."
        )
    name, size = named_gang(annotations)
    if name and least > size:
        return (
            f"Fairgate: {ANNOTATION_GANG_MIN}: {least} is more than {ANNOTATION_GANG_SIZE}: "
            f"{size}, so the gang could never start; use {size} or less."
        )
    return ""


def parse_gang_size(size: str) -> int:
    """Return the gang size in a text; 0 if the text is not a valid size."""
    size = size.strip()
    if not (size.isascii() and size.isdecimal()):
        return 0
    count = int(size) if len(size) < 9 else 0
    return count if count <= LARGEST_GANG else 0


def unknown_key_warnings(labels: Mapping[str, str], annotations: Annotations) -> Iterator[str]:
    """Yield a warning for each `fairgate.io/` key that neither users nor Fairgate write.

    An annotation for users is unknown among the labels.
    """
    for kind, written, known in (
        ("annotation", annotations, USER_KEYS | WRITTEN_KEYS),
        ("label", labels, WRITTEN_KEYS),
    ):
        found = (key for key in sorted(written) if key.startswith(KEY_PREFIX) and key not in known)
        for key in islice(found, MOST_UNKNOWN):
            near = _nearest(key)
            meant = f"did you mean {'the annotation ' if kind == 'label' else ''}{near}?"
            yield (
                f"Fairgate: there is no {kind} {key[:_LONGEST_KEY]}; "
                f"{meant if near else 'remove it.'}"
            )


def reserved_key_warnings(keys: Iterable[str], result: str) -> Iterator[str]:
    """Yield a warning for each key that only Fairgate writes, with the `result` for its value."""
    for key in sorted(WRITTEN_KEYS.intersection(keys)):
        near = _nearest(key, 0.8)
        meant = f" Did you mean the annotation {near}?" if near else ""
        yield f"Fairgate: {key} is written by Fairgate alone; {result}.{meant}"


def _nearest(key: str, least: float = 0.6) -> str:
    """Return the annotation for users with the most similar name. "" if none is similar.

    `least`: the smallest similarity that counts, from 0 to 1.
    """
    if len(key) > _LONGEST_KEY:
        return ""
    near = get_close_matches(key.removeprefix(KEY_PREFIX).lower(), _NAMES, 1, least)
    return _NAMES[near[0]] if near else ""


def annotation_warnings(annotations: Annotations) -> Iterator[str]:
    """Yield a warning for every annotation that is probably a mistake."""
    for key, kind in _TIMES.items():
        if key in annotations and _some_time(annotations, key) is None:
            yield (
                f"Fairgate: {key}: {quote_text(annotations[key])} is not {kind} such as "
                "90s, 5m or 1h30m, so it is ignored; correct it."
            )
    gang = annotations.get(ANNOTATION_GANG, "").strip()
    size = annotations.get(ANNOTATION_GANG_SIZE, "")
    is_named = gang not in ("", OF_THE_JOB) and size.strip() != "1"
    if is_named and named_gang(annotations) == ALONE:
        yield (
            f"Fairgate: {ANNOTATION_GANG_SIZE}: {quote_text(size)} is not a whole number from 1 to "
            f"{LARGEST_GANG}, so this pod waits alone and not with gang {quote_text(gang)}; create "
            "it again with the number of its pods."
        )
    preemptible = annotations.get(ANNOTATION_PREEMPTIBLE, "true")
    if preemptible not in ("true", "false"):
        yield (
            f"Fairgate: {ANNOTATION_PREEMPTIBLE}: {quote_text(preemptible)} is "
            "neither true nor false, "
            'so this pod may be evicted; write "false" if it must not be.'
        )
    yield from placement_warnings(annotations)
    yield from topology_warnings(annotations)


_LABEL = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
_STYLES = {style.value: style for style in PlacementStrategy}
_WORDS = {"required": True, "preferred": False}


def named_placement(annotations: Annotations) -> PlacementStrategy | None:
    """Return the placement style that the user requests. None if absent or invalid."""
    return _STYLES.get(annotations.get(ANNOTATION_PLACEMENT, "").strip())


def named_topology(annotations: Annotations) -> TopologyConstraint | None:
    """Return the topology level that the user requests for the gang. None if absent or invalid."""
    word, colon, label = annotations.get(ANNOTATION_TOPOLOGY, "").strip().partition(":")
    label = label.strip()
    if not colon or word.strip() not in _WORDS or not is_label(label):
        return None
    return TopologyConstraint(label, _WORDS[word.strip()])


def is_label(text: str) -> bool:
    """Return whether a text is a valid label key."""
    return _LABEL.fullmatch(text) is not None


def placement_warnings(annotations: Annotations) -> Iterator[str]:
    """Yield a warning if the placement annotation is invalid."""
    written = annotations.get(ANNOTATION_PLACEMENT)
    if written is not None and named_placement(annotations) is None:
        yield (
            f"Fairgate: {ANNOTATION_PLACEMENT}: {quote_text(written)} is neither pack nor spread, "
            "so this pod is laid out as its pool is; correct it."
        )


def topology_warnings(annotations: Annotations) -> Iterator[str]:
    """Yield a warning if the topology annotation is invalid."""
    written = annotations.get(ANNOTATION_TOPOLOGY)
    if written is not None and named_topology(annotations) is None:
        yield (
            f"Fairgate: {ANNOTATION_TOPOLOGY}: {quote_text(written, 80)} is not required:LABEL or "
            "preferred:LABEL, LABEL being a label of nodes, so its gang "
            "may stand anywhere; correct it."
        )


def gang_layout_of(
    styles: Iterable[PlacementStrategy | None],
    nears: Iterable[TopologyConstraint | None],
    beside: Iterable[NodeName],
) -> GangLayout:
    """Return the layout of a gang from its annotations. `beside`: nodes of its running pods.

    If the pods differ, `required` comes before `preferred`, then the first label and style by name.
    """
    style = min((s for s in styles if s is not None), key=lambda s: s.value, default=None)
    named = (n for n in nears if n is not None)
    near = min(named, key=lambda n: (not n.required, n.label), default=None)
    if near is None:
        return DEFAULT_LAYOUT if style is None else GangLayout(style)
    return GangLayout(style, near, tuple(sorted(set(beside))))


def single_pod_layout(style: PlacementStrategy | None) -> GangLayout:
    """Return the layout of a pod without a gang. Topology levels do not apply to it."""
    return DEFAULT_LAYOUT if style is None else GangLayout(style)
