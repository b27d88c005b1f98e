"""The REST API as the API server's aggregation layer sees it, under /apis/api.fairgate.io/v1.

The same routes as at the other door; only who asks is found out in another way.
"""

from __future__ import annotations

from typing import Any

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from app.web import problems
from app.web.access import CALLER
from app.web.front import FrontDoor

GROUP = "api.fairgate.io"
VERSION = {"groupVersion": f"{GROUP}/v1", "version": "v1"}
ROOT = f"/apis/{GROUP}/v1"

_GROUP: dict[str, Any] = {"name": GROUP, "versions": [VERSION], "preferredVersion": VERSION}
DISCOVERY: dict[str, dict[str, Any]] = {
    "/apis": {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_GROUP]},
    f"/apis/{GROUP}": {"kind": "APIGroup", "apiVersion": "v1", **_GROUP},
    # None of it is an object: nothing to list, collect or delete for the controllers, and no
    # second meaning of `kubectl get tenants`.
    ROOT: {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": VERSION["groupVersion"],
        "resources": [],
    },
    # The API server asks for these again and again until it gets them. The routes are described at
    # /openapi.json of the other door, which people reach.
    "/openapi/v2": {"swagger": "2.0", "info": {"title": "Fairgate", "version": "v1"}, "paths": {}},
    "/openapi/v3": {"paths": {}},
}


class Aggregated:
    """An app behind the front proxy's door."""

    def __init__(self, app: ASGIApp, door: FrontDoor) -> None:
        self._app = app
        self._door = door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        try:
            caller = self._door.caller(scope)
        except problems.Refused as refused:
            await problems.answer(refused.status, refused.detail)(scope, receive, send)
            return
        path = str(scope["path"])
        if path in DISCOVERY and scope["method"] in ("GET", "HEAD"):
            await JSONResponse(DISCOVERY[path])(scope, receive, send)
        elif path.startswith(ROOT + "/"):
            inner = path.removeprefix(f"/apis/{GROUP}")
            state = {**scope.get("state", {}), CALLER: caller}
            await self._app({**scope, "path": inner, "state": state}, receive, send)
        else:
            told = f"Nothing is served here but {ROOT}."
            await problems.answer(404, told)(scope, receive, send)
