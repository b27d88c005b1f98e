"""Route /usage: exact resource-seconds, computed from the usage records of all leaders.

With `total=true`: the totals of the checkpoints, which survive the loss of Redis.
"""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Header, Query, Response
from fastapi.responses import StreamingResponse

from app.core.errors import InvalidInput
from app.core.fairshare.usage_record import UsageRecord
from app.core.model import Millis, Resource
from app.core.quantities import ManagedResources
from app.core.safe_text import csv_cell
from app.core.usage.usage_sums import GroupBy, UsageAggregator, UsageSum, format_resource_seconds
from app.ports.auth import Identity
from app.ports.store import UsageRecordReader
from app.web.api.formatting import format_time, to_datetime
from app.web.api.pagination import Limit, More, page_token, read_page_token
from app.web.api.refused import Refused
from app.web.api.route_context import RouteContext
from app.web.api.schemas import UsageModel, UsageRow
from app.web.api.time_query import Since, TenantNames, Until, read_span, read_step

AT_ONCE = 2
"""Most answers that are computed at the same time."""

STEPS_PER_SLICE = 5_000
"""Steps to count before other tasks may run; some milliseconds."""

CSV = "text/csv"

GroupNames = Annotated[
    str,
    Query(description="Group by these, separated by commas: tenant,user,pool,node,workload."),
]
Step = Annotated[str | None, Query(description="A row for each such time: 5m, or seconds.")]
Total = Annotated[
    bool, Query(description="Totals since the installation, by tenant, user and pool only.")
]
Form = Annotated[str | None, Query(alias="format", pattern="^(json|csv)$")]


def add_usage_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the route /usage."""
    access, caller = context.access, Depends(context.access.authenticate_request)
    busy = asyncio.Semaphore(AT_ONCE)

    @routes.get(
        "/usage",
        summary="Resource-seconds, exact",
        response_model=UsageModel,
        response_model_exclude_unset=True,
        responses={200: {"content": {CSV: {}}}},
    )
    async def usage(
        by: GroupNames = "tenant",
        since: Since = None,
        until: Until = None,
        tenant: TenantNames = None,
        step: Step = None,
        total: Total = False,
        form: Form = None,
        limit: Limit = 100,
        more: More = None,
        accept: Annotated[str, Header()] = "",
        identity: Identity = caller,
    ) -> UsageModel | Response:
        """Managed resources that released pods reserved, in units times seconds.

        The node of an unbound pod is "". JSON is paginated, CSV is complete.
        """
        for name in tenant or [""]:
            await access.require(identity, "get", "tenants", "usage", name)
        names, tenants = _read_groups(by), frozenset(tenant or ())
        as_csv = form == "csv" or (form is None and CSV in accept)
        if total:
            if since or until or step:
                raise Refused(400, "total: it has no from, to and step; leave them out.")
            page = None if as_csv else (more, limit)
            return _total_answer(names, _totals(context, names, tenants), context, page)
        begin, end, first = read_span(since, until, more, context.now())
        aggregator = UsageAggregator(names, begin, end, read_step(step, begin, end))
        async with busy:
            await _aggregate_records(context.usage_records, aggregator, begin, end, tenants)
        complete = await context.usage_records.complete_since()
        rows, stepped = aggregator.rows(), step is not None
        if as_csv:
            return _as_csv(names, rows, begin, end, context.managed, stepped=stepped)
        rest = page_token(begin, end, first + limit) if first + limit < len(rows) else None
        return _page(names, rows[first:][:limit], begin, end, complete, rest, stepped=stepped)


def _total_answer(
    by: Sequence[GroupBy],
    rows: Sequence[UsageSum],
    context: RouteContext,
    page: tuple[str | None, int] | None,
) -> UsageModel | Response:
    """Return all totals as CSV, or one page of them."""
    if page is None:
        return _as_csv(by, rows, None, context.now(), context.managed, stepped=False)
    return _total_page(by, rows, context.now(), *page)


def _total_page(
    by: Sequence[GroupBy], rows: Sequence[UsageSum], now: Millis, more: str | None, limit: int
) -> UsageModel:
    [first] = read_page_token(more, (int,)) or [0]
    rest = page_token(first + limit) if first + limit < len(rows) else None
    return _page(by, rows[first:][:limit], None, now, None, rest, stepped=False)


def _page(
    by: Sequence[GroupBy],
    rows: Sequence[UsageSum],
    begin: Millis | None,
    end: Millis,
    complete: Millis | None,
    more: str | None,
    *,
    stepped: bool,
) -> UsageModel:
    period: dict[str, Any] = {"from": _moment(begin), "to": to_datetime(end)}
    items = [_usage_row(by, row, stepped=stepped) for row in rows]
    return UsageModel(items=items, more=more, complete_since=_moment(complete), **period)


def _moment(at: Millis | None) -> datetime | None:
    return None if at is None else to_datetime(at)


def _totals(
    context: RouteContext, by: Sequence[GroupBy], tenants: frozenset[str]
) -> list[UsageSum]:
    """Return the totals since the installation. Raises Refused (400, 503)."""
    context.require_synced_state()
    if not {*by} <= {GroupBy.TENANT, GroupBy.USER, GroupBy.POOL}:
        raise Refused(400, "by: totals exist by tenant, user and pool only.")
    sums: dict[tuple[str, ...], dict[Resource, int]] = {}
    for (tenant, user, pool), spent in context.queries.usage_totals(context.now()).items():
        if tenants and tenant not in tenants:
            continue
        named = {GroupBy.TENANT: tenant, GroupBy.USER: user, GroupBy.POOL: pool}
        amounts = sums.setdefault(tuple(named[each] for each in by), {})
        for resource, value in spent.items():
            if value and resource in context.managed:
                amounts[resource] = amounts.get(resource, 0) + value
    return [UsageSum(names, Millis(0), amounts) for names, amounts in sorted(sums.items())]


async def _aggregate_records(
    runs: UsageRecordReader,
    aggregator: UsageAggregator,
    begin: Millis,
    end: Millis,
    tenants: frozenset[str],
) -> None:
    """Add every usage record once. A record that ends during the read counts as ended."""
    going = {run.id: run for run in await runs.read_open_usage()}
    steps = 0

    async def add(run: UsageRecord) -> None:
        nonlocal steps
        if tenants and run.tenant not in tenants:
            return
        steps += aggregator.add(run)
        if steps >= STEPS_PER_SLICE:  # let the event loop answer other requests
            steps = 0
            await asyncio.sleep(0)

    try:
        async for run in runs.read_ended_usage(begin):
            going.pop(run.id, None)
            if run.begin < end:
                await add(run)
        for run in going.values():
            await add(run)
    except InvalidInput as error:
        raise Refused(422, str(error)) from error


def _read_groups(by: str) -> tuple[GroupBy, ...]:
    try:
        return tuple(dict.fromkeys(GroupBy(name.strip()) for name in by.split(",")))
    except ValueError as error:
        known = ", ".join(each.value for each in GroupBy)
        raise Refused(400, f"by: {by[:60]!r} names something else than {known}.") from error


def _usage_row(by: Sequence[GroupBy], row: UsageSum, *, stepped: bool) -> UsageRow:
    names = {each.value: name for each, name in zip(by, row.names, strict=True)}
    at = {"at": to_datetime(row.at)} if stepped else {}
    return UsageRow(**names, **at, resource_seconds=_texts(row))  # type: ignore[arg-type]


def _texts(row: UsageSum) -> dict[str, str]:
    return {str(r): format_resource_seconds(r, spent) for r, spent in sorted(row.spent.items())}


def _as_csv(
    by: Sequence[GroupBy],
    rows: Sequence[UsageSum],
    begin: Millis | None,
    end: Millis,
    managed: ManagedResources,
    *,
    stepped: bool,
) -> Response:
    """Return sums as CSV. The heading has the managed resources if there are no rows."""
    resources = sorted({resource for row in rows for resource in row.spent} or managed.names)
    heading = [each.value for each in by] + ["at"] * stepped + [str(each) for each in resources]

    def lines() -> Iterator[str]:
        yield _line(heading)
        for row in rows:
            at = [format_time(row.at)] if stepped else []
            spent = [format_resource_seconds(each, row.spent.get(each, 0)) for each in resources]
            yield _line([*map(csv_cell, row.names), *at, *spent])

    first = "total" if begin is None else format_time(begin)
    name = f"usage-{first}-{format_time(end)}.csv".replace(":", "")
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Vary": "Accept"}
    return StreamingResponse(lines(), media_type=f"{CSV}; charset=utf-8", headers=headers)


def _line(cells: Sequence[str]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(cells)
    return text.getvalue()
