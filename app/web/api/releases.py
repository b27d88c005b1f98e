"""Route /releases: how many pods were released, and how long they had waited."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import Field

from app.core.model import Millis, PoolName, TenantName
from app.core.usage.release_sums import ReleasedPod, ReleaseSum
from app.ports.auth import Identity
from app.web.api.formatting import quantities, to_datetime
from app.web.api.refused import Refused
from app.web.api.release_reader import WEEK, ReleaseReader
from app.web.api.route_context import NameQuery, RouteContext
from app.web.api.schemas import Quantities, ResponseModel
from app.web.api.time_query import Since, TenantNames, Until, read_span, read_step

MOST_STEPS = 500

PORTION = 1000
"""Releases between two pauses of a sum; some milliseconds."""

RELEASES_OF_A_REQUEST = 1000
"""So many releases in an answer count as one more request of the caller."""


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


def add_release_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the route /releases."""
    access, caller = context.access, Depends(context.access.authenticate_request)
    reader = ReleaseReader(context.audit_reader, context.managed, context.now)
    turn = asyncio.Semaphore(1)

    @routes.get("/releases", summary="Releases and waits of the last week")
    async def releases(
        since: Since = None,
        until: Until = None,
        tenant: TenantNames = None,
        pool: Annotated[
            list[NameQuery] | None, Query(description="Only releases to these pools.")
        ] = None,
        step: Annotated[
            str | None, Query(description="Also a row for each such time: 5m, or seconds.")
        ] = None,
        identity: Identity = caller,
    ) -> ReleasesModel:
        """The source is the audit chain. Releases by hand and adopted pods are not counted."""
        for name in tenant or [""]:
            await access.require(identity, "get", "tenants", "usage", name)
        begin, end, _ = read_span(since, until, None, context.now())
        width = read_step(step, begin, end)
        if width is not None and (end - begin) / width > MOST_STEPS:
            raise Refused(400, f"step: at most {MOST_STEPS} steps in all; use a longer step.")
        await reader.read_new_entries()
        tenants, pools = frozenset(tenant or ()), frozenset(pool or ())
        found = [
            each
            for each in reader.releases_between(begin, end)
            if (not tenants or each.tenant in tenants) and (not pools or each.pool in pools)
        ]
        access.count_requests(identity, len(found) // RELEASES_OF_A_REQUEST)
        sums = _Sums(begin, width)
        async with turn:
            for first in range(0, len(found), PORTION):
                for each in found[first : first + PORTION]:
                    sums.add(each)
                await asyncio.sleep(0)  # other requests go on between two portions
        period: dict[str, Any] = {"from": to_datetime(begin), "to": to_datetime(end)}
        complete = _complete(reader, context.now())
        return ReleasesModel(
            **period,
            complete_since=None if complete is None else to_datetime(complete),
            total=ReleasesShown(**_shown(sums.total)),
            tenants=[
                TenantReleases(tenant=name, **_shown(each))
                for name, each in sorted(sums.tenants.items())
            ],
            pools=[
                PoolReleases(pool=name, **_shown(each)) for name, each in sorted(sums.pools.items())
            ],
            steps=sums.step_models(),
        )


def _complete(reader: ReleaseReader, now: Millis) -> Millis | None:
    return None if reader.complete_since is None else max(reader.complete_since, Millis(now - WEEK))


@dataclass(slots=True)
class _Sums:
    """The sums of releases since `begin`: in all, and by tenant, pool and step of `width`."""

    begin: Millis
    width: Millis | None
    total: ReleaseSum = field(default_factory=ReleaseSum)
    tenants: dict[TenantName, ReleaseSum] = field(default_factory=dict)
    pools: dict[PoolName, ReleaseSum] = field(default_factory=dict)
    steps: dict[int, ReleaseSum] = field(default_factory=dict)

    def add(self, release: ReleasedPod) -> None:
        self.total.add(release)
        self.tenants.setdefault(release.tenant, ReleaseSum()).add(release)
        self.pools.setdefault(release.pool, ReleaseSum()).add(release)
        if self.width is not None:
            place = (release.at - self.begin) // self.width
            self.steps.setdefault(place, ReleaseSum()).add(release)

    def step_models(self) -> list[StepReleases]:
        return [
            StepReleases(
                at=to_datetime(Millis(self.begin + place * (self.width or 0))),
                **_shown(self.steps[place]),
            )
            for place in sorted(self.steps)
        ]


def _shown(found: ReleaseSum) -> dict[str, Any]:
    return {
        "pods": found.pods,
        "request": quantities(found.request),
        "wait_p50": found.wait_quantile(0.5),
        "wait_p90": found.wait_quantile(0.9),
    }
