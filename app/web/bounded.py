"""Lets requests to an app have bodies of a bounded size, sent in a bounded time, and only JSON."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.body import BodyTooLarge, BodyTooSlow, Disconnected, read_body
from app.web.problems import Refused, answer

MOST_BYTES = 1024 * 1024
"""The API server stores no object much larger."""

WITHOUT = ("GET", "HEAD", "OPTIONS")
JSON = "application/json"


class Bounded:
    """Reads the body of a request before the app does."""

    def __init__(self, app: ASGIApp, most: int = MOST_BYTES) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["method"] in WITHOUT:
            await self._app(scope, receive, send)
            return
        try:
            body = await self._read(receive)
            scope = _as_json(scope) if body else scope
        except Refused as refused:
            await answer(refused.status, refused.detail)(scope, receive, send)
        except Disconnected:
            return
        else:
            await self._app(scope, _replayed(body, receive), send)

    async def _read(self, receive: Receive) -> bytes:
        try:
            return bytes(await read_body(receive, self._most))
        except BodyTooLarge as error:
            told = f"The body is larger than {self._most} bytes; send less."
            raise Refused(413, told) from error
        except BodyTooSlow as error:
            raise Refused(408, "The body did not arrive in time; send it again.") from error


def _as_json(scope: Scope) -> Scope:
    """Return the scope of a request that says its body is JSON. Raises Refused (415)."""
    kind = Headers(scope=scope).get("content-type", "")
    if not kind:  # `kubectl replace --raw` says nothing
        return {**scope, "headers": [*scope["headers"], (b"content-type", JSON.encode())]}
    if kind.partition(";")[0].strip().lower() != JSON:
        raise Refused(415, f"The body is {kind[:80]}; send JSON, with Content-Type: {JSON}.")
    return scope


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return what gives a body that was read already, and then whatever comes."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again
