"""Routes that write tenants and pools. Answers have the ETag of the written object."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response
from pydantic import BaseModel

from app.core.admission.tenant_permissions import TenantSpecMap
from app.core.model import TenantName
from app.ports.api import Stored
from app.ports.auth import Identity
from app.web.api.etags import Conditions, conditions_of, etag
from app.web.api.refused import Refused
from app.web.api.route_context import PoolPath, RouteContext, TenantPath, UserPath
from app.web.api.schemas import (
    USER_NAME,
    USER_NAME_RULE,
    PoolChange,
    PoolSpecModel,
    PoolWritten,
    TenantChange,
    TenantSpecModel,
    TenantWritten,
    Weight,
)
from app.web.api.share_preview import share_changes
from app.web.api.write_service import WriteOutcome, WriteRequest, WriteService

DryRun = Annotated[
    bool,
    Query(alias="dryRun", description="Validate, and return the changes without writing them."),
]
Wanted = Annotated[Conditions, Depends(conditions_of)]


def add_write_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the routes under /tenants and /pools that write."""
    changes = WriteService(context.access, context.resources, context.reporter)
    _tenants(routes, context, changes)
    _weights(routes, context, changes)
    _pools(routes, context, changes)


def _tenants(routes: APIRouter, context: RouteContext, changes: WriteService) -> None:
    caller = Depends(context.access.authenticate_request)

    @routes.put(
        "/tenants/{tenant}",
        summary="Make a tenant, or put another in its place",
        response_model=TenantWritten | TenantChange,
        responses={201: {"model": TenantWritten, "description": "It is new"}},
    )
    async def put_tenant(
        tenant: TenantPath,
        spec: TenantSpecModel,
        response: Response,
        wanted: Wanted,
        dry_run: DryRun = False,
        identity: Identity = caller,
    ) -> TenantWritten | TenantChange | Response:
        _require_user_names(spec)
        request = WriteRequest(identity, "tenants", tenant, wanted, dry_run)
        answer = await _TenantAnswer.to(request, context, as_spec(spec))
        return await answer.to_put(await changes.replace_spec(request, as_spec(spec)), response)

    @routes.delete(
        "/tenants/{tenant}",
        summary="Delete a tenant; its namespaces and children become their own",
        status_code=204,
        response_model=None,
        responses={200: {"model": TenantChange, "description": "With dryRun: what would change"}},
    )
    async def delete_tenant(
        tenant: TenantPath, wanted: Wanted, dry_run: DryRun = False, identity: Identity = caller
    ) -> Response:
        request = WriteRequest(identity, "tenants", tenant, wanted, dry_run)
        answer = await _TenantAnswer.to(request, context, {})
        outcome = await changes.delete(request)
        return _delete_answer(await answer.change_json(outcome) if dry_run else None)


def _weights(routes: APIRouter, context: RouteContext, changes: WriteService) -> None:
    caller = Depends(context.access.authenticate_request)

    @routes.put(
        "/tenants/{tenant}/weight",
        summary="Weigh a tenant against its siblings",
        response_model=TenantWritten | TenantChange,
    )
    async def put_weight(
        tenant: TenantPath,
        weight: Weight,
        response: Response,
        wanted: Wanted,
        dry_run: DryRun = False,
        identity: Identity = caller,
    ) -> TenantWritten | TenantChange | Response:
        request = WriteRequest(identity, "tenants", tenant, wanted, dry_run)
        answer = await _TenantAnswer.to(request, context, {"weight": weight.weight})
        return await answer.to_put(
            await changes.set_tenant_weight(request, weight.weight), response
        )

    # User names may contain slashes, for example those of OIDC issuers.
    @routes.put(
        "/tenants/{tenant}/users/{user:path}/weight",
        summary="Weigh a user against the tenant's other users",
        response_model=TenantWritten | TenantChange,
    )
    async def put_user_weight(
        tenant: TenantPath,
        user: UserPath,
        weight: Weight,
        response: Response,
        wanted: Wanted,
        dry_run: DryRun = False,
        identity: Identity = caller,
    ) -> TenantWritten | TenantChange | Response:
        request = WriteRequest(identity, "tenants", tenant, wanted, dry_run)
        sent = {"users": [{"name": user, "weight": weight.weight}]}
        answer = await _TenantAnswer.to(request, context, sent)
        return await answer.to_put(
            await changes.set_user_weight(request, user, weight.weight), response
        )


def _pools(routes: APIRouter, context: RouteContext, changes: WriteService) -> None:
    caller = Depends(context.access.authenticate_request)

    @routes.put(
        "/pools/{pool}",
        summary="Make a pool, or put another in its place",
        responses={201: {"model": PoolWritten, "description": "It is new"}},
    )
    async def put_pool(
        pool: PoolPath,
        spec: PoolSpecModel,
        response: Response,
        wanted: Wanted,
        dry_run: DryRun = False,
        identity: Identity = caller,
    ) -> PoolWritten | PoolChange:
        outcome = await changes.replace_spec(
            WriteRequest(identity, "pools", pool, wanted, dry_run), as_spec(spec)
        )
        if dry_run:
            return _pool_change(outcome)
        return PoolWritten(**_stored_fields(outcome, response))

    @routes.delete(
        "/pools/{pool}",
        summary="Delete a pool; no more pods are released to it",
        status_code=204,
        response_model=None,
        responses={200: {"model": PoolChange, "description": "With dryRun: what would change"}},
    )
    async def delete_pool(
        pool: PoolPath, wanted: Wanted, dry_run: DryRun = False, identity: Identity = caller
    ) -> Response:
        outcome = await changes.delete(WriteRequest(identity, "pools", pool, wanted, dry_run))
        change = _pool_change(outcome).model_dump_json(by_alias=True) if dry_run else None
        return _delete_answer(change)


def _require_user_names(spec: TenantSpecModel) -> None:
    """Raise Refused (422) for a user that no path can name."""
    for place, user in enumerate(spec.users):
        if re.match(USER_NAME, user.name) is None:
            raise Refused(422, f"users.{place}.name: {USER_NAME_RULE}.")


def as_spec(model: BaseModel) -> TenantSpecMap:
    """Return a request as the spec of a resource, without empty values."""
    written = model.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {key: _without_empty(value) for key, value in written.items() if value not in ([], {})}


def _without_empty(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_empty(each) for each in value]
    if isinstance(value, dict):
        return {key: each for key, each in value.items() if each not in ([], {})}
    return value


def _stored_fields(outcome: WriteOutcome, response: Response) -> Mapping[str, Any]:
    """Return the fields of the stored object. Set the ETag, and status 201 if it is new."""
    stored = outcome.after
    assert stored is not None, "only a delete leaves nothing"
    response.headers["ETag"] = etag(stored)
    if outcome.before is None:
        response.status_code = 201
    return _fields(stored)


def _fields(stored: Stored) -> Mapping[str, Any]:
    return {**stored.spec, "name": stored.name}


@dataclass(frozen=True, slots=True)
class _TenantAnswer:
    """The answer to a write of a tenant, limited to what the caller may read.

    The right to write a tenant is one on its parent, and does not include the right to read it.
    `sent`: the fields of the spec in the request. The answer has only these and the name, unless
    the caller may get the tenant. `shares` has only tenants that it may get, besides this one, and
    only users in `sent`, unless it may get the queue.
    """

    context: RouteContext
    request: WriteRequest
    sent: TenantSpecMap
    may_get: bool
    may_get_queue: bool

    @classmethod
    async def to(
        cls, request: WriteRequest, context: RouteContext, sent: TenantSpecMap
    ) -> _TenantAnswer:
        """Ask for the rights of the caller. Meant before the write: it may raise ClusterError."""
        may_get = context.access.may_get
        return cls(
            context,
            request,
            sent,
            await may_get(request.caller, "tenants", "", request.name),
            # Only a dry run has shares.
            request.dry_run and await may_get(request.caller, "tenants", "queue", request.name),
        )

    async def to_put(
        self, outcome: WriteOutcome, response: Response
    ) -> TenantWritten | TenantChange | Response:
        """Return the stored tenant, or the change in a dry run."""
        if self.request.dry_run:
            answer: TenantChange | TenantWritten = await self._change(outcome)
        else:
            answer = self._readable(TenantWritten(**_stored_fields(outcome, response)), self.sent)
        if self.may_get:
            return answer
        # FastAPI would add the fields that the caller may not read, with their defaults.
        return Response(
            self._as_json(answer),
            response.status_code or 200,
            response.headers,
            media_type="application/json",
        )

    async def change_json(self, outcome: WriteOutcome) -> str:
        """Return the change as JSON."""
        return self._as_json(await self._change(outcome))

    async def _change(self, outcome: WriteOutcome) -> TenantChange:
        self.context.require_synced_state()
        before, after = (
            TenantWritten(**_fields(each)) if each else None
            for each in (outcome.before, outcome.after)
        )
        users = (
            None if self.may_get_queue else {each["name"] for each in self.sent.get("users", ())}
        )
        queries = self.context.queries
        own = TenantName(self.request.name)
        others = sorted(queries.view().tenants.keys() - {own})
        access = self.context.access
        tenants = await access.readable_tenants(self.request.caller, [own, *others])
        return TenantChange(
            before=before and self._readable(before, {}),
            after=after and self._readable(after, self.sent),
            shares=share_changes(queries, before, after, {own, *tenants}, users),
        )

    def _readable(self, tenant: TenantWritten, sent: TenantSpecMap) -> TenantWritten:
        return tenant if self.may_get else TenantWritten(**sent, name=tenant.name)

    def _as_json(self, answer: BaseModel) -> str:
        return answer.model_dump_json(by_alias=True, exclude_unset=not self.may_get)


def _pool_change(outcome: WriteOutcome) -> PoolChange:
    before, after = (
        PoolWritten(**_fields(each)) if each else None for each in (outcome.before, outcome.after)
    )
    return PoolChange(before=before, after=after)


def _delete_answer(change: str | None) -> Response:
    """Return the answer to a DELETE. `change`: of a dry run."""
    if change is None:
        return Response(status_code=204)
    return Response(change, media_type="application/json")
