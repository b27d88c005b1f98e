"""Route /trials: whether and when pods would start that do not exist yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Depends

from app.core.model import Pod, Resource, TenantName, UserName
from app.core.placement.pools import add_to
from app.core.policy import Mode
from app.core.quantities import PODS
from app.ports.auth import Identity
from app.ports.forecasts import Proposal, Trial
from app.web.api import examples
from app.web.api.formatting import quantities
from app.web.api.queues import estimate_fields
from app.web.api.refused import Refused
from app.web.api.route_context import RouteContext
from app.web.api.schemas import AheadModel, EstimateShown, TrialModel, TrialRequest
from app.web.api.simulations import UNAVAILABLE, UNPROCESSABLE, simulation_errors

MOST_PODS = 1000
"""Most pods in one trial."""

FREE = "Fairgate does not hold these pods: they request no managed resource."
OBSERVED = "Fairgate only observes this cluster, so pods do not wait for it."
FITS = "All pods fit now and are next in fair order."
GUESS = "Too few estimates of similar waits could be checked yet, so an estimate would be a guess."
NO_START = "In the simulation they do not all start within four days."


def add_trial_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the route under /trials."""
    access = context.access
    caller = Depends(access.authenticate_request)

    @routes.post(
        "/trials",
        summary="Whether and when pods would start that do not exist yet",
        responses=examples.TRIAL,
    )
    async def attempt(asked: TrialRequest, identity: Identity = caller) -> TrialModel:
        await access.require_create(identity, asked.kind, asked.namespace)
        context.require_synced_state()
        user = UserName(identity.name)
        with simulation_errors():
            pods = _read(asked, user, context)
            if not pods or context.queries.mode() is Mode.OBSERVE:
                return _unheld_answer(asked, user, pods, context)
            if context.trials is None:
                raise Refused(UNAVAILABLE, "This replica runs no simulations.")
            return _trial_answer(pods, await context.trials.simulate_pods(user, pods), context)


def _read(asked: TrialRequest, user: UserName, context: RouteContext) -> tuple[Pod, ...]:
    """Return the pods that Fairgate would hold."""
    if context.proposals is None:
        raise Refused(UNAVAILABLE, "This replica runs no simulations.")
    if sum(each.count for each in asked.pods) > MOST_PODS:
        raise Refused(UNPROCESSABLE, f"pods: a trial has {MOST_PODS} pods at most.")
    parts = [(each.count, each.pod, each.claims) for each in asked.pods]
    proposal = Proposal(asked.namespace, asked.kind, asked.name, parts, asked.in_order)
    return context.proposals.read(proposal, user, context.now())


def _unheld_answer(
    asked: TrialRequest, user: UserName, pods: Sequence[Pod], context: RouteContext
) -> TrialModel:
    """Return the answer for pods that do not wait."""
    count = sum(each.count for each in asked.pods)
    return TrialModel(
        **_common_fields(asked.namespace, user, pods, context),
        state="unmanaged",
        pods=count,
        starts_now=count,
        reason=OBSERVED if pods else FREE,
        **_no_wait(),
    )


def _trial_answer(pods: Sequence[Pod], trial: Trial, context: RouteContext) -> TrialModel:
    """Return the answer for simulated pods."""
    about = _common_fields(pods[0].namespace, pods[0].user, pods, context)
    now = len(trial.released)
    pools = sorted(set(trial.released.values()))
    held, why = trial.held, trial.why
    if held is None or why is None:
        rest = {**_no_wait(), "pools": pools, "simulated_seconds": 0.0, "assumed": trial.assumed}
        return TrialModel(
            **about, state="fits", pods=len(pods), starts_now=now, reason=FITS, **rest
        )
    estimate = _estimate(trial, context)
    return TrialModel(
        **about,
        state="waits",
        pods=len(pods),
        starts_now=now,
        pools=list(dict.fromkeys([*pools, *held.pools])),
        position=why.position,
        length=why.length,
        rule=why.rule.value,
        reason=why.text,
        numbers=dict(why.numbers),
        ahead=[
            AheadModel(
                tenant=a.tenant, score=a.score, own=a.own, own_score=a.own_score, reason=a.reason
            )
            for a in why.ahead
        ],
        remedies=list(why.remedies),
        simulated_seconds=trial.wait,
        assumed=trial.assumed,
        estimate=estimate,
        estimate_withheld=_withheld_reason(trial) if estimate is None else None,
    )


def _common_fields(
    namespace: str, user: UserName, pods: Sequence[Pod], context: RouteContext
) -> dict[str, Any]:
    """Return the fields that do not depend on the simulation."""
    total: dict[Resource, int] = {}
    for pod in pods:
        add_to(total, pod.demand, 1)
    gangs = {pod.gang for pod in pods}
    tenant: TenantName = context.view.tenancy.tenant_of(namespace)
    return {
        "namespace": namespace,
        "tenant": tenant,
        "user": user,
        "gang": gangs.pop() or None if len(gangs) == 1 else None,
        "request": quantities({r: v for r, v in total.items() if r != PODS}),
    }


def _no_wait() -> dict[str, Any]:
    return {
        "pools": [],
        "position": 0,
        "length": 0,
        "rule": None,
        "numbers": {},
        "ahead": [],
        "remedies": [],
        "simulated_seconds": None,
        "assumed": "",
        "estimate": None,
        "estimate_withheld": None,
    }


def _estimate(trial: Trial, context: RouteContext) -> EstimateShown | None:
    if trial.wait is None:
        return None
    found = estimate_fields(context.forecasts.estimate_from_wait(trial.wait, trial.at))
    return None if found is None else EstimateShown(**found)


def _withheld_reason(trial: Trial) -> str:
    if trial.failure is not None:
        return trial.failure
    return NO_START if trial.wait is None else GUESS
