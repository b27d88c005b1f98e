"""The newest entries of the audit chain, read from GET /v1/audit backwards in time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from app.core.errors import ClusterUnavailable
from app.kubectl.client import ApiAnswer, ApiClient

Entry = Mapping[str, Any]

FIRST_SPAN = timedelta(minutes=10)
"""The newest part that is read first. Each older part is twice as long."""

MORE = timedelta(seconds=30)
"""Entries may carry a time slightly after now, because clocks differ."""


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Values that an entry must have; None means any. `pod` is NAME or NAMESPACE/NAME."""

    pod: str | None = None
    user: str | None = None
    tenant: str | None = None
    kind: str | None = None
    namespace: str | None = None

    def matches(self, entry: Entry) -> bool:
        """Return whether an entry matches."""
        facts = entry["facts"]
        names = {facts.get("pod"), f"{facts.get('namespace')}/{facts.get('pod')}"}
        return (
            (self.pod is None or self.pod in names)
            and self.namespace in (None, facts.get("namespace"))
            and (self.user is None or self.user in (facts.get("user"), facts.get("by")))
            and (self.kind is None or self.kind == entry["deed"])
        )


def newest(
    client: ApiClient, wanted: AuditFilter, span: tuple[datetime, datetime], limit: int
) -> tuple[Any, ApiAnswer]:
    """Return the newest matching entries between two times, oldest first.

    `more`: there are older ones in this time.
    """
    begin, end = span
    found: list[Entry] = []
    width = FIRST_SPAN
    while True:
        start = begin if end - begin <= width else end - width
        answer = _read(client, wanted.tenant, start, end)
        part = [each for each in _entries(answer.body) if wanted.matches(each)]
        found = [*part, *found]
        if len(found) > limit or start <= begin:
            items = [_as_item(each) for each in found[max(0, len(found) - limit) :]]
            return {"items": items, "more": len(found) > limit}, answer
        end, width = start, width * 2


def _read(client: ApiClient, tenant: str | None, start: datetime, end: datetime) -> ApiAnswer:
    query = [("since", _text(start)), ("until", _text(end))]
    return client.get("/audit", [*query, *([("tenant", tenant)] if tenant is not None else [])])


def _text(at: datetime) -> str:
    return at.astimezone(timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _entries(body: bytes) -> Iterator[Entry]:
    for line in body.splitlines():
        try:
            entry = json.loads(line)
            if "deed" in entry:
                yield {**entry, "at": _to_datetime(entry["at"]), "facts": dict(entry["facts"])}
        except (ValueError, TypeError, KeyError, OverflowError, OSError) as error:
            raise ClusterUnavailable(
                "The audit chain has a line that is no entry; run fairgate audit verify."
            ) from error


def _to_datetime(milliseconds: float) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def _as_item(entry: Entry) -> Entry:
    """Return an entry with the names and the time that all commands use."""
    facts = entry["facts"]
    return {
        "number": entry["number"],
        "at": _text(entry["at"]),
        "type": entry["deed"],
        "tenant": facts.get("tenant") or (facts.get("name") if _is_tenant(facts) else None),
        "user": facts.get("user") or facts.get("by"),
        "namespace": facts.get("namespace"),
        "name": facts.get("pod") or facts.get("name"),
        "facts": facts,
    }


def _is_tenant(facts: Mapping[str, Any]) -> bool:
    return bool(facts.get("kind") == "Tenant")


def detail(item: Entry, wide: bool) -> str:
    """Return the important facts of an entry in one line; `wide`: also the rule of a release."""
    facts = item["facts"]
    say: Callable[[Entry], str] = _DETAILS.get(item["type"], _others)
    rule = f", {facts['rule']}" if wide and facts.get("rule") else ""
    return (say(facts) or "-") + rule


def _others(facts: Entry) -> str:
    known = ("uid", "namespace", "pod", "tenant", "user", "amounts", "before", "digestBefore")
    plain = (str, int, bool)
    return ", ".join(f"{k} {v}" for k, v in facts.items() if k not in known and type(v) in plain)


def _released(facts: Entry) -> str:
    parts = [f"pool {facts['pool']}"] if facts.get("pool") else []
    if facts.get("node"):
        parts.append(f"node {facts['node']}")
    if "waited" in facts:
        parts.append(f"waited {facts['waited']} s")
    if facts.get("byHand"):
        parts.append(f"by hand: {facts.get('by', '')}")
    return ", ".join(parts)


def _changed(facts: Entry) -> str:
    fields = facts.get("fields")
    items = fields.items() if isinstance(fields, dict) else ()
    parts = [f"{name}: {_change(each)}" for name, each in items if isinstance(each, dict)]
    return f"{facts.get('kind', '')} {facts.get('did', '')}; {', '.join(parts)}".rstrip("; ")


def _change(values: Entry) -> str:
    """Return the values of a field before and after, or the names that a list gained and lost."""
    marks = (("+", values.get("added")), ("-", values.get("removed")))
    names = [f"{sign}{name}" for sign, text in marks if text for name in str(text).split(", ")]
    return " ".join(names) or f"{values.get('before', '-')} -> {values.get('after', '-')}"


def _refused(facts: Entry) -> str:
    left_out = f"{facts['dropped']} more" if facts.get("dropped") else ""
    return ": ".join(str(each) for each in (facts.get("what"), left_out, facts.get("why")) if each)


_DETAILS: dict[str, Callable[[Entry], str]] = {
    "held": lambda facts: f"priority {facts.get('priority', 0)}",
    "released": _released,
    "changed": _changed,
    "refused": _refused,
    "reclaimed": lambda facts: str(facts.get("why", "")),
}
TYPES = (
    *("held", "released", "adopted", "bypassed", "claim-deleted", "reclaimed", "changed"),
    *("refused", "restored", "deleted", "leading", "gap", "pruned", "key"),
)
