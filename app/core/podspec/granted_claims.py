"""The annotation that names the resource claims for which a pod was released.

Fairgate writes it with the release, and the admission policies protect it. A new leader thereby
knows whether a pod still has the claims it was released for.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from app.core.model import GrantedClaim, Resource, Uid
from app.core.quantities import MAX_AMOUNT

UID, AMOUNTS = "uid", "amounts"


def write_grants(grants: Sequence[GrantedClaim]) -> str:
    """Return the value of the annotation: JSON, one key for each claim, sorted by name."""
    names = {
        grant.name: {UID: grant.uid, AMOUNTS: {r: str(v) for r, v in grant.amounts.items()}}
        for grant in grants
    }
    return json.dumps(names, sort_keys=True, separators=(",", ":"))


def read_grants(written: str | None) -> tuple[GrantedClaim, ...] | None:
    """Return the claims that the annotation names; None if it is absent or malformed."""
    if written is None:
        return None
    try:
        found = json.loads(written)
        return tuple(_grant(name, entry) for name, entry in sorted(found.items()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        return None


def _grant(name: str, entry: object) -> GrantedClaim:
    if not isinstance(entry, dict):
        raise TypeError(name)
    amounts = {Resource(r): max(0, int(v)) for r, v in sorted(entry[AMOUNTS].items())}
    if max(amounts.values(), default=0) > MAX_AMOUNT:
        raise ValueError(name)
    return GrantedClaim(name, Uid(str(entry[UID])), amounts)
