"""Says in a header how old the data of an answer is. ASGI middleware; changes nothing else."""

from __future__ import annotations

from collections.abc import Callable

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADER = "Fairgate-Age"


class Aged:
    """Adds `Fairgate-Age`, in seconds, to every good answer to a GET below a path."""

    def __init__(self, app: ASGIApp, age: Callable[[], int], below: str) -> None:
        """`age` returns milliseconds."""
        self._app = app
        self._age = age
        self._below = below

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reads = scope["type"] == "http" and scope["method"] in ("GET", "HEAD")
        if not reads or not scope["path"].startswith(self._below):
            await self._app(scope, receive, send)
            return

        async def aged(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] < 300:
                MutableHeaders(scope=message)[HEADER] = f"{self._age() / 1000:.3f}"
            await send(message)

        await self._app(scope, receive, aged)
