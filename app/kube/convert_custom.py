"""Converts Fairgate's custom resources to events. Pure: no I/O, no state between calls.

A reader returns None for an irrelevant object, and raises InvalidInput for an invalid one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from fractions import Fraction
from typing import TypeVar

from app.core import events, model, well_known
from app.core.durations import parse_duration
from app.core.errors import InvalidInput
from app.core.policy import DisruptionBudgets, Mode, Policy, Reclaim, WithinQueue
from app.core.quantities import parse_amount, parse_amounts
from app.k8s_types import objects
from app.kube.checkpoint_store import read_checkpoint
from app.kube.convert import created
from app.kube.convert_constraints import read_tolerations

POLICY = "default"
"""Name of the only valid Policy."""

_DECIMAL = re.compile(r"\d{1,12}(\.\d{1,12})?", re.ASCII)
_ONE = Fraction(1)
_LEAST = model.Millis(1)

E = TypeVar("E", bound=Enum)
T = TypeVar("T")


def read_tenant(tenant: objects.TenantObject, at: model.Millis) -> events.TenantObserved:
    """Return the event for a Tenant."""
    spec = tenant.spec
    return events.TenantObserved(
        at,
        model.Tenant(
            name=model.TenantName(tenant.metadata.name),
            created=created(tenant.metadata),
            weight=_read_field("weight", _decimal, spec.weight, _ONE),
            parent=model.TenantName(spec.parent) if spec.parent else None,
            namespaces=tuple(spec.namespaces or ()),
            user_weights={
                model.UserName(user.name): _read_field(
                    f"weight of user {user.name}", _decimal, user.weight, _ONE
                )
                for user in spec.users or ()
            },
            pools=tuple(model.PoolName(name) for name in spec.pools or ()),
            quotas={model.PoolName(quota.pool): _quota(quota) for quota in spec.quotas or ()},
            max_pending=spec.max_pending,
            paused=spec.paused,
            generation=tenant.metadata.generation,
            uid=tenant.metadata.uid,
        ),
        tenant.status.pending,
        read_checkpoint(tenant.status.checkpoint),
        changed_by=changed_by(tenant.metadata),
    )


def read_pool(pool: objects.PoolObject, at: model.Millis) -> events.PoolObserved:
    """Return the event for a Pool."""
    spec = pool.spec
    return events.PoolObserved(
        at,
        model.Pool(
            name=model.PoolName(pool.metadata.name),
            selector=spec.node_selector or {},
            weights=_decimals("weights", spec.weights),
            overcommit=_decimals("overcommit", spec.overcommit),
            placement=_read_field(
                "placement",
                _enum_reader(model.PlacementStrategy),
                spec.placement,
                model.PlacementStrategy.PACK,
            ),
            tolerations=read_tolerations(spec.tolerations),
            topology=tuple(spec.topology or ()),
            paused=spec.paused,
            gpu_memory=_memory(spec.gpu_memory),
            max_capacity=_amounts("maxCapacity", spec.max_capacity),
            generation=pool.metadata.generation,
            uid=pool.metadata.uid,
        ),
        changed_by=changed_by(pool.metadata),
        status_capacity=_reported_capacity(pool.status),
    )


def read_policy(policy: objects.PolicyObject, at: model.Millis) -> events.PolicyObserved | None:
    """Return the event for the Policy, or None if it has another name."""
    if policy.metadata.name != POLICY:
        return None
    spec, default = policy.spec, Policy()
    return events.PolicyObserved(
        at,
        Policy(
            history=_read_field("history", _decimal, spec.history, default.history),
            half_life=_read_field(
                "halfLife", _positive_duration, spec.half_life, default.half_life
            ),
            min_charge=_read_field(
                "minCharge", parse_duration, spec.min_charge, default.min_charge
            ),
            reserve_after=_read_field(
                "reserveAfter", parse_duration, spec.reserve_after, default.reserve_after
            ),
            backfill=default.backfill if spec.backfill is None else spec.backfill,
            reclaim=_read_field("reclaim", _enum_reader(Reclaim), spec.reclaim, default.reclaim),
            within_queue=_read_field(
                "withinQueue", _enum_reader(WithinQueue), spec.within_queue, default.within_queue
            ),
            min_runtime=_read_field(
                "minRuntime", parse_duration, spec.min_runtime, default.min_runtime
            ),
            max_reclaim_notice=_read_field(
                "maxReclaimNotice",
                parse_duration,
                spec.max_reclaim_notice,
                default.max_reclaim_notice,
            ),
            gang_timeout=_read_field(
                "gangTimeout", parse_duration, spec.gang_timeout, default.gang_timeout
            ),
            scheduling_timeout=_read_field(
                "schedulingTimeout",
                parse_duration,
                spec.scheduling_timeout,
                default.scheduling_timeout,
            ),
            evict_unowned=(
                default.evict_unowned if spec.evict_unowned is None else spec.evict_unowned
            ),
            max_unbound=_at_least_one("maxUnbound", spec.max_unbound, default.max_unbound),
            max_unowned_unbound=_at_least_one(
                "maxUnownedUnbound", spec.max_unowned_unbound, default.max_unowned_unbound
            ),
            mode=_read_field("mode", _enum_reader(Mode), spec.mode, default.mode),
            disruption_budgets=_read_field(
                "disruptionBudgets",
                _enum_reader(DisruptionBudgets),
                spec.disruption_budgets,
                default.disruption_budgets,
            ),
        ),
        changed_by=changed_by(policy.metadata),
        has_mode=spec.mode is not None,
        uid=policy.metadata.uid,
    )


def _at_least_one(field: str, written: int | None, default: int) -> int:
    """Return a number of pods. Raises InvalidInput."""
    if written is None:
        return default
    if written < 1:
        raise InvalidInput(f"{field}: '{written}' is less than 1.")
    return written


def changed_by(meta: objects.Metadata) -> str:
    """Return the user that made the last change of an object, "" if unknown.

    The annotation contains the generation of its change. An older generation belongs to another
    change.
    """
    written = meta.annotations or {}
    if written.get(well_known.ANNOTATION_CHANGED) != str(meta.generation):
        return ""
    return written.get(well_known.ANNOTATION_CHANGED_BY, "")


def _memory(written: str | int | float | None) -> int | None:
    """Return the bytes of one device, or None if not stated."""
    if written is None:
        return None
    try:
        return parse_amount("memory", written) or None
    except InvalidInput as error:
        raise InvalidInput(f"gpuMemory: {error}") from error


def _reported_capacity(status: objects.PoolStatus) -> model.Amounts | None:
    """Return the capacity that a leader wrote in the status, or None if missing or invalid."""
    if status.capacity is None:
        return None
    try:
        return _amounts("capacity", status.capacity)
    except InvalidInput:
        return None


def _quota(quota: objects.QuotaObject) -> model.Quota:
    return model.Quota(
        guarantee=_amounts(f"guarantee in pool {quota.pool}", quota.guarantee),
        limit=_amounts(f"limit in pool {quota.pool}", quota.limit),
    )


def _amounts(what: str, written: objects.Quantities | None) -> model.Amounts:
    try:
        read = parse_amounts(written or {})
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from error
    for resource, value in read.items():
        if value < 0:
            raise InvalidInput(f"{what}: {resource[:80]} is negative; write 0 or more.")
    return read


def _decimals(what: str, written: Mapping[str, str] | None) -> dict[model.Resource, Fraction]:
    return {
        model.Resource(name): _read_field(f"{what}[{name}]", _decimal, text, _ONE)
        for name, text in (written or {}).items()
    }


def _read_field(what: str, reader: Callable[[str], T], text: str | None, default: T) -> T:
    """Return the parsed field, or `default` if absent. Raises InvalidInput, naming the field."""
    if text is None:
        return default
    try:
        return reader(text)
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from error


def _decimal(text: str) -> Fraction:
    # Check first: Fraction also accepts exponents, which can fill all memory.
    if not _DECIMAL.fullmatch(text):
        raise InvalidInput(f"{text[:40]!r} is not a decimal number such as 2 or 0.5.")
    return Fraction(text)


def _positive_duration(text: str) -> model.Millis:
    """Return a duration that is not zero, because it is a divisor. The minimum replaces 0."""
    return max(parse_duration(text), _LEAST)


def _enum_reader(kind: type[E]) -> Callable[[str], E]:
    def read(text: str) -> E:
        try:
            return kind(text)
        except ValueError as error:
            words = ", ".join(str(each.value) for each in kind)
            raise InvalidInput(f"{text[:40]!r} is not valid; use one of {words}.") from error

    return read
