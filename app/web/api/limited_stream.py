"""An answer that is sent in parts, and holds a turn meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack

from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from app.web.api import problems
from app.web.api.refused import Refused


class LimitedStream(StreamingResponse):
    """A stream that is sent during a turn. The server drops a client that does not read."""

    def __init__(
        self,
        content: AsyncIterator[str | bytes],
        turn: AbstractAsyncContextManager[None],
        media_type: str,
    ) -> None:
        """`turn`: entered before the first byte. If it raises Refused, that is the answer."""
        # The headers ask proxies not to cache or buffer.
        headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
        super().__init__(content, headers=headers, media_type=media_type)
        self._turn = turn

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with AsyncExitStack() as stack:
            try:
                await stack.enter_async_context(self._turn)
            except Refused as error:
                answer = problems.problem_response(error.status, error.detail, error.headers)
                await answer(scope, receive, send)
                return
            await super().__call__(scope, receive, send)
