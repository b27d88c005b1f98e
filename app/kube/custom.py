"""Our custom resources become events of the core. Pure: no I/O, no memory between calls.

A reader returns None for an object that does not concern us, and raises InvalidInput for one
that it cannot understand.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from enum import Enum
from fractions import Fraction
from typing import TypeVar

from app import wire
from app.core import events, model
from app.core.durations import duration
from app.core.errors import InvalidInput
from app.core.policy import Mode, Policy, Reclaim, WithinQueue
from app.core.resources import amount, amounts
from app.kube.checkpoint import read_checkpoint
from app.kube.constraints import read_tolerations
from app.kube.convert import created

POLICY = "default"
"""Name of the one Policy."""

_GRAMMAR = re.compile(r"\d{1,12}(\.\d{1,12})?", re.ASCII)
_ONE = Fraction(1)
_LEAST = model.Millis(1)

E = TypeVar("E", bound=Enum)
T = TypeVar("T")


def read_tenant(tenant: wire.Tenant, at: model.Millis) -> events.TenantObserved:
    """Return a Tenant as the core knows it."""
    spec = tenant.spec
    return events.TenantObserved(
        at,
        model.Tenant(
            name=model.TenantName(tenant.metadata.name),
            created=created(tenant.metadata),
            weight=_read("weight", _decimal, spec.weight, _ONE),
            parent=model.TenantName(spec.parent) if spec.parent else None,
            namespaces=tuple(spec.namespaces or ()),
            user_weights={
                model.UserName(user.name): _read(
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
        by=changed_by(tenant.metadata),
    )


def read_pool(pool: wire.Pool, at: model.Millis) -> events.PoolObserved:
    """Return a Pool as the core knows it."""
    spec = pool.spec
    return events.PoolObserved(
        at,
        model.Pool(
            name=model.PoolName(pool.metadata.name),
            selector=spec.node_selector or {},
            weights=_decimals("weights", spec.weights),
            overcommit=_decimals("overcommit", spec.overcommit),
            placement=_read("placement", _word(model.Style), spec.placement, model.Style.PACK),
            tolerations=read_tolerations(spec.tolerations),
            topology=tuple(spec.topology or ()),
            paused=spec.paused,
            gpu_memory=_memory(spec.gpu_memory),
            max_capacity=_amounts("maxCapacity", spec.max_capacity),
            generation=pool.metadata.generation,
            uid=pool.metadata.uid,
        ),
        by=changed_by(pool.metadata),
        offered=_offered(pool.status),
    )


def read_policy(policy: wire.Policy, at: model.Millis) -> events.PolicyObserved | None:
    """Return the Policy as the core knows it; None for one by another name."""
    if policy.metadata.name != POLICY:
        return None
    spec, default = policy.spec, Policy()
    return events.PolicyObserved(
        at,
        Policy(
            history=_read("history", _decimal, spec.history, default.history),
            half_life=_read("halfLife", _some_time, spec.half_life, default.half_life),
            min_charge=_read("minCharge", duration, spec.min_charge, default.min_charge),
            reserve_after=_read(
                "reserveAfter", duration, spec.reserve_after, default.reserve_after
            ),
            backfill=default.backfill if spec.backfill is None else spec.backfill,
            reclaim=_read("reclaim", _word(Reclaim), spec.reclaim, default.reclaim),
            within_queue=_read(
                "withinQueue", _word(WithinQueue), spec.within_queue, default.within_queue
            ),
            min_runtime=_read("minRuntime", duration, spec.min_runtime, default.min_runtime),
            gang_timeout=_read("gangTimeout", duration, spec.gang_timeout, default.gang_timeout),
            scheduling_timeout=_read(
                "schedulingTimeout", duration, spec.scheduling_timeout, default.scheduling_timeout
            ),
            mode=_read("mode", _word(Mode), spec.mode, default.mode),
        ),
        by=changed_by(policy.metadata),
    )


def changed_by(meta: wire.Metadata) -> str:
    """Return who made an object what it is; "" if nobody can tell.

    The stamp names the generation that it was written with: an older one tells of another change.
    """
    written = meta.annotations or {}
    if written.get(model.ANNOTATION_CHANGED) != str(meta.generation):
        return ""
    return written.get(model.ANNOTATION_CHANGED_BY, "")


def _memory(written: str | int | float | None) -> int | None:
    """Return the bytes of one device; None: nobody wrote it."""
    if written is None:
        return None
    try:
        return amount("memory", written) or None
    except InvalidInput as error:
        raise InvalidInput(f"gpuMemory: {error}") from error


def _offered(status: wire.PoolStatus) -> model.Amounts | None:
    """Return what a leader said that the pool offers; None of what none can have written."""
    if status.capacity is None:
        return None
    try:
        return _amounts("capacity", status.capacity)
    except InvalidInput:
        return None


def _quota(quota: wire.Quota) -> model.Quota:
    return model.Quota(
        guarantee=_amounts(f"guarantee in pool {quota.pool}", quota.guarantee),
        limit=_amounts(f"limit in pool {quota.pool}", quota.limit),
    )


def _amounts(what: str, written: wire.Quantities | None) -> model.Amounts:
    try:
        read = amounts(written or {})
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from error
    for resource, value in read.items():
        if value < 0:
            raise InvalidInput(f"{what}: {resource[:80]} is negative; write 0 or more.")
    return read


def _decimals(what: str, written: Mapping[str, str] | None) -> dict[model.Resource, Fraction]:
    return {
        model.Resource(name): _read(f"{what}[{name}]", _decimal, text, _ONE)
        for name, text in (written or {}).items()
    }


def _read(what: str, reader: Callable[[str], T], text: str | None, default: T) -> T:
    """Return what a field says, `default` if it is absent. Raises InvalidInput, naming it."""
    if text is None:
        return default
    try:
        return reader(text)
    except InvalidInput as error:
        raise InvalidInput(f"{what}: {error}") from error


def _decimal(text: str) -> Fraction:
    # Checked first: Fraction also takes exponents, which can be made to fill all memory.
    if not _GRAMMAR.fullmatch(text):
        raise InvalidInput(f"{text[:40]!r} is not a decimal number such as 2 or 0.5.")
    return Fraction(text)


def _some_time(text: str) -> model.Millis:
    """Return a duration to divide by: what is forgotten at once is forgotten within this."""
    return max(duration(text), _LEAST)


def _word(kind: type[E]) -> Callable[[str], E]:
    def read(text: str) -> E:
        try:
            return kind(text)
        except ValueError as error:
            words = ", ".join(str(each.value) for each in kind)
            raise InvalidInput(f"{text[:40]!r} is none of {words}.") from error

    return read
