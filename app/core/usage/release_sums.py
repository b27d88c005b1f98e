"""Releases of pods, read from audit entries, and their sums: pods, requests, and waits.

The audit chain survives a change of leader and a restart of every replica.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from app.core.audit_entry import AuditRecord, EntryType
from app.core.errors import InvalidInput
from app.core.model import Amounts, Millis, PoolName, Resource, TenantName
from app.core.placement.pools import add_to
from app.core.quantities import ManagedResources, parse_amount


@dataclass(frozen=True, slots=True)
class ReleasedPod:
    """A pod that Fairgate released. `waited`: seconds from its creation; None if unknown.

    `pool`: empty string if the entry has no pool.
    """

    at: Millis
    tenant: TenantName
    pool: PoolName
    request: Amounts
    waited: int | None


@dataclass(slots=True)
class ReleaseSum:
    """The sum of the added releases. `waits`: the known waits in seconds."""

    pods: int = 0
    request: dict[Resource, int] = field(default_factory=dict)
    waits: list[int] = field(default_factory=list)

    def add(self, release: ReleasedPod) -> None:
        """Add a release."""
        self.pods += 1
        add_to(self.request, release.request, 1)
        if release.waited is not None:
            self.waits.append(release.waited)

    def wait_quantile(self, part: float) -> int | None:
        """Return the wait that `part` of the pods did not exceed (nearest rank), or None."""
        if not self.waits:
            return None
        self.waits.sort()
        return self.waits[max(0, math.ceil(part * len(self.waits)) - 1)]


def released_pod(record: AuditRecord, managed: ManagedResources) -> ReleasedPod | None:
    """Return the release that an audit record shows. None: it shows no release by Fairgate."""
    facts = record.facts
    tenant, waited, written = facts.get("tenant"), facts.get("waited"), facts.get("amounts")
    if (
        record.entry_type is not EntryType.RELEASED
        or facts.get("byHand")
        or not isinstance(tenant, str)
    ):
        return None
    request: dict[Resource, int] = {}
    for name, text in written.items() if isinstance(written, Mapping) else ():
        if name in managed and isinstance(text, str):
            try:
                request[Resource(name)] = parse_amount(name, text)
            except InvalidInput:  # any client of Redis can write there
                return None
    pool = facts.get("pool")
    return ReleasedPod(
        record.at,
        TenantName(tenant),
        PoolName(pool if isinstance(pool, str) else ""),
        request,
        waited if isinstance(waited, int) else None,
    )
