"""What-if runs: effects of changed weights, visibility and errors."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from fractions import Fraction

import pytest

from app.core import events as ev
from app.core.errors import FairgateError, ForecastBusy, ForecastFailed
from app.core.model import Millis, TenantName, UserName
from app.ports.forecasts import Comparison, TenantForecast, WeightChanges
from app.sim.cluster.virtual_cluster import held_pod
from app.sim.forecast.run_times import ObservedRunTime, RunTimeClass, RunTimes
from app.sim.forecast.what_if import apply_weights, forecast_tenants
from app.sim.forecast.what_if_service import WhatIfs
from app.web.api.auth import Access
from app.web.server.rate_limit import RateLimit
from tests.support.asgi import Reply, call
from tests.support.rest_app import NOW, Both, node, problem, tenant

A, B = TenantName("team-a"), TenantName("team-b")


@pytest.fixture
async def both() -> Both:
    """Two teams of equal weight with forty pods each, on eight devices."""
    both = Both()
    both.rights.granted |= {("create", "simulations"), ("list", "tenants")}
    await both.hear(node("n0", 8), tenant("team-a"), tenant("team-b"))
    for team in ("team-a", "team-b"):
        pods = [held_pod(f"p{n:02}", team, since=NOW - 1000, user="eve") for n in range(40)]
        await both.see(*pods)
    await both.open()
    return both


@pytest.fixture
async def simulations(both: Both) -> AsyncIterator[WhatIfs]:
    """The production implementation with worker processes."""
    made = WhatIfs(lambda: both.engine.queries.snapshot(NOW), RunTimes)
    both.context = replace(both.context, simulations=made)
    yield made
    await made.close()


@dataclass
class Fake:
    """Simulations that fail, or block until the test releases them."""

    error: FairgateError | None = None
    compared: Comparison = field(default_factory=lambda: Comparison(0, 0.1, "nothing", {}))
    asked: list[tuple[WeightChanges, float]] = field(default_factory=list)

    async def compare(self, changes: WeightChanges, hours: float) -> Comparison:
        self.asked.append((changes, hours))
        if self.error is not None:
            raise self.error
        return self.compared


async def post(both: Both, body: object) -> Reply:
    headers = {"authorization": "Bearer alices", "content-type": "application/json"}
    return await call(both.app, "POST", "/v1/simulations", json.dumps(body).encode(), headers)


async def test_a_higher_weight_brings_a_larger_share(both: Both, simulations: WhatIfs) -> None:
    reply = await post(both, {"weights": {"team-a": "3"}, "hours": 2})
    assert reply.status == 200, reply.body
    found = {each["tenant"]: each for each in reply.json["tenants"]}
    assert reply.json["pods"] == 80
    assert "one hour" in reply.json["assumed"]
    a, b = found["team-a"], found["team-b"]
    assert (a["weightNow"], a["weightThen"], b["weightThen"]) == ("1", "3", "1")
    # Eight devices, one hour per pod: 4 and 4 at a time with the present weights, then 6 and 2.
    assert float(a["now"]["share"]) == pytest.approx(0.5, abs=0.01)
    assert float(a["then"]["share"]) == pytest.approx(0.75, abs=0.01)
    assert (a["now"]["started"], a["then"]["started"], b["then"]["started"]) == (12, 18, 6)
    assert a["then"]["waitMeanSeconds"] < a["now"]["waitMeanSeconds"]
    assert b["then"]["waitMeanSeconds"] > b["now"]["waitMeanSeconds"]


async def test_the_live_engine_is_left_as_it_is(both: Both, simulations: WhatIfs) -> None:
    before = both.engine.queries.view()
    await simulations.compare(WeightChanges({A: Fraction(3)}), 1)
    assert both.engine.queries.view() == before


async def test_unknown_tenant_is_named_in_the_error(both: Both, simulations: WhatIfs) -> None:
    reply = await post(both, {"weights": {"team-x": "3"}})
    assert reply.status == 422
    assert "team-x" in problem(reply)
    reply = await post(both, {"users": {"ns.stray": {"eve": "2"}}})
    assert reply.status == 422
    assert "ns.stray" in problem(reply)


@pytest.mark.parametrize(
    "body",
    [{"weights": {"team-a": "-1"}}, {"weights": {"team-a": "much"}}, {"hours": 0}, {"hours": 99}],
)
async def test_invalid_change_is_refused(both: Both, body: object) -> None:
    fake = Fake()
    both.context = replace(both.context, simulations=fake)
    assert (await post(both, body)).status == 422
    assert not fake.asked


async def test_only_tenants_that_the_caller_may_see_are_shown(
    both: Both, simulations: WhatIfs
) -> None:
    both.rights.granted = {("create", "simulations"), ("get", "tenants/team-a")}
    reply = await post(both, {"weights": {"team-a": "3"}})
    assert [each["tenant"] for each in reply.json["tenants"]] == ["team-a"]
    assert b"team-b" not in reply.body


async def test_simulation_reveals_only_the_existence_of_a_hidden_tenant(
    both: Both, simulations: WhatIfs
) -> None:
    both.rights.granted = {("create", "simulations")}
    hidden = await post(both, {"weights": {"team-b": "3"}})
    assert (hidden.status, hidden.json["tenants"]) == (200, [])
    assert b"team-b" not in hidden.body
    unknown = await post(both, {"weights": {"nope": "3"}})
    assert unknown.status == 422
    assert "nope" in problem(unknown)


async def test_the_reviews_of_a_caller_with_few_rights_count_as_requests(both: Both) -> None:
    """A caller without the right on all tenants costs the API server a review for each."""
    forecast = (TenantForecast(Fraction(1), 0.0, 0, 0, 0.0, 0.0),) * 2
    tenants = {TenantName(f"t{number}"): forecast for number in range(80)}
    fake = Fake(compared=Comparison(0, 0.1, "nothing", tenants))
    limit = RateLimit(3, lambda: 0.0)
    both.context = replace(both.context, simulations=fake, access=Access(both.rights, limit))
    both.rights.granted = {("create", "simulations"), ("list", "tenants")}
    assert [(await post(both, {})).status for _ in range(3)] == [200] * 3
    both.rights.granted = {("create", "simulations")}
    assert [(await post(both, {})).status for _ in range(2)] == [200, 429]


async def test_missing_right_to_simulate_is_named_in_the_error(both: Both) -> None:
    both.rights.granted = {("list", "tenants")}
    reply = await post(both, {})
    assert reply.status == 403
    assert "create simulations.fairgate.io" in problem(reply)


async def test_too_many_simulations_are_429_with_retry_after(both: Both) -> None:
    both.context = replace(both.context, simulations=Fake(ForecastBusy("Several wait.", 4.2)))
    reply = await post(both, {})
    assert reply.status == 429
    assert reply.headers["retry-after"] == "5"


async def test_failed_simulation_is_503_with_its_reason(both: Both) -> None:
    both.context = replace(both.context, simulations=Fake(ForecastFailed("It took too long.")))
    reply = await post(both, {})
    assert (reply.status, problem(reply)) == (503, "It took too long.")


async def test_at_most_two_simulations_wait(both: Both) -> None:
    simulations = WhatIfs(lambda: both.engine.queries.snapshot(NOW), RunTimes)
    calls = [asyncio.create_task(simulations.compare(WeightChanges(), 1)) for _ in range(6)]
    outcomes = await asyncio.gather(*calls, return_exceptions=True)
    assert sum(isinstance(each, Comparison) for each in outcomes) == 3
    assert sum(isinstance(each, ForecastBusy) for each in outcomes) == 3
    await simulations.compare(WeightChanges(), 1)
    await simulations.close()


async def test_a_simulation_that_takes_too_long_is_stopped(both: Both) -> None:
    simulations = WhatIfs(lambda: both.engine.queries.snapshot(NOW), RunTimes, seconds=0.001)
    with pytest.raises(ForecastFailed, match="Ask for fewer hours"):
        await simulations.compare(WeightChanges(), 1)
    await simulations.close()


async def test_after_a_worker_was_killed_the_next_simulation_works(
    both: Both, simulations: WhatIfs
) -> None:
    await simulations.compare(WeightChanges(), 1)
    for pid in simulations.pids:
        os.kill(pid, signal.SIGKILL)
    with contextlib.suppress(ForecastFailed):  # fails unless the dead worker was noticed before
        await simulations.compare(WeightChanges(), 1)
    assert (await simulations.compare(WeightChanges(), 1)).pods == 80


async def test_a_users_weight_counts_within_the_tenant(both: Both) -> None:
    await both.see(*[held_pod(f"z{n:02}", "team-a", since=NOW, user="zoe") for n in range(40)])
    snapshot = both.engine.queries.snapshot(NOW)
    then = apply_weights(snapshot, WeightChanges(users={A: {UserName("zoe"): Fraction(9)}}))
    now, after = (
        forecast_tenants(snapshot, RunTimes(), tenants, 1) for tenants in (snapshot.tenants, then)
    )
    assert now[A].share == after[A].share
    assert now[B] == after[B]


async def test_run_times_that_are_known_are_taken(both: Both) -> None:
    runs = RunTimes([ObservedRunTime(RunTimeClass(A, UserName("eve"), 1), Millis(60_000))] * 30)
    snapshot = both.engine.queries.snapshot(NOW)
    fared = forecast_tenants(snapshot, runs, snapshot.tenants, 1)
    assert fared[A].started == fared[B].started == 40


async def test_declared_max_runtime_limits_the_forecast_run_time(both: Both) -> None:
    await both.hear(*(ev.PodGone(NOW, held_pod(f"p{n:02}", "team-b").uid) for n in range(40)))
    pods = [held_pod(f"p{n:02}", "team-a", since=NOW - 1000, user="eve") for n in range(40)]
    await both.see(*(replace(pod, max_runtime=Millis(600_000)) for pod in pods))
    snapshot = both.engine.queries.snapshot(NOW)
    assert forecast_tenants(snapshot, RunTimes(), snapshot.tenants, 1)[A].started == 40
