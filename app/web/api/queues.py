"""Route /tenants/{tenant}/queue: every held workload, its position and its wait reason.

Order, positions and counts come from the leader's copy in Redis. The engine of the replica adds the
explanation of each workload that it has seen. An encoded page serves all its readers for
`FRESH_SECONDS`, unless the state of the engine changes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from app.core.explain.explain_context import SharedRow
from app.core.explain.queue_listing import PageMark, QueueRow
from app.core.explain.views import HeldView
from app.core.fairshare.user_queue import QueueKey
from app.core.model import Millis, TenantName, Uid, UserName
from app.ports.auth import Identity
from app.ports.forecasts import Estimate
from app.ports.store import QueueReader
from app.web.api import examples
from app.web.api.formatting import encode_json, json_answer, quantities, to_datetime
from app.web.api.pagination import Limit, More, page_token, read_page_token
from app.web.api.route_context import LONGEST_USER, RouteContext, TenantPath
from app.web.api.schemas import QueueModel

Shown = dict[SharedRow | None, dict[str, Any]]
"""Formatted fields of one page. Many rows share them."""

MOST_USERS = 100
"""Users in one read of the store."""

FRESH_SECONDS = 1.0
"""How long an encoded page is used again. Estimates and Redis may change meanwhile."""

MOST_PAGES = 64
"""Kept pages, of up to 200 kB each."""


class _RecentPages:
    """Encoded pages by the state that they show, the oldest first. `clock`: monotonic seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._pages: dict[Hashable, tuple[float, bytes]] = {}

    def get(self, key: Hashable) -> bytes | None:
        """Return a page that is fresh, or None."""
        at, body = self._pages.get(key, (float("-inf"), b""))
        return body if self._clock() - at < FRESH_SECONDS else None

    def add(self, key: Hashable, body: bytes) -> None:
        """Record a page that was made just now, and drop pages that are not fresh."""
        now = self._clock()
        self._pages.pop(key, None)
        for old, (at, _) in list(self._pages.items()):
            if now - at < FRESH_SECONDS and len(self._pages) < MOST_PAGES:
                break
            del self._pages[old]
        self._pages[key] = now, body


def add_queue_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the routes that read queues."""
    access = context.access
    caller = Depends(access.authenticate_request)
    pages = _RecentPages(time.monotonic)

    @routes.get(
        "/tenants/{tenant}/queue",
        summary="The pending workloads in order, with their reasons",
        response_model=QueueModel,
        responses=examples.QUEUE,
    )
    async def queue(
        tenant: TenantPath,
        user: Annotated[
            str | None, Query(max_length=LONGEST_USER, description="Only what this user submitted.")
        ] = None,
        limit: Limit = 100,
        more: More = None,
        identity: Identity = caller,
    ) -> Response:
        own = UserName(identity.name)
        if user == own:
            context.require_synced_state()  # the right depends on the caller's pods
        if user != own or tenant not in context.queries.tenants_of_user(own):
            await access.require(identity, "get", "tenants", "queue", tenant)
        name, last = context.require_tenant(tenant), _mark(more)
        revision = context.queries.revision, context.is_synced()
        key = (name, user, limit, more, *revision)
        if (body := pages.get(key)) is not None:
            return json_answer(body)
        counts = [
            each
            for each in await context.queues.read_pending_counts(name)
            if user in (None, each.user)
        ]
        users = [each.user for each in counts if last is None or each.user >= last.user]
        rows = await _read(context.queues, name, users, last, limit + 1)
        rest = _token(rows[limit - 1].mark) if len(rows) > limit else None
        shown: Shown = {}
        body = encode_json(
            {
                "items": [_row_fields(row, context, shown) for row in rows[:limit]],
                "continue": rest,
                "tenant": tenant,
                "pending": sum(each.pods for each in counts),
            }
        )
        pages.add(key, body)
        return json_answer(body)


async def _read(
    queues: QueueReader,
    tenant: TenantName,
    users: Sequence[UserName],
    last: PageMark | None,
    most: int,
) -> list[QueueRow]:
    """Return at most `most` workloads of these users after a mark."""
    rows: list[QueueRow] = []
    for first in range(0, len(users), MOST_USERS):
        some = users[first : first + MOST_USERS]
        after = last if last is not None and some[0] == last.user else None
        rows += await queues.read_page(tenant, some, after, most - len(rows))
        if len(rows) >= most:
            break
    return rows


def _row_fields(row: QueueRow, context: RouteContext, shown: Shown) -> dict[str, Any]:
    """Return a row in the form of `QueuedWorkload`."""
    uid, queue_key = row.ref.uid, row.mark.queue_key
    found = (
        context.queries.listed_row(uid, (row.position, row.length)) if context.is_synced() else None
    )
    shared, reason = found or (None, None)
    if shared not in shown:
        shown[shared] = _explanation_fields(shared)
    return {
        "namespace": row.ref.namespace,
        "name": row.ref.name,
        "uid": uid,
        "gang": row.gang or None,
        "pods": row.pods,
        "user": row.mark.user,
        "priority": queue_key.priority,
        "since": to_datetime(queue_key.since),
        **shown[shared],
        "reason": reason,
        "position": row.position,
        "length": row.length,
        **_estimate(uid, context),
    }


def _explanation_fields(shared: SharedRow | HeldView | None) -> dict[str, Any]:
    """Return the fields of `QueuedWorkload` that need the engine; null if it has not the pod."""
    if shared is None:
        return {"request": None, "pools": None, "rule": None}
    return {
        "request": quantities(shared.request),
        "pools": shared.pools,
        "rule": shared.rule.value,
    }


def held_workload(view: HeldView, context: RouteContext) -> dict[str, Any]:
    """Return a held workload of the engine in the form of `QueuedWorkload`."""
    return {
        "namespace": view.ref.namespace,
        "name": view.ref.name,
        "uid": view.ref.uid,
        "gang": view.gang or None,
        "pods": view.pods,
        "user": view.user,
        "priority": view.priority,
        "since": to_datetime(view.since),
        **_explanation_fields(view),
        "reason": view.reason,
        "position": view.position,
        "length": view.length,
        **_estimate(view.ref.uid, context),
    }


def _estimate(uid: Uid, context: RouteContext) -> dict[str, Any]:
    """Return the fields of an estimate: without one, the reason."""
    found = context.forecasts.estimate(uid)
    withheld = context.forecasts.missing_estimate_reason(uid) if found is None else None
    return {"estimate": estimate_fields(found), "estimateWithheld": withheld}


def estimate_fields(estimate: Estimate | None) -> dict[str, Any] | None:
    """Return an estimate in the form of `EstimateShown`; None if there is no estimate."""
    if estimate is None:
        return None
    return {"p50": estimate.p50, "p90": estimate.p90, "at": to_datetime(estimate.at)}


def _token(mark: PageMark) -> str:
    return page_token(mark.user, mark.is_queued, *mark.queue_key)


def _mark(more: str | None) -> PageMark | None:
    key = read_page_token(more, (str, bool, int, int, str))
    if key is None:
        return None
    user, queued, precedence, since, uid = key
    queue_key = QueueKey(int(precedence), Millis(int(since)), Uid(str(uid)))
    return PageMark(UserName(str(user)), bool(queued), queue_key)
