"""Routes under /workloads: why a pod waits or where it was released to, and its events."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Response

from app.core.admission.submitters import limit_name
from app.core.errors import ClusterError
from app.core.explain.messages import AWAITS_NODES, LACKS_CLAIM
from app.core.explain.views import ReleasedView
from app.core.model import Uid
from app.ports.api import PodEvent
from app.ports.auth import Identity
from app.web.api import examples
from app.web.api.formatting import as_json, quantities, to_datetime
from app.web.api.queues import held_workload
from app.web.api.refused import Refused
from app.web.api.route_context import NamespacePath, PodPath, RouteContext
from app.web.api.schemas import EventShown, EventsModel, WorkloadModel
from app.web.api.turns import RETRY_HEADERS, Turns

READ_SECONDS = 10.0
"""Longest wait for a turn and the events together."""

log = logging.getLogger("fairgate.api")


def add_workload_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the routes under /workloads."""
    access = context.access
    caller = Depends(access.authenticate_request)
    # Users can make events so large that a few reads at once keep the API server busy.
    turns = Turns("Your last reads of events go on; wait for them.")

    @routes.get(
        "/workloads/{namespace}/{pod}",
        summary="Why a pod waits: its place, the reason, and remedies",
        response_model=WorkloadModel,
        responses=examples.WORKLOAD,
    )
    async def workload(
        namespace: NamespacePath, pod: PodPath, identity: Identity = caller
    ) -> Response:
        context.require_synced_state()  # the right depends on the pod
        uid = context.queries.find_pod(namespace, pod)
        if not await _may_see(identity, namespace, uid, context):
            await access.require_pod(identity, namespace, pod)
        found = _workload(uid, context) if uid is not None else None
        if found is None:
            raise Refused(
                404,
                f"No pod {pod} of namespace {namespace} waits or runs under Fairgate: it has "
                "finished, requests no managed resource, or does not exist; check its name and the "
                "namespace (kubectl fairgate why POD -n NAMESPACE).",
            )
        return as_json(found)

    @routes.get(
        "/workloads/{namespace}/{pod}/events",
        summary="What happened to a pod: its Kubernetes events",
        responses=examples.EVENTS,
    )
    async def events(
        namespace: NamespacePath,
        pod: PodPath,
        limit: Annotated[int, Query(ge=1, le=200, description="Most events.")] = 50,
        identity: Identity = caller,
    ) -> EventsModel:
        """The newest of the first 200 events by name, or of the first 2 MB.

        The API server keeps events for an hour, unless it is configured otherwise.
        """
        await access.require_events(identity, namespace)
        try:
            async with asyncio.timeout(READ_SECONDS), turns.take(limit_name(identity.name)):
                found = await context.events.read_pod_events(namespace, pod, limit)
        except (ClusterError, TimeoutError) as error:
            log.info("events not read", extra={"namespace": namespace, "why": str(error)})
            raise Refused(
                503, "The events cannot be read now; try again.", RETRY_HEADERS
            ) from error
        return EventsModel(items=[_shown(each) for each in found.items], more=found.is_cut)


def _shown(event: PodEvent) -> EventShown:
    return EventShown(
        at=to_datetime(event.at),
        reason=event.reason,
        message=event.message,
        source=event.source,
        warning=event.warning,
        count=event.count,
    )


async def _may_see(
    identity: Identity, namespace: str, uid: Uid | None, context: RouteContext
) -> bool:
    """Return whether a caller submitted a pod, or may read the queue of its tenant."""
    view = context.queries.account_of(uid) if uid is not None else None
    tenant, user = view or (context.view.tenancy.tenant_of(namespace), None)
    if user == identity.name:
        return True
    # Also for an unknown pod, so that the time of an answer does not show whether a pod exists.
    allowed = await context.access.is_allowed(identity, "get", "tenants", "queue", tenant)
    return allowed and view is not None


def _workload(uid: Uid, context: RouteContext) -> dict[str, Any] | None:
    """Return a pod in the form of `WorkloadModel`; None if it is neither held nor released."""
    held, why = context.queries.held_view(uid), context.queries.explain_wait(uid)
    if held is None or why is None:
        released = context.queries.released_view(uid)
        return released_workload(released) if released is not None else None
    return {
        **held_workload(held, context),
        "tenant": held.tenant,
        "state": "held",
        "numbers": why.numbers,
        "ahead": [
            {
                "tenant": a.tenant,
                "score": a.score,
                "own": a.own,
                "ownScore": a.own_score,
                "reason": a.reason,
            }
            for a in why.ahead
        ],
        "remedies": why.remedies,
    }


def released_workload(view: ReleasedView) -> dict[str, Any]:
    """Return a released pod in the form of `WorkloadModel`."""
    where = f" to pool {view.pool}" if view.pool else ""
    where += f", on node {view.node}" if view.node else ""
    when = f" since {to_datetime(view.released_at):%Y-%m-%dT%H:%M:%SZ}" if view.released_at else ""
    reason = f"released{where}{when}" + (f"; it {AWAITS_NODES}" if view.awaits_node else "")
    if view.missing_claims:
        reason += f"; {LACKS_CLAIM.format(', '.join(view.missing_claims))}"
    reason += view.scheduler_message + view.elastic_gang_clause
    if view.is_adopted:
        reason = f"not by its turn: it was there before Fairgate, or was released by hand{when}"
    return {
        "namespace": view.ref.namespace,
        "name": view.ref.name,
        "uid": view.ref.uid,
        "gang": view.gang or None,
        "pods": 1,
        "user": view.user,
        "priority": view.priority,
        "since": to_datetime(view.since),
        "request": quantities(view.request),
        "pools": [view.pool] if view.pool else [],
        "position": 0,
        "length": 0,
        "rule": "released",
        "reason": reason,
        "estimate": None,
        "tenant": view.tenant,
        "state": "released",
        "numbers": {},
        "ahead": [],
        "remedies": [],
        "estimateWithheld": None,
    }
