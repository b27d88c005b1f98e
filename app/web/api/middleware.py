"""ASGI middleware of the REST API: the headers of every answer, and limits on requests."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.api.auth import BODY_BYTES
from app.web.api.problems import problem_response
from app.web.api.refused import Refused
from app.web.server.request_body import BodyTooLarge, BodyTooSlow, Disconnected, read_body

HEADER = "Fairgate-Age"


class AgeHeader:
    """Adds `Fairgate-Age`, in seconds, to every successful answer to a GET below a path.

    While no pod can be released, it also adds the reason as a `Warning`, which kubectl prints.
    """

    def __init__(
        self, app: ASGIApp, age: Callable[[], int], pause: Callable[[], str], path_prefix: str
    ) -> None:
        """`age` returns milliseconds, `pause` why no pod can be released, or ""."""
        self._app = app
        self._age = age
        self._pause = pause
        self._path_prefix = path_prefix

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not reads or not scope["path"].startswith(self._path_prefix):
            await self._app(scope, receive, send)
            return

        async def aged(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300:
                headers = MutableHeaders(scope=message)
                headers[HEADER] = f"{self._age() / 1000:.3f}"
                if pause := self._pause():
                    headers["Warning"] = f'299 - "{pause}"'
            await send(message)

        await self._app(scope, receive, aged)


MOST_BYTES = 1024 * 1024
"""The API server does not store much larger objects."""

BODILESS_METHODS = ("GET", "HEAD", "OPTIONS")
JSON = "application/json"


class BodyLimit:
    """Reads the body of a request before the app does."""

    def __init__(self, app: ASGIApp, max_bytes: int = MOST_BYTES) -> None:
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in BODILESS_METHODS:
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read_body(receive)
            scope = _as_json(scope) if body else scope
            scope = {**scope, "state": {**scope.get("state", {}), BODY_BYTES: len(body)}}
        except Refused as refused:
            await problem_response(refused.status, refused.detail)(scope, receive, send)
        except Disconnected:
            return
        else:
            await self._app(scope, _replay_body(body, receive), send)

    async def _read_body(self, receive: Receive) -> bytes:
        try:
            return bytes(await read_body(receive, self._max_bytes))
        except BodyTooLarge as error:
            told = f"The body is larger than {self._max_bytes} bytes; send less."
            raise Refused(413, told) from error
        except BodyTooSlow as error:
            raise Refused(408, "The body did not arrive in time; send it again.") from error


def _as_json(scope: Scope) -> Scope:
    """Return the scope with a JSON content type. Raises Refused (415) for another type."""
    kind = Headers(scope=scope).get("content-type", "")
    if not kind:  # `kubectl replace --raw` sends no type
        return {**scope, "headers": [*scope["headers"], (b"content-type", JSON.encode())]}
    if kind.partition(";")[0].strip().lower() != JSON:
        raise Refused(415, f"The body is {kind[:80]}; send JSON, with Content-Type: {JSON}.")
    return scope


def _replay_body(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns the body, and then the messages of the original."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
