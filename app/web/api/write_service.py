"""Checks the caller's rights, then writes a Tenant or Pool and records the caller.

It checks RBAC for the caller, and writes with Fairgate's own account. The API server validates.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from app.core.admission.tenant_permissions import (
    TenantPermission,
    TenantSpecMap,
    normalized_spec,
    parent_permission,
    required_permissions,
)
from app.core.audit_entry import EntryType
from app.core.errors import ClusterUnavailable
from app.core.model import UNMAPPED_PREFIX
from app.ports.api import Stored, TenantsAndPools
from app.ports.audit import Reporter
from app.ports.auth import Identity
from app.web.api.auth import ASK, Access
from app.web.api.etags import Conditions
from app.web.api.refused import Refused

KINDS = {"tenants": "Tenant", "pools": "Pool"}
TRIES = 5
"""Attempts of a write that conflicts with other writes."""

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class WriteRequest:
    """A write request: caller, object and preconditions."""

    caller: Identity
    kind: str
    name: str
    conditions: Conditions
    dry_run: bool = False

    @property
    def object_name(self) -> str:
        """Return the name of the object for messages."""
        return f"{self.kind.removesuffix('s')} {self.name}"


Edit = Callable[[TenantSpecMap | None], TenantSpecMap | None]
Permit = Callable[[WriteRequest, TenantSpecMap | None, TenantSpecMap | None], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class WriteOutcome:
    """The object before and after a write; in a dry run `after` is the result it would have."""

    before: Stored | None
    after: Stored | None


class WriteService:
    """Writes on behalf of callers. All methods raise Refused and ClusterError."""

    def __init__(self, access: Access, resources: TenantsAndPools, reporter: Reporter) -> None:
        self._access = access
        self._resources = resources
        self._reporter = reporter

    async def replace_spec(self, request: WriteRequest, spec: TenantSpecMap) -> WriteOutcome:
        """Create an object, or replace its spec."""
        return await self._write(request, lambda _: spec, self._require_rights)

    async def set_tenant_weight(self, request: WriteRequest, weight: str) -> WriteOutcome:
        """Set the weight of an existing tenant."""

        async def permit(
            request: WriteRequest, before: TenantSpecMap | None, _: TenantSpecMap | None
        ) -> None:
            await self._require_right(request, parent_permission(before))

        return await self._write(
            request, _edit_existing(lambda old: {**old, "weight": weight}), permit
        )

    async def set_user_weight(self, request: WriteRequest, user: str, weight: str) -> WriteOutcome:
        """Set the weight of a user of an existing tenant."""

        async def permit(request: WriteRequest, *_: TenantSpecMap | None) -> None:
            await self._require_right(request, TenantPermission(request.name, "users"))

        return await self._write(
            request, _edit_existing(lambda old: _with_user(old, user, weight)), permit
        )

    async def delete(self, request: WriteRequest) -> WriteOutcome:
        """Delete an existing object."""
        for _ in range(TRIES):
            before = await self._read_stored(request)
            await self._require_rights(request, before.spec if before else None, None)
            request.conditions.check(request.object_name, before)
            if before is None:
                raise _not_found(request)
            if await self._delete(request, before):
                if not request.dry_run:
                    self._report_deletion(request, before)
                return WriteOutcome(before, None)
        raise _conflict(request)

    def _report_deletion(self, request: WriteRequest, before: Stored) -> None:
        """Report the caller for the audit chain, because a deleted object cannot name it."""
        facts = {"kind": KINDS[request.kind], "name": before.name, "by": request.caller.name}
        self._reporter.report(EntryType.DELETED, facts)

    async def _write(self, request: WriteRequest, edit: Edit, permit: Permit) -> WriteOutcome:
        """Store the result of `edit`, after `permit` allows it. Result None: no object to edit.

        Rights are checked first, so that an unauthorized caller gets no information.
        """
        for _ in range(TRIES):
            before = await self._read_stored(request)
            was = before.spec if before else None
            after = edit(was)
            await permit(request, was, after)
            request.conditions.check(request.object_name, before)
            if after is None:
                raise _not_found(request)
            if was is not None and normalized_spec(was) == normalized_spec(after):
                return WriteOutcome(before, before)
            if stored := await self._store(request, after, before):
                return WriteOutcome(before, stored)
        raise _conflict(request)

    async def _require_rights(
        self, request: WriteRequest, before: TenantSpecMap | None, after: TenantSpecMap | None
    ) -> None:
        """Raise Refused (403) unless the caller has every right for the change."""
        caller, access = request.caller, self._access
        if request.kind == "pools":
            verb = "delete" if after is None else "update" if before is not None else "create"
            await access.require(caller, verb, "pools", name=request.name)
            return
        needed = required_permissions(request.name, before, after)
        for grant in needed:
            await self._require_right(request, grant)
        # As for kubectl, the right on the parent does not suffice to create or delete a tenant: a
        # new tenant may name any free namespace, and a deletion affects child tenants.
        if before is None:
            await access.require(caller, "create", "tenants")
        elif after is None:
            await access.require(caller, "delete", "tenants", name=request.name)
        if not needed and not await access.is_allowed(
            caller, "update", "tenants", "users", request.name
        ):
            await self._require_right(request, parent_permission(before))

    async def _require_right(self, request: WriteRequest, grant: TenantPermission) -> None:
        caller, access = request.caller, self._access
        if grant.name not in ("", request.name):
            # Name the parent only to callers with the right to get this tenant.
            if await access.is_allowed(caller, "update", "tenants", grant.subresource, grant.name):
                return
            if not await access.is_allowed(caller, "get", "tenants", name=request.name):
                raise Refused(403, f"{caller.name} may not update tenants.fairgate.io; {ASK}")
        await access.require(caller, "update", "tenants", grant.subresource, grant.name)

    async def _read_stored(self, request: WriteRequest) -> Stored | None:
        if not _NAME.fullmatch(request.name):
            return None
        return await self._resources.read(request.kind, request.name)

    async def _store(
        self, request: WriteRequest, after: TenantSpecMap, before: Stored | None
    ) -> Stored | None:
        if not _NAME.fullmatch(request.name):
            raise Refused(
                422,
                f"{request.name[:80]!r} cannot be a name: lower case letters, digits, - and . may "
                "be in one, at most 253.",
            )
        by, dry_run = request.caller.name, request.dry_run
        try:
            return await self._resources.write(
                request.kind, request.name, after, by, before, dry_run
            )
        except ClusterUnavailable as error:
            raise _unknown_result(request) from error

    async def _delete(self, request: WriteRequest, before: Stored) -> bool:
        try:
            return await self._resources.delete(
                request.kind, before, request.caller.name, request.dry_run
            )
        except ClusterUnavailable as error:
            raise _unknown_result(request) from error


def _edit_existing(edit: Callable[[TenantSpecMap], TenantSpecMap]) -> Edit:
    return lambda old: None if old is None else edit(old)


def _with_user(spec: TenantSpecMap, user: str, weight: str) -> TenantSpecMap:
    weights = {each["name"]: each for each in spec.get("users") or ()}
    weights[user] = {"name": user, "weight": weight}
    return {**spec, "users": list(weights.values())}


def _not_found(request: WriteRequest) -> Refused:
    namespace = request.name.removeprefix(UNMAPPED_PREFIX)
    if request.kind == "tenants" and namespace != request.name:
        why = f"{request.name} is a namespace without a Tenant; a cluster admin can create one."
        return Refused(404, why)
    return Refused(
        404, f"There is no {request.object_name}; kubectl fairgate {request.kind} lists them."
    )


def _conflict(request: WriteRequest) -> Refused:
    return Refused(409, f"{request.object_name} is being changed by others as well; try again.")


def _unknown_result(request: WriteRequest) -> Refused:
    return Refused(
        503,
        f"The API server did not answer, so it is not known whether {request.object_name} was "
        "changed; read it, and try again if need be.",
    )
