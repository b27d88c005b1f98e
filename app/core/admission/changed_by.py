"""Stamps the author of a change on Tenants, Pools, the Policy, and pods freed by hand.

The API server does not report the author to a watcher, but the webhook receives both. A stamp on a
resource names its generation, and is not valid for later generations.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from app.core.model import UserName
from app.core.release_patch import Patch
from app.core.well_known import ANNOTATION_CHANGED, ANNOTATION_CHANGED_BY

STAMPS = (ANNOTATION_CHANGED_BY, ANNOTATION_CHANGED)
_NOT_SPEC = ("metadata", "status")


def author_patch(before: Any, after: Any, caller: UserName, speaks: bool) -> Patch:
    """Return the patch that corrects the stamps of a resource.

    `before` is None at create. `speaks`: the caller acts on behalf of others and may name one.
    """
    if before is None or _spec_fields(before) != _spec_fields(after):
        named = _stamps(after).get(ANNOTATION_CHANGED_BY, "") if speaks else ""
        by = named or str(caller)
        wanted = {ANNOTATION_CHANGED_BY: by, ANNOTATION_CHANGED: str(_generation(before) + 1)}
    else:
        wanted = _stamps(before)
    return _stamp_patch(_annotations(after), wanted)


def gate_remover_patch(annotations: Mapping[str, str] | None, caller: UserName) -> Patch:
    """Return the patch of a pod's annotations that names who removed its gate."""
    return _stamp_patch(annotations, {ANNOTATION_CHANGED_BY: str(caller)})


def _spec_fields(document: Any) -> dict[str, Any]:
    """Return the fields that change the generation of a document."""
    found = document if isinstance(document, dict) else {}
    return {key: value for key, value in found.items() if key not in _NOT_SPEC}


def _generation(document: Any) -> int:
    found = _member(_member(document, "metadata"), "generation")
    return found if isinstance(found, int) else 0


def _annotations(document: Any) -> dict[str, Any] | None:
    found = _member(_member(document, "metadata"), "annotations")
    return found if isinstance(found, dict) else None


def _stamps(document: Any) -> dict[str, str]:
    written = _annotations(document) or {}
    return {key: str(written[key]) for key in STAMPS if key in written}


def _stamp_patch(present: Mapping[str, Any] | None, wanted: Mapping[str, str]) -> Patch:
    """Return the patch that sets exactly these stamps among the present annotations."""
    if present is None:
        if not wanted:
            return []
        return [{"op": "add", "path": "/metadata/annotations", "value": dict(wanted)}]
    patch: Patch = []
    for key in STAMPS:
        path = f"/metadata/annotations/{key.replace('/', '~1')}"
        if key in wanted and present.get(key) != wanted[key]:
            patch.append({"op": "add", "path": path, "value": wanted[key]})
        elif key in present and key not in wanted:
            patch.append({"op": "remove", "path": path})
    return patch


def _member(of: Any, key: str) -> Any:
    return of.get(key) if isinstance(of, dict) else None
