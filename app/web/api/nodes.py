"""Route /nodes/{node}/pods: the released pods of a node that the caller may see."""

from __future__ import annotations

from datetime import datetime

from fastapi import APIRouter, Depends

from app.core.explain.views import ReleasedView
from app.core.model import NodeName
from app.ports.auth import Identity
from app.web.api.formatting import quantities, to_datetime
from app.web.api.route_context import NodePath, RouteContext
from app.web.api.schemas import Quantities, ResponseModel
from app.web.api.visible_state import VisibleStates


class NodePod(ResponseModel):
    """A released pod of a node. `since`: the time of its release; null if unknown."""

    namespace: str
    name: str
    uid: str
    tenant: str
    user: str
    request: Quantities
    since: datetime | None


class NodePods(ResponseModel):
    """The released pods of a node. `hidden`: the number of pods that the caller may not see."""

    node: str
    items: list[NodePod]
    hidden: int


def add_node_routes(routes: APIRouter, context: RouteContext, visible: VisibleStates) -> None:
    """Add the route /nodes/{node}/pods."""
    caller = Depends(context.access.authenticate_request)

    @routes.get("/nodes/{node}/pods", summary="Released pods of a node")
    async def pods(node: NodePath, identity: Identity = caller) -> NodePods:
        """The answer has the caller's own pods, and pods of tenants with a visible queue.

        An unknown node has no pods. `hidden` is 0 if the caller may not list pools.
        """
        context.require_synced_state()
        rights = await visible.rights_of(identity)
        found = context.queries.pods_on(NodeName(node))
        seen = [
            each
            for each in found
            if each.user == identity.name or rights.may_see_queue(each.tenant)
        ]
        hidden = len(found) - len(seen) if rights.pools else 0
        return NodePods(node=node, items=[_shown(each, context) for each in seen], hidden=hidden)


def _shown(pod: ReleasedView, context: RouteContext) -> NodePod:
    managed = {r: v for r, v in pod.request.items() if r in context.managed}
    return NodePod(
        namespace=pod.ref.namespace,
        name=pod.ref.name,
        uid=pod.ref.uid,
        tenant=pod.tenant,
        user=pod.user,
        request=quantities(managed),
        since=None if pod.released_at is None else to_datetime(pod.released_at),
    )
