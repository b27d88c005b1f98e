"""Route /releases: how many pods were released, and how long they had waited."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from app.core.model import Millis, PoolName, TenantName
from app.core.usage.release_sums import ReleasedPod, sum_releases
from app.ports.auth import Identity
from app.web.api.formatting import moment, quantities
from app.web.api.problems import Refused
from app.web.api.release_reader import WEEK, ReleaseReader
from app.web.api.route_context import RouteContext
from app.web.api.schemas import Quantities, ResponseModel
from app.web.api.time_query import Since, TenantNames, Until, read_span, read_step

MOST_STEPS = 500


class ReleasesShown(ResponseModel):
    """Released pods, their requests, and the wait of half and of nine in ten of them in seconds.

    The waits are null if no wait is known.
    """

    pods: int
    request: Quantities
    wait_p50: int | None
    wait_p90: int | None


class TenantReleases(ReleasesShown):
    """Releases of one tenant, without its child tenants."""

    tenant: str


class PoolReleases(ReleasesShown):
    """Releases to one pool. `pool` is "" if an audit entry has no pool."""

    pool: str


class StepReleases(ReleasesShown):
    """Releases of a step that begins `at`."""

    at: datetime


class ReleasesModel(ResponseModel):
    """Releases between two times: in all, by tenant, by pool, and by step if wanted.

    Figures before `completeSince` are incomplete; null: there are no audit entries yet. A step, a
    tenant or a pool without releases is absent.
    """

    since: datetime = Field(alias="from")
    until: datetime = Field(alias="to")
    complete_since: datetime | None
    total: ReleasesShown
    tenants: list[TenantReleases]
    pools: list[PoolReleases]
    steps: list[StepReleases]


def release_routes(context: RouteContext) -> APIRouter:
    """Return the route /releases."""
    routes = APIRouter()
    access, caller = context.access, Depends(context.access.caller)
    reader = ReleaseReader(context.chain, context.managed, context.now)

    @routes.get("/releases", summary="Releases and waits of the last week")
    async def releases(
        since: Since = None,
        until: Until = None,
        tenant: TenantNames = None,
        pool: Annotated[
            list[str] | None, Query(description="Only releases to these pools.")
        ] = None,
        step: Annotated[
            str | None, Query(description="Also a row for each such time: 5m, or seconds.")
        ] = None,
        identity: Identity = caller,
    ) -> ReleasesModel:
        """The source is the audit chain. Releases by hand and adopted pods are not counted."""
        for name in tenant or [""]:
            await access.need(identity, "get", "tenants", "usage", name)
        begin, end, _ = read_span(since, until, None, context.now())
        width = read_step(step, begin, end)
        if width is not None and (end - begin) / width > MOST_STEPS:
            raise Refused(400, f"step: at most {MOST_STEPS} steps in all; use a longer step.")
        await reader.read_new()
        tenants, pools = frozenset(tenant or ()), frozenset(pool or ())
        found = [
            each
            for each in reader.between(begin, end)
            if (not tenants or each.tenant in tenants) and (not pools or each.pool in pools)
        ]
        return _answer(found, begin, end, width, _complete(reader, context.now()))

    return routes


def _complete(reader: ReleaseReader, now: Millis) -> Millis | None:
    return None if reader.since is None else max(reader.since, Millis(now - WEEK))


def _answer(
    found: list[ReleasedPod], begin: Millis, end: Millis, width: Millis | None, since: Millis | None
) -> ReleasesModel:
    tenants: dict[TenantName, list[ReleasedPod]] = {}
    pools: dict[PoolName, list[ReleasedPod]] = {}
    steps: dict[int, list[ReleasedPod]] = {}
    for each in found:
        tenants.setdefault(each.tenant, []).append(each)
        pools.setdefault(each.pool, []).append(each)
        if width is not None:
            steps.setdefault((each.at - begin) // width, []).append(each)
    period: dict[str, Any] = {"from": moment(begin), "to": moment(end)}
    return ReleasesModel(
        **period,
        complete_since=None if since is None else moment(since),
        total=ReleasesShown(**_shown(found)),
        tenants=[TenantReleases(tenant=name, **_shown(tenants[name])) for name in sorted(tenants)],
        pools=[PoolReleases(pool=name, **_shown(pools[name])) for name in sorted(pools)],
        steps=[
            StepReleases(at=moment(Millis(begin + place * (width or 0))), **_shown(steps[place]))
            for place in sorted(steps)
        ],
    )


def _shown(releases: Iterable[ReleasedPod]) -> dict[str, Any]:
    found = sum_releases(releases)
    return {
        "pods": found.pods,
        "request": quantities(found.request),
        "wait_p50": found.wait(0.5),
        "wait_p90": found.wait(0.9),
    }
