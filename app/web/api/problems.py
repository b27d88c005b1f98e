"""Error answers of the REST API: RFC 9457 problem details."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from app.core.errors import (
    ClusterError,
    StoreEmptied,
    StoreError,
    StoreForeign,
    WriteRefused,
)
from app.web.api.openapi_models import reference
from app.web.api.refused import Refused

log = logging.getLogger("fairgate.web")

MEDIA_TYPE = "application/problem+json"
NO_CLUSTER = "The API server could not authenticate you; try again in a moment."
NO_COPY = "Redis has no complete copy of the queues; the leader writes it again. Try again soon."
OTHER_LAYOUT = (
    "Another version of Fairgate wrote the queues in Redis, so this one cannot read them; "
    "an administrator must finish the upgrade."
)
NO_STORE = "Redis does not answer, so this cannot be read; try again in a moment."
EXTRA = "extra_forbidden"
TOO_LONG = "too_long"
NOT_JSON = "The body is not valid JSON; correct it"

_CHOICE = re.compile(r"\^\((\w+(?:\|\w+)+)\)\$")
"""A regular expression that matches one of several words."""

_RULES = {
    "datetime": "must be a time such as 2026-01-31T12:00:00Z",
    "dict": "must be a JSON object",
    "model": "must be a JSON object",
}
"""The rule of each kind of value, by the first word of the type of the error."""
DEFECT = "Fairgate failed at this request through a defect of its own; its log says more."


TYPES = "tag:fairgate.io,2026:problems/"
"""The start of all type URIs: tag URIs (RFC 4151), because they name and need no web site."""


class ProblemCode(StrEnum):
    """The kinds of problems, in the words of Kubernetes' `StatusReason` where it has one."""

    BAD_REQUEST = "BadRequest"
    UNAUTHORIZED = "Unauthorized"
    FORBIDDEN = "Forbidden"
    NOT_FOUND = "NotFound"
    METHOD_NOT_ALLOWED = "MethodNotAllowed"
    TIMEOUT = "Timeout"
    CONFLICT = "Conflict"
    PRECONDITION_FAILED = "PreconditionFailed"
    REQUEST_ENTITY_TOO_LARGE = "RequestEntityTooLarge"
    UNSUPPORTED_MEDIA_TYPE = "UnsupportedMediaType"
    INVALID = "Invalid"
    TOO_MANY_REQUESTS = "TooManyRequests"
    INTERNAL_ERROR = "InternalError"
    SERVICE_UNAVAILABLE = "ServiceUnavailable"
    UNKNOWN = "Unknown"


CODES = {
    400: ProblemCode.BAD_REQUEST,
    401: ProblemCode.UNAUTHORIZED,
    403: ProblemCode.FORBIDDEN,
    404: ProblemCode.NOT_FOUND,
    405: ProblemCode.METHOD_NOT_ALLOWED,
    408: ProblemCode.TIMEOUT,
    409: ProblemCode.CONFLICT,
    412: ProblemCode.PRECONDITION_FAILED,
    413: ProblemCode.REQUEST_ENTITY_TOO_LARGE,
    415: ProblemCode.UNSUPPORTED_MEDIA_TYPE,
    422: ProblemCode.INVALID,
    429: ProblemCode.TOO_MANY_REQUESTS,
    500: ProblemCode.INTERNAL_ERROR,
    503: ProblemCode.SERVICE_UNAVAILABLE,
}


class Problem(BaseModel):
    """An RFC 9457 problem. `type` is `TYPES` and the code."""

    type: str
    code: ProblemCode
    title: str
    status: int
    detail: str


def problem(status: int, detail: str) -> Problem:
    """Return a problem, of code `Unknown` for a status that the API does not use."""
    code = CODES.get(status, ProblemCode.UNKNOWN)
    title = HTTPStatus(status).phrase
    return Problem(type=f"{TYPES}{code}", code=code, title=title, status=status, detail=detail)


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI documentation of error answers with these statuses."""
    content = {MEDIA_TYPE: {"schema": reference(Problem)}}
    return {each: {"description": HTTPStatus(each).phrase, "content": content} for each in statuses}


def problem_response(
    status: int, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    """Return a problem as an HTTP answer."""
    more = {"WWW-Authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
    body = problem(status, detail).model_dump(mode="json")
    return JSONResponse(body, status, {**more, **(headers or {})}, media_type=MEDIA_TYPE)


def install_error_handlers(
    app: FastAPI,
    methods: Callable[[str], Iterable[str]],
    patterns: Mapping[str, str] | None = None,
) -> None:
    """Turn every error of a route of `app` into a problem.

    `methods` returns the methods of a path. `patterns`: messages for regular expressions.
    """

    @app.exception_handler(Refused)
    async def refused(_: Request, error: Refused) -> JSONResponse:
        return problem_response(error.status, error.detail, error.headers)

    @app.exception_handler(HTTPException)
    async def unrouted(request: Request, error: HTTPException) -> JSONResponse:
        told = f"{error.detail}; the routes are listed at /openapi.json."
        if error.status_code == HTTPStatus.BAD_REQUEST:  # only FastAPI raises it
            told = f"{NOT_JSON}."
        headers = error.headers
        if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
            headers = {"Allow": ", ".join(methods(request.url.path))}
        return problem_response(error.status_code, told, headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> JSONResponse:
        errors = error.errors()
        # A misspelt field gives two errors: it is unknown, and the correct one is missing.
        first = next((each for each in errors if each["type"] == EXTRA), errors[0])
        if first["type"] == "json_invalid":
            return problem_response(400, f"{NOT_JSON} (character {first['loc'][-1]}).")
        where = ".".join(str(part) for part in first["loc"][1:])
        # 422 for valid JSON with wrong contents (RFC 9110, section 15.5.21), otherwise 400.
        return problem_response(
            422 if first["loc"][0] == "body" else 400,
            f"{where or 'The body'}: {_field_message(first, patterns)}.",
        )

    @app.exception_handler(WriteRefused)
    async def judged(_: Request, error: WriteRefused) -> JSONResponse:
        return problem_response(422 if error.status == 400 else error.status, str(error))

    @app.exception_handler(ClusterError)
    async def no_cluster(_: Request, error: ClusterError) -> JSONResponse:
        log.warning("could not ask the API server", extra={"why": str(error)})
        return problem_response(503, NO_CLUSTER)

    @app.exception_handler(StoreError)
    async def no_store(_: Request, error: StoreError) -> JSONResponse:
        log.warning("could not read the store", extra={"why": str(error)})
        detail, seconds = _store_message(error)
        return problem_response(503, detail, {"Retry-After": str(seconds)})

    @app.exception_handler(Exception)
    async def defect(request: Request, error: Exception) -> JSONResponse:
        log.error("a request failed", exc_info=error, extra={"path": request.url.path})
        return problem_response(500, DEFECT)


def _store_message(error: StoreError) -> tuple[str, int]:
    """Return the message about an error of Redis, and the seconds until the next try."""
    match error:
        case StoreEmptied():
            return NO_COPY, 2
        case StoreForeign():
            return OTHER_LAYOUT, 30
        case _:
            return NO_STORE, 5


def _field_message(error: Mapping[str, Any], patterns: Mapping[str, str] | None) -> str:
    """Return the message for an error of one field."""
    if error["type"] == EXTRA:
        return "there is no such field; leave it out"
    context = error.get("ctx", {})
    if error["type"] == TOO_LONG:
        return f"at most {context['max_length']} entries are possible; send fewer"
    pattern = str(context.get("pattern", ""))
    if choice := _CHOICE.fullmatch(pattern):
        *others, last = choice[1].split("|")
        return f"must be {', '.join(others)} or {last}"
    rule = (patterns or {}).get(pattern)
    return rule or _RULES.get(error["type"].partition("_")[0]) or str(error["msg"])
