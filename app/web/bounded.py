"""Lets requests to an app have bodies of a bounded size, sent in a bounded time."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.web.body import BodyTooLarge, BodyTooSlow, Disconnected, read_body
from app.web.problems import answer

MOST_BYTES = 1024 * 1024
"""The API server stores no object much larger."""

WITHOUT = ("GET", "HEAD", "OPTIONS")


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
            body = bytes(await read_body(receive, self._most))
        except BodyTooLarge:
            told = f"The body is larger than {self._most} bytes; send less."
            await answer(413, told)(scope, receive, send)
        except BodyTooSlow:
            await answer(408, "The body did not arrive in time; send it again.")(
                scope, receive, send
            )
        except Disconnected:
            return
        else:
            await self._app(scope, _replayed(body, receive), send)


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
