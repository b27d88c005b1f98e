"""Weights and quotas in force at a past time: the present ones without later audit entries.

The format of entries about a Tenant is in `config_changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from operator import itemgetter

from app.core.audit.config_changes import QUOTAS, spec_of
from app.core.audit.recorder import MARKERS_LOST
from app.core.audit_entry import Entry, EntryType
from app.core.errors import InvalidInput
from app.core.model import Amounts, Millis, PoolName, Quota, Resource, Tenant, TenantName
from app.core.quantities import parse_amount

ELLIPSIS = "…"


@dataclass(frozen=True, slots=True)
class QuotaTerms:
    """Configuration of a tenant at that time. `entitlements` computes the fair share."""

    name: TenantName
    parent: TenantName | None
    weight: Fraction
    quotas: Mapping[PoolName, Quota]


@dataclass(slots=True)
class _Known:
    """Differences of one tenant at that time: did it exist, and which fields had other values."""

    existed: bool
    fields: dict[str, str | None] = field(default_factory=dict)


class QuotaHistory:
    """Goes back to a past time. Call `add_entry` with every later entry, in order."""

    def __init__(self, at: Millis) -> None:
        self._at = at
        self._known: dict[str, _Known] = {}

    def add_entry(self, entry: Entry) -> None:
        """Process an entry. Raises InvalidInput if the past state cannot be reconstructed."""
        record, facts = entry.record, entry.record.facts
        if record.at <= self._at:
            return
        if record.entry_type is EntryType.GAP or facts.get("why") == MARKERS_LOST:
            raise InvalidInput(
                "it names a gap, in which quotas may have changed; ask for a later time."
            )
        if record.entry_type is not EntryType.CHANGED or facts.get("kind") != "Tenant":
            return
        known = self._known.setdefault(str(facts.get("name")), _Known(facts.get("did") != "made"))
        shown, rest = _mapping(facts.get("fields")), facts.get("rest")
        told = shown | _mapping(rest)
        if rest is None and ("more" in facts or any(_is_cut(*each) for each in shown.items())):
            raise InvalidInput(
                f"the change of tenant {facts.get('name')} is not complete in it; "
                "ask for a later time."
            )
        for name, change in told.items():
            is_whole = QUOTAS.fullmatch(name) and not name.endswith(ELLIPSIS)
            if is_whole and isinstance(change, Mapping):
                before = change.get("before")
                known.fields.setdefault(name, None if before is None else str(before))

    def quota_terms(self, tenants: Mapping[TenantName, Tenant]) -> list[QuotaTerms]:
        """Return the state of every tenant at that time, by name. `tenants`: current state."""
        found = []
        for name in sorted({*tenants, *map(TenantName, self._known)}):
            known = self._known.get(name, _Known(name in tenants))
            if known.existed:
                now = spec_of(tenants[name]) if name in tenants else {}
                found.append(_terms(name, {**now, **known.fields}))
        return found


def _terms(name: TenantName, spec: Mapping[str, str | None]) -> QuotaTerms:
    quotas: dict[str, dict[str, dict[Resource, int]]] = {}
    for field_name, text in spec.items():
        if field_name.startswith("quotas.") and text is not None:
            pool, kind, resource = _parts(field_name.removeprefix("quotas."))
            kinds = quotas.setdefault(pool, {"guarantee": {}, "limit": {}})
            kinds[kind][Resource(resource)] = parse_amount(resource, text)
    parent = spec.get("parent")
    return QuotaTerms(
        name,
        TenantName(parent) if parent else None,
        Fraction(spec.get("weight") or 1),
        {PoolName(pool): _quota(kinds) for pool, kinds in sorted(quotas.items())},
    )


def _quota(kinds: Mapping[str, Amounts]) -> Quota:
    return Quota(kinds["guarantee"], kinds["limit"])


def _parts(text: str) -> tuple[str, str, str]:
    """Return pool, kind and resource. The names of pools and resources may contain dots."""
    kinds = {kind: text.rfind(f".{kind}.") for kind in ("guarantee", "limit")}
    kind, place = max(kinds.items(), key=itemgetter(1))
    if place > 0:
        return text[:place], kind, text[place + len(kind) + 2 :]
    raise InvalidInput(f"{text[:80]!r} is no field of a quota")


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


def _is_cut(name: str, change: object) -> bool:
    values = change.values() if isinstance(change, Mapping) else ()
    whole = not name.endswith(ELLIPSIS) and not any(str(each).endswith(ELLIPSIS) for each in values)
    return not whole and name.startswith(("parent", "weight", "quotas."))
