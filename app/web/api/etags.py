"""ETag, If-Match and If-None-Match of REST writes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated

from fastapi import Header
from pydantic import WithJsonSchema

from app.ports.api import Stored
from app.web.api.refused import Refused

_TAG = re.compile(r'(W/)?"([^"]*)"')


def etag(stored: Stored) -> str:
    """Return the ETag of a resource. It changes with the spec, but not with the status."""
    return f'"{stored.edition}"'


@dataclass(frozen=True, slots=True)
class Conditions:
    """Preconditions of a write: tags of If-Match and If-None-Match. None: the header is absent."""

    if_match: frozenset[str] | None = None
    if_none_match: frozenset[str] | None = None

    def check(self, name: str, found: Stored | None) -> None:
        """Raise Refused (412) if a precondition fails."""
        if self.if_match is not None and not _is_one(found, self.if_match):
            raise Refused(
                412,
                f"{name} has changed since you read it; read it again and repeat the change."
                if found
                else f"There is no {name} any more; leave out If-Match to make it.",
            )
        if self.if_none_match is not None and _is_one(found, self.if_none_match):
            raise Refused(412, f"There is a {name} already; leave out If-None-Match to change it.")


AS_TEXT = WithJsonSchema({"type": "string"})
"""Callers send one header. A repeated header is a list, which generated clients do not know."""

Match = Annotated[
    list[str] | None, AS_TEXT, Header(description="Only if this is the ETag of the object.")
]
NoneMatch = Annotated[
    list[str] | None, AS_TEXT, Header(description="`*`: only if no object has this name.")
]


def conditions_of(if_match: Match = None, if_none_match: NoneMatch = None) -> Conditions:
    """Return the preconditions of a request. Meant as a FastAPI dependency.

    Raises Refused (400) for a header without a tag: the request would fail for ever, or be made
    without a condition.
    """
    return Conditions(_tags("If-Match", if_match), _tags("If-None-Match", if_none_match))


def _tags(header: str, values: list[str] | None) -> frozenset[str] | None:
    """Return the strong tags of a header, or `*`; None if it is absent. Raises Refused (400)."""
    if not values:
        return None
    text = ",".join(values)
    if text.strip() == "*":
        return frozenset("*")
    tags = _TAG.findall(text)
    if not tags:
        raise Refused(
            400, f"{header}: this is no ETag; write the ETag with its quotes, or a lone *."
        )
    return frozenset(tag for weak, tag in tags if not weak)


def _is_one(found: Stored | None, tags: frozenset[str]) -> bool:
    return found is not None and ("*" in tags or found.edition in tags)
