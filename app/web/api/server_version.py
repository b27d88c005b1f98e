"""Route /version: the version of the replica that answers. It needs no right."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

from fastapi import APIRouter, Depends

from app.ports.auth import Identity
from app.web.api.route_context import RouteContext
from app.web.api.schemas import ServerVersion


def add_version_routes(routes: APIRouter, context: RouteContext) -> None:
    """Add the route /version."""
    caller = Depends(context.access.authenticate_request)
    try:
        own = version("fairgate")
    except PackageNotFoundError:  # run from the source folder
        own = "unknown"

    @routes.get("/version", summary="The version of Fairgate that answers")
    async def server_version(identity: Identity = caller) -> ServerVersion:
        return ServerVersion(version=own)
