"""Route /simulations: the effect of other weights, limited to tenants visible to the caller."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction

from fastapi import APIRouter, Depends

from app.core.errors import ForecastBusy, ForecastFailed, InvalidInput
from app.core.model import TenantName, UserName
from app.ports.auth import Identity
from app.ports.forecasts import Comparison, TenantForecast, WeightChanges
from app.web.api.formatting import decimal
from app.web.api.refused import Refused
from app.web.api.route_context import RouteContext
from app.web.api.schemas import (
    Simulation,
    TenantForecastModel,
    TenantForeseen,
    WhatIf,
)

TOO_MANY_REQUESTS, UNPROCESSABLE, UNAVAILABLE = 429, 422, 503


def add_simulation_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the route under /simulations."""
    access = context.access
    caller = Depends(access.authenticate_request)

    @routes.post("/simulations", summary="Effect of other weights")
    async def simulate(asked: WhatIf, identity: Identity = caller) -> Simulation:
        await access.require(identity, "create", "simulations")
        context.require_synced_state()
        found = await _compare(context, _changes(asked), asked.hours)
        named = [*asked.weights, *asked.users]
        forecasts = found.tenants
        order = sorted(forecasts, key=lambda n: (n not in named, -forecasts[n][0].pending, n))
        seen = await access.readable_tenants(identity, order)
        return Simulation(
            pods=found.pods,
            hours=asked.hours,
            seconds=round(found.seconds, 3),
            assumed=found.assumed,
            tenants=[_tenant(name, *found.tenants[name]) for name in sorted(seen)],
        )


@contextmanager
def simulation_errors() -> Iterator[None]:
    """Turn the errors of a simulation into answers."""
    try:
        yield
    except InvalidInput as error:
        raise Refused(UNPROCESSABLE, str(error)) from error
    except ForecastBusy as error:
        after = {"Retry-After": str(math.ceil(error.retry_after))}
        raise Refused(TOO_MANY_REQUESTS, str(error), after) from error
    except ForecastFailed as error:
        raise Refused(UNAVAILABLE, str(error)) from error


async def _compare(context: RouteContext, changes: WeightChanges, hours: float) -> Comparison:
    if context.simulations is None:
        raise Refused(UNAVAILABLE, "This replica runs no simulations.")
    with simulation_errors():
        return await context.simulations.compare(changes, hours)


def _changes(asked: WhatIf) -> WeightChanges:
    return WeightChanges(
        {TenantName(name): Fraction(weight) for name, weight in asked.weights.items()},
        {
            TenantName(name): {UserName(user): Fraction(w) for user, w in users.items()}
            for name, users in asked.users.items()
        },
    )


def _tenant(name: TenantName, now: TenantForecast, then: TenantForecast) -> TenantForeseen:
    return TenantForeseen(
        tenant=name,
        weight_now=decimal(now.weight),
        weight_then=decimal(then.weight),
        now=_forecast_model(now),
        then=_forecast_model(then),
    )


def _forecast_model(fared: TenantForecast) -> TenantForecastModel:
    return TenantForecastModel(
        share=f"{fared.share:.6f}",
        pending=fared.pending,
        started=fared.started,
        wait_mean_seconds=round(fared.mean_wait, 1),
        wait_p90_seconds=round(fared.p90_wait, 1),
    )
