"""The dashboard at /: static files, with a content security policy that allows only these files.

The files contain no data. The browser reads /v1 with the token of its user.
"""

from __future__ import annotations

from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

FOLDER = Path(__file__).parent.parent / "static"

HEADERS = {
    "content-security-policy": "; ".join(
        (
            "default-src 'none'",
            "script-src 'self'",
            "style-src 'self'",
            "connect-src 'self'",
            "img-src 'self' data:",
            "base-uri 'none'",
            "frame-ancestors 'none'",
            "form-action 'none'",
        )
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    # Revalidated by ETag on each use, so that the page is never older than the API.
    "cache-control": "no-cache",
}


class Dashboard(StaticFiles):
    """Serves the folder, with `HEADERS` on every file."""

    def __init__(self) -> None:
        super().__init__(directory=FOLDER)

    async def get_response(self, path: str, scope: Scope) -> Response:
        response = await super().get_response(path, scope)
        response.headers.update(HEADERS)
        return response


def page_routes() -> list[BaseRoute]:
    """Return the routes of the page at / and of its files."""
    files = Dashboard()

    async def page(request: Request) -> Response:
        return await files.get_response("index.html", request.scope)

    return [
        Route("/", page),
        Mount("/static", files),
        # The API server passes on only paths below /v1. `kubectl fairgate open` reads these.
        Route("/v1/page", page),
        Mount("/v1/page/static", files),
    ]
