"""Routes /audit, the export of the audit chain, and /audit/head, its newest signed head."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from fastapi.responses import StreamingResponse

from app.core.admission.submitters import limit_name
from app.core.audit.codec import head_line
from app.core.audit.fields import LONGEST_NAME, MOST_LEVELS, is_about
from app.core.model import Millis
from app.ports.audit import AuditReader, StreamTail, iterate_lines
from app.ports.auth import Identity
from app.web.api.audit_reader import entry_time, find_start_number
from app.web.api.formatting import to_datetime
from app.web.api.limited_stream import LimitedStream
from app.web.api.refused import Refused
from app.web.api.route_context import NameQuery, RouteContext
from app.web.api.schemas import AuditHead
from app.web.api.time_query import read_moment
from app.web.api.turns import RETRY_HEADERS, Turns

NDJSON = "application/x-ndjson"
LONGEST_CHUNK = 64 * 1024

TURN_SECONDS = 10.0
"""Longest wait for the turn of an export."""


@dataclass(frozen=True, slots=True)
class ExportFilter:
    """Filter of an export: entries from `since`, before `until`, and about one tenant.

    `is_tenant_only`: the caller has rights on that tenant only.
    """

    since: Millis | None
    until: Millis | None
    tenant: str | None
    is_tenant_only: bool

    @property
    def is_complete(self) -> bool:
        """Return whether the export is complete."""
        return self.since is None and self.until is None and self.tenant is None

    def export_line(self, text: str) -> str | None:
        """Return a line as it is exported; None if the filter excludes it."""
        if self.is_complete:
            return text  # also invalid lines, because a verifier must see them
        at = entry_time(text)
        is_then = at is not None and (self.since is None or at >= self.since)
        if at is None or not is_then or (self.until is not None and at >= self.until):
            return None
        if self.tenant is None:
            return text
        try:
            body = json.loads(text)
        except (ValueError, RecursionError):
            return None  # invalid lines are only in complete exports
        facts = body.get("facts")
        if not isinstance(facts, dict) or not is_about(facts, self.tenant):
            return None
        if not self.is_tenant_only:
            return text
        shown = _without_names_of_others(facts, self.tenant)
        if shown == facts:
            return text
        body["facts"] = shown
        body.pop("hash", None)  # it no longer matches
        return json.dumps(body, separators=(",", ":"))


def _without_names_of_others(facts: dict[str, Any], tenant: str) -> dict[str, Any]:
    """Return the facts without the names that a caller with rights on one tenant may not see.

    These are the pod of another tenant that caused an eviction, and siblings above the tenant that
    a release compared: they may be users of the parent.
    """
    shown = dict(facts)
    if facts.get("forTenant", tenant) != tenant:
        shown.pop("for", None)
    levels = facts.get("compared")
    if isinstance(levels, list) and levels:
        *above, last = levels
        own = [last] if _is_user_level(last, len(levels), facts) else [_without_next(last)]
        shown["compared"] = [*map(_without_next, above), *own]
    return shown


def _is_user_level(level: Any, levels: int, facts: dict[str, Any]) -> bool:
    """Return whether the last level of `compared` has the users of the tenant.

    An entry about a deep tree ends with the level of a tenant, because it has a limited length.
    """
    if levels < MOST_LEVELS:
        return True
    user = str(facts.get("user", ""))
    first = level.get("first") if isinstance(level, dict) else None
    return first == user[:LONGEST_NAME] and user != facts.get("tenant")


def _without_next(level: Any) -> Any:
    """Return a level without the name of the sibling. Its score remains."""
    if not isinstance(level, dict):
        return level
    return {name: fact for name, fact in level.items() if name != "next"}


def add_audit_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the routes under /audit."""
    access, caller = context.access, Depends(context.access.authenticate_request)
    turns = Turns("Your last exports of the audit chain go on; wait for them.")

    @routes.get(
        "/audit",
        summary="The audit chain, a line of JSON each",
        response_class=StreamingResponse,
        responses={200: {"content": {NDJSON: {}}}},
    )
    async def audit(
        since: Annotated[str | None, Query(description="At or after this time, RFC 3339.")] = None,
        until: Annotated[str | None, Query(description="Before this time, RFC 3339.")] = None,
        tenant: Annotated[
            NameQuery | None, Query(description="Only entries about this tenant.")
        ] = None,
        identity: Identity = caller,
    ) -> StreamingResponse:
        """Input of `fairgate audit verify FILE`. A complete export ends with the signed head.

        Each caller has one export at a time, and a replica two.
        """
        await access.require(identity, "get", "audit", name=tenant or "")
        excerpt = ExportFilter(
            None if since is None else read_moment("since", since),
            None if until is None else read_moment("until", until),
            tenant,
            tenant is not None and not await access.is_allowed(identity, "get", "audit"),
        )
        ending = await context.audit_reader.read_tail()
        content = _export(context.audit_reader, ending, excerpt)
        turn = _take_turn(turns, limit_name(identity.name))
        return LimitedStream(content, turn, NDJSON)

    @routes.get("/audit/head", summary="The newest signed head of the audit chain")
    async def head(identity: Identity = caller) -> AuditHead:
        await access.require(identity, "get", "audit")
        signed = (await context.audit_reader.read_tail()).signed_head
        if signed is None:
            raise Refused(404, "There is no signed head yet; the leader signs one within seconds.")
        return AuditHead(
            number=signed.head.number,
            hash=signed.head.hash,
            at=to_datetime(signed.at),
            signed=json.dumps(signed.json_fields()),
        )


@asynccontextmanager
async def _take_turn(turns: Turns, who: str) -> AsyncIterator[None]:
    """Hold a turn of an export, which may read the whole chain. Raises Refused (429)."""
    async with AsyncExitStack() as stack:
        try:
            async with asyncio.timeout(TURN_SECONDS):
                await stack.enter_async_context(turns.take(who))
        except TimeoutError as error:
            raise Refused(
                429, "Other exports of the audit chain go on; try again soon.", RETRY_HEADERS
            ) from error
        yield


async def _export(
    chain: AuditReader, ending: StreamTail, excerpt: ExportFilter
) -> AsyncIterator[str]:
    """Yield the entries in chunks of bounded size."""
    last = ending.last_head.number
    after = 0 if excerpt.since is None else await find_start_number(chain, excerpt.since, last)
    chunk: list[str] = []
    size = 0
    async for _, text in iterate_lines(chain, after, last):
        shown = excerpt.export_line(text)
        if shown is None:
            continue
        chunk.append(shown)
        size += len(shown)
        if size >= LONGEST_CHUNK:
            yield "\n".join([*chunk, ""])
            chunk, size = [], 0
    if ending.signed_head is not None and excerpt.is_complete:
        chunk.append(head_line(ending.signed_head))
    if chunk:
        yield "\n".join([*chunk, ""])
