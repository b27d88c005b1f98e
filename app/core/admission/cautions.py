"""Warnings for whoever makes a Job or another object with pod templates, not for its controller.

What its pods will say of their gang, and cannot be. Works on JSON as it is; refuses nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from app.core.admission.templates import Kind
from app.core.asks.annotations import misread, named_gang
from app.core.asks.groups import Words, doubtful

JOBS = (("batch", "jobs"), ("batch", "cronjobs"), ("jobset.x-k8s.io", "jobsets"))
"""Kinds whose pods are those of a Job."""


def cautions(kind: Kind, document: Any, asks: Callable[[dict[str, Any]], bool]) -> tuple[str, ...]:
    """Return a warning for everything in the templates that somebody should look at again.

    `asks` tells whether a template asks for a managed resource; the others are nobody's gang.
    """
    found: dict[str, None] = {}
    job = "a Job" if (kind.group, kind.resource) in JOBS else ""
    for _, template in kind.find(document):
        if not asks(template):
            continue
        words = Words(_texts(template, "labels"), _texts(template, "annotations"), job)
        found |= dict.fromkeys([*misread(words.annotations), *doubtful(words)])
        if (kind.group, kind.resource) == ("batch", "jobs"):
            found |= dict.fromkeys(_crowded(document, words))
    return tuple(found)


def _crowded(document: Any, words: Words) -> list[str]:
    """Warn of a Job with more pods at once than its gang has: the others wait each alone."""
    name, size = named_gang(words.annotations)
    spec = document.get("spec")
    pods = spec.get("parallelism", 1) if isinstance(spec, dict) else 1
    most = spec.get("completions", pods) if isinstance(spec, dict) else 1
    if not name or not (isinstance(pods, int) and isinstance(most, int)) or min(pods, most) <= size:
        return []
    return [
        f"Fairgate: this Job has {min(pods, most)} pods at once, and their gang {name[:40]!r} "
        f"only {size}, so the others wait each alone; write fairgate.io/gang: job for all of them."
    ]


def _texts(template: Mapping[str, Any], key: str) -> dict[str, str]:
    metadata = template.get("metadata")
    found = metadata.get(key) if isinstance(metadata, dict) else None
    if not isinstance(found, dict):
        return {}
    return {name: text for name, text in found.items() if isinstance(text, str)}
