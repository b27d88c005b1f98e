"""Documents the headers of answers and the shared models in the OpenAPI document of the REST API.

FastAPI derives bodies from types, but no headers. The rules here repeat where the code sets them:
`AgeHeader` of middleware, the ETag of tenants and pools, and `answer` of problems.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from app.web.api.middleware import HEADER
from app.web.api.openapi_models import add_models
from app.web.api.problems import Problem
from app.web.api.stream import EVENTS

Operation = dict[str, Any]

AGE = {
    HEADER: {
        "description": "Age of the data, in seconds.",
        "required": True,
        "schema": {"type": "number", "minimum": 0},
    }
}
PAUSE = {
    "Warning": {
        "description": "Why no pod can be released now. Absent otherwise.",
        "schema": {"type": "string"},
    }
}
ETAG = {
    "ETag": {
        "description": "Version of the configuration, for If-Match. Absent if nothing is stored.",
        "schema": {"type": "string"},
    }
}
RETRY = {
    "Retry-After": {
        "description": "Seconds to wait before the next try, if they are known.",
        "schema": {"type": "integer", "minimum": 0},
    }
}
LOGIN = {
    "WWW-Authenticate": {
        "description": "The way to authenticate.",
        "required": True,
        "schema": {"type": "string", "enum": ["Bearer"]},
    }
}


class DescribedApp(FastAPI):
    """A FastAPI app with the headers and shared models in its OpenAPI document."""

    _encoded: bytes | None = None

    def setup(self) -> None:
        """Add the route of the document. FastAPI's own would encode it for each request.

        The route needs no token, so no limit of a caller applies.
        """

        async def document(_: Request) -> Response:
            if self._encoded is None:
                self._encoded = bytes(JSONResponse(self.openapi()).body)
            return Response(self._encoded, media_type=JSONResponse.media_type)

        if self.openapi_url is not None:
            self.add_route(self.openapi_url, document, include_in_schema=False)

    def openapi(self) -> dict[str, Any]:
        """Return the document, which is made once."""
        document = self.openapi_schema
        if document is None:
            document = super().openapi()
            add_models(document, (Problem, *EVENTS.values()))
            for path, methods in document["paths"].items():
                if path.startswith("/v1/"):
                    for method, operation in methods.items():
                        _describe(path, method, operation)
        return document


def _describe(path: str, method: str, operation: Operation) -> None:
    """Add the headers to the answers of one operation."""
    for status, answer in operation["responses"].items():
        headers = dict(_headers(path, method, status))
        if headers:
            answer["headers"] = {**answer.get("headers", {}), **headers}


def _headers(path: str, method: str, status: str) -> Iterator[tuple[str, Any]]:
    succeeded = status.startswith("2")
    if succeeded and method == "get":
        yield from (AGE | PAUSE).items()
    one = path in ("/v1/tenants/{tenant}", "/v1/pools/{pool}")
    if succeeded and (method == "put" or (method == "get" and one)):
        yield from ETAG.items()
    if status in ("429", "503"):
        yield from RETRY.items()
    if status == "401":
        yield from LOGIN.items()
