"""Records changes of each Tenant, Pool and Policy for the audit chain, with their authors.

An audit marker stores the fields of a resource as last recorded. The next leader compares the
resource with it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields
from enum import Enum
from fractions import Fraction
from hashlib import sha256

from app.core.audit_entry import UNKNOWN, AuditRecord, EntryType, Fact
from app.core.model import Amounts, Millis, Pool, Resource, Tenant
from app.core.policy import Policy
from app.core.quantities import format_amount

Configured = Tenant | Pool | Policy

ConfigFields = Mapping[str, str]
"""The fields of a resource as text, without those of default values.

The mode is there if a Policy sets it.
"""

LONGEST = 120
"""Maximum number of characters of a value, and of a field name, in an entry."""
MAX_SHOWN_CHARACTERS = 600
"""Maximum number of characters of all changed fields together. Further fields are counted."""

QUOTAS = re.compile(r"parent|weight|quotas\..*", re.DOTALL)
"""Fields that are recorded completely, so that past quotas can be reconstructed ..."""
MAX_REST_CHARACTERS = 8000
"""... unless the part beyond the shown fields is longer than this."""

LISTS = ("namespaces", "pools")
"""Fields with several names. Added and removed names are shown."""

MOST_PLACES = 20
"""Maximum number of places of a decimal."""

_FIRST = (
    re.compile(r"parent|weight|mode"),
    re.compile(r"quotas\..*\.guarantee\..*"),
    re.compile(r"quotas\..*\.limit\..*"),
    re.compile(r"paused|namespaces|pools|nodeSelector\..*"),
    re.compile(r"(?!users\.).*"),
)
"""Fields to show first, so that many small changes do not hide a large one."""

_PREFIXES = tuple(f"{kind.__name__}/" for kind in (Tenant, Pool, Policy))


class ConfigChanges:
    """The present and the last recorded state of each resource."""

    def __init__(self) -> None:
        self._specs: dict[str, tuple[ConfigFields, str]] = {}
        self._reported_specs: dict[str, str] | None = None

    def start_term(self, at: Millis, markers: Mapping[str, str] | None) -> Iterator[AuditRecord]:
        """Start a leader term: record changes since the last term. None: the markers are lost."""
        told = {key: text for key, text in (markers or {}).items() if is_resource_marker(key)}
        if markers is None:
            told = {key: _text(spec) for key, (spec, _) in self._specs.items()}
        self._reported_specs = told
        for key in sorted(told.keys() - self._specs.keys()):
            yield self._deletion_record(at, key, told)
        for key, (spec, by) in sorted(self._specs.items()):
            yield from self._compare(at, key, spec, by, told)

    def end_term(self) -> None:
        """End a leader term."""
        self._reported_specs = None

    def observe_resource(
        self, at: Millis, key: str, spec: ConfigFields, by: str
    ) -> Iterator[AuditRecord]:
        """Process the observed state of a resource. `by` is its author; "" if unknown."""
        self._specs[key] = (spec, by)
        if self._reported_specs is not None:
            yield from self._compare(at, key, spec, by, self._reported_specs)

    def record_deleted(self, at: Millis, key: str) -> Iterator[AuditRecord]:
        """Process a deleted resource. Only the API server's audit log contains the user."""
        self._specs.pop(key, None)
        if self._reported_specs is not None and key in self._reported_specs:
            yield self._deletion_record(at, key, self._reported_specs)

    def audit_markers(self) -> Iterator[tuple[str, str]]:
        """Yield the audit marker of every resource."""
        yield from (self._reported_specs or {}).items()

    @staticmethod
    def _compare(
        at: Millis, key: str, spec: ConfigFields, by: str, reported: dict[str, str]
    ) -> Iterator[AuditRecord]:
        text, known = _text(spec), reported.get(key)
        if text == known:
            return
        reported[key] = text
        before = _parse_spec(known) if known else {}
        facts = _facts(key, "changed" if known else "made", by)
        yield AuditRecord(at, EntryType.CHANGED, facts | _differences(before, spec), ((key, text),))

    @staticmethod
    def _deletion_record(at: Millis, key: str, reported: dict[str, str]) -> AuditRecord:
        before = _parse_spec(reported.pop(key))
        facts = _facts(key, "deleted", "") | _differences(before, {})
        return AuditRecord(at, EntryType.CHANGED, facts, ((key, ""),))


def marker_key(kind: type[Configured], name: str = "default") -> str:
    """Return the key of the audit marker of a resource."""
    return f"{kind.__name__}/{name}"


def is_resource_marker(key: str) -> bool:
    """Return whether a marker key is that of a resource, not of a pod."""
    return key.startswith(_PREFIXES)


def spec_of(config: Configured, *, has_mode: bool = True) -> ConfigFields:
    """Return the fields of a resource, named as in its manifest.

    `has_mode`: whether a Policy sets the mode. If it does, the mode is recorded even if it is the
    default, because a Policy without a mode has that of the chart.
    """
    match config:
        case Tenant():
            found = _tenant(config)
        case Pool():
            found = _pool(config)
        case Policy():
            default = Policy()
            names = [f.name for f in fields(Policy)]
            found = {
                n: getattr(config, n) for n in names if getattr(config, n) != getattr(default, n)
            }
            spec = {_camel(name): _setting(name, value) for name, value in found.items()}
            return spec | {"mode": config.mode.value} if has_mode else spec
    return {_camel(name): text for name, value in found.items() if (text := _value_as_text(value))}


def _tenant(tenant: Tenant) -> dict[str, object]:
    spec: dict[str, object] = {
        "parent": tenant.parent,
        "weight": tenant.weight,
        "namespaces": tenant.namespaces,
        "pools": tenant.pools,
        "maxPending": tenant.max_pending,
        "paused": tenant.paused,
    }
    spec |= {f"users.{name}": weight for name, weight in tenant.user_weights.items()}
    for pool, quota in tenant.quotas.items():
        spec |= _amounts(f"quotas.{pool}.guarantee", quota.guarantee)
        spec |= _amounts(f"quotas.{pool}.limit", quota.limit)
    return spec


def _pool(pool: Pool) -> dict[str, object]:
    spec: dict[str, object] = {
        "placement": pool.placement,
        "tolerations": pool.tolerations,
        "topology": pool.topology,
        "paused": pool.paused,
        "gpuMemory": pool.gpu_memory,
    }
    for name, mapping in (
        ("nodeSelector", pool.selector),
        ("weights", pool.weights),
        ("overcommit", pool.overcommit),
    ):
        spec |= {f"{name}.{key}": value for key, value in mapping.items()}
    return spec | _amounts("maxCapacity", pool.max_capacity)


def _amounts(name: str, amounts: Amounts) -> dict[str, object]:
    return {f"{name}.{r}": format_amount(Resource(r), value) for r, value in amounts.items()}


def _camel(name: str) -> str:
    if "." in name:
        return name
    first, *others = name.split("_")
    return first + "".join(each.capitalize() for each in others)


def _setting(name: str, value: object) -> str:
    """Return a field of the Policy as text. Its integers are milliseconds or pod counts."""
    if isinstance(value, bool):
        return str(value).lower()
    if name in ("max_unbound", "max_unowned_unbound"):
        return str(value)
    return f"{value / 1000:.15g}s" if isinstance(value, int) else _value_as_text(value)


def _value_as_text(value: object) -> str:
    """Return a value as in a manifest; "" if it is absent."""
    match value:
        case None | False | ():
            return ""
        case True:
            return "true"
        case Enum():
            return str(value.value)
        case Fraction():
            return _decimal(value)
        case tuple():
            return ", ".join(map(str, value))
        case _:
            return str(value)


def _decimal(value: Fraction) -> str:
    """Return a decimal, exact if possible, else an approximation."""
    places = next((n for n in range(MOST_PLACES) if 10**n % value.denominator == 0), None)
    if places is None or value < 0:
        return f"{float(value):.15g}"
    digits = str(value.numerator * 10**places // value.denominator).rjust(places + 1, "0")
    return f"{digits[:-places]}.{digits[-places:]}" if places else digits


def _text(spec: ConfigFields) -> str:
    return _text_of(dict(spec))


def _text_of(value: Mapping[str, object]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _parse_spec(text: str) -> ConfigFields:
    """Parse the result of `_text`. Return no fields for text that Fairgate cannot have written."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if _is_spec(found) else {}


def _is_spec(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(text, str) for text in value.values())


def _facts(key: str, did: str, by: str) -> dict[str, Fact]:
    kind, _, name = key.partition("/")
    return {"kind": kind, "name": name, "did": did, "by": by or UNKNOWN}


def _differences(before: ConfigFields, after: ConfigFields) -> dict[str, Fact]:
    """Return the changed fields, the most important first, and a digest of both states."""
    changed: dict[str, Fact] = {}
    left, more = MAX_SHOWN_CHARACTERS, 0
    for name in sorted(
        before.keys() | after.keys(), key=lambda name: (_field_position(name), name)
    ):
        if before.get(name) == after.get(name):
            continue
        shown = _shown_change(name, before.get(name), after.get(name))
        left -= len(name) + sum(map(len, shown.values()))
        if left < 0 and changed:
            more += 1
        else:
            changed[_cut(name)] = shown
    facts: dict[str, Fact] = {"fields": changed} | ({"more": more} if more else {})
    rest = {
        name: pair
        for name in sorted(before.keys() | after.keys())
        if QUOTAS.fullmatch(name) and before.get(name) != after.get(name)
        if changed.get(name) != (pair := _pair(before.get(name), after.get(name)))
    }
    if (rest or more) and len(_text_of(rest)) <= MAX_REST_CHARACTERS:
        facts["rest"] = rest
    digests = {"digestBefore": _digest(before), "digestAfter": _digest(after)}
    return facts | {name: digest for name, digest in digests.items() if digest}


def _field_position(name: str) -> int:
    found = (place for place, like in enumerate(_FIRST) if like.fullmatch(name))
    return next(found, len(_FIRST))


def _shown_change(name: str, before: str | None, after: str | None) -> dict[str, str]:
    if name in LISTS and before is not None and after is not None:
        then, now = set(before.split(", ")), set(after.split(", "))
        lists = {"added": now - then, "removed": then - now}
        found = {what: _cut(", ".join(sorted(names))) for what, names in lists.items() if names}
        if found:
            return found
    return {when: _cut(text) for when, text in _pair(before, after).items()}


def _pair(before: str | None, after: str | None) -> dict[str, str]:
    pair = {"before": before, "after": after}
    return {when: text for when, text in pair.items() if text is not None}


def _digest(spec: ConfigFields) -> str:
    """Return a digest of all fields; "" if the resource does not exist."""
    return sha256(_text(spec).encode()).hexdigest() if spec else ""


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST else text[: LONGEST - 1] + "…"
