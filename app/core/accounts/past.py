"""Weights and quotas in force at a time: those of now, less what the audit chain tells since.

Pure. Knows what entries about a Tenant say: see `changes`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from operator import itemgetter

from app.core.audit import Deed, Entry
from app.core.chain.changes import QUOTAS, spec_of
from app.core.chain.records import UNREMEMBERED
from app.core.errors import InvalidInput
from app.core.model import Amounts, Millis, PoolName, Quota, Resource, Tenant, TenantName
from app.core.resources import amount

CUT = "…"


@dataclass(frozen=True, slots=True)
class Terms:
    """What was configured of a tenant. What it is owed by that next to others: see `owed`."""

    name: TenantName
    parent: TenantName | None
    weight: Fraction
    quotas: Mapping[PoolName, Quota]


@dataclass(slots=True)
class _Known:
    """What is known of one tenant at that time: did it exist, and which fields were otherwise."""

    existed: bool
    fields: dict[str, str | None] = field(default_factory=dict)


class Past:
    """Goes back to a time. Hand in every entry that is later, in order."""

    def __init__(self, at: Millis) -> None:
        self._at = at
        self._known: dict[str, _Known] = {}

    def see(self, entry: Entry) -> None:
        """Take in an entry. Raises InvalidInput if the way back is lost."""
        record, facts = entry.record, entry.record.facts
        if record.at <= self._at:
            return
        if record.deed is Deed.GAP or facts.get("why") == UNREMEMBERED:
            raise InvalidInput(
                "it names a gap, in which quotas may have changed; ask for a later time."
            )
        if record.deed is not Deed.CHANGED or facts.get("kind") != "Tenant":
            return
        known = self._known.setdefault(str(facts.get("name")), _Known(facts.get("did") != "made"))
        shown, rest = _mapping(facts.get("fields")), facts.get("rest")
        told = shown | _mapping(rest)
        if rest is None and ("more" in facts or any(_is_cut(*each) for each in shown.items())):
            raise InvalidInput(
                f"it does not tell all of what changed of tenant {facts.get('name')}; "
                "ask for a later time."
            )
        for name, change in told.items():
            is_whole = QUOTAS.fullmatch(name) and not name.endswith(CUT)
            if is_whole and isinstance(change, Mapping):
                before = change.get("before")
                known.fields.setdefault(name, None if before is None else str(before))

    def terms(self, tenants: Mapping[TenantName, Tenant]) -> list[Terms]:
        """Return those of every tenant there was, by name; `tenants` are those of now."""
        found = []
        for name in sorted({*tenants, *map(TenantName, self._known)}):
            known = self._known.get(name, _Known(name in tenants))
            if known.existed:
                now = spec_of(tenants[name]) if name in tenants else {}
                found.append(_terms(name, {**now, **known.fields}))
        return found


def _terms(name: TenantName, spec: Mapping[str, str | None]) -> Terms:
    quotas: dict[str, dict[str, dict[Resource, int]]] = {}
    for field_name, text in spec.items():
        if field_name.startswith("quotas.") and text is not None:
            pool, kind, resource = _parts(field_name.removeprefix("quotas."))
            kinds = quotas.setdefault(pool, {"guarantee": {}, "limit": {}})
            kinds[kind][Resource(resource)] = amount(resource, text)
    parent = spec.get("parent")
    return Terms(
        name,
        TenantName(parent) if parent else None,
        Fraction(spec.get("weight") or 1),
        {PoolName(pool): _quota(kinds) for pool, kinds in sorted(quotas.items())},
    )


def _quota(kinds: Mapping[str, Amounts]) -> Quota:
    return Quota(kinds["guarantee"], kinds["limit"])


def _parts(text: str) -> tuple[str, str, str]:
    """Return pool, kind and resource: the names of pools, and of resources, have dots, too."""
    kinds = {kind: text.rfind(f".{kind}.") for kind in ("guarantee", "limit")}
    kind, place = max(kinds.items(), key=itemgetter(1))
    if place > 0:
        return text[:place], kind, text[place + len(kind) + 2 :]
    raise InvalidInput(f"{text[:80]!r} is no field of a quota")


def _mapping(value: object) -> dict[str, object]:
    return dict(value) if isinstance(value, Mapping) else {}


def _is_cut(name: str, change: object) -> bool:
    values = change.values() if isinstance(change, Mapping) else ()
    whole = not name.endswith(CUT) and not any(str(each).endswith(CUT) for each in values)
    return not whole and name.startswith(("parent", "weight", "quotas."))
