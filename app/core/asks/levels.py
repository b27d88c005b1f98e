"""What users write of how their work is laid out: packed or spread, and how close together.

The API server has stored it already: nothing here refuses, the gate warns.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from app.core.asks.shape import ANYHOW, Manner
from app.core.model import (
    ANNOTATION_PLACEMENT,
    ANNOTATION_TOPOLOGY,
    Near,
    NodeName,
    Style,
)

Annotations = Mapping[str, str]

_LABEL = re.compile(
    r"([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)
_STYLES = {style.value: style for style in Style}
_WORDS = {"required": True, "preferred": False}


def named_style(annotations: Annotations) -> Style | None:
    """Return how the user wants a pod laid out; None: as its pool is, or it is not legible."""
    return _STYLES.get(annotations.get(ANNOTATION_PLACEMENT, "").strip())


def named_level(annotations: Annotations) -> Near | None:
    """Return the level that a gang is to be kept together at; None: none, or not legibly."""
    word, colon, label = annotations.get(ANNOTATION_TOPOLOGY, "").strip().partition(":")
    label = label.strip()
    if not colon or word.strip() not in _WORDS or not is_label(label):
        return None
    return Near(label, _WORDS[word.strip()])


def is_label(text: str) -> bool:
    """Tell whether a text can be the key of a label."""
    return _LABEL.fullmatch(text) is not None


def style_misread(annotations: Annotations) -> Iterator[str]:
    """Return a warning if the placement is not legible."""
    written = annotations.get(ANNOTATION_PLACEMENT)
    if written is not None and named_style(annotations) is None:
        yield (
            f"Fairgate: {ANNOTATION_PLACEMENT}: {written[:40]!r} is neither pack nor spread, so "
            "this pod is laid out as its pool is; correct it."
        )


def level_misread(annotations: Annotations) -> Iterator[str]:
    """Return a warning if the topology is not legible."""
    written = annotations.get(ANNOTATION_TOPOLOGY)
    if written is not None and named_level(annotations) is None:
        yield (
            f"Fairgate: {ANNOTATION_TOPOLOGY}: {written[:80]!r} is not required:LABEL or "
            "preferred:LABEL, LABEL being a label of nodes, so its gang may stand anywhere; "
            "correct it."
        )


def manner_of(
    styles: Iterable[Style | None], nears: Iterable[Near | None], beside: Iterable[NodeName]
) -> Manner:
    """Return how a gang is laid out: by what its pods say, and where those are that run.

    Where they differ, `required` goes before `preferred`, then the first label and style by name.
    """
    style = min((s for s in styles if s is not None), key=lambda s: s.value, default=None)
    named = (n for n in nears if n is not None)
    near = min(named, key=lambda n: (not n.required, n.label), default=None)
    if near is None:
        return ANYHOW if style is None else Manner(style)
    return Manner(style, near, tuple(sorted(set(beside))))


def alone(style: Style | None) -> Manner:
    """Return how a pod is laid out that waits for itself alone: it is always together."""
    return ANYHOW if style is None else Manner(style)
