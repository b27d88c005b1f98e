"""Reads a request body with limits of size and time."""

from __future__ import annotations

import asyncio

from starlette.types import Message, Receive

READ_SECONDS = 10.0
"""Time limit of a whole body. An API server sends a review at once, and waits at most this long."""

DISCARDED = 4
"""Bytes to discard of a too large body, as a multiple of the limit.

Some clients read the answer only after they have sent the whole body.
"""

BEGINNING = 4096


class BodyTooLarge(Exception):
    """The body is larger than allowed; `beginning` is its first part."""

    def __init__(self, beginning: bytes) -> None:
        super().__init__("body too large")
        self.beginning = beginning


class BodyTooSlow(Exception):
    """The body did not arrive in time."""


class Disconnected(Exception):
    """The client has disconnected."""


async def read_body(
    receive: Receive, limit: int, seconds: float = READ_SECONDS
) -> bytes | bytearray:
    """Return the whole body, of at most `limit` bytes, sent within `seconds`.

    Raises BodyTooLarge, BodyTooSlow, Disconnected.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _read(receive, limit)
    except TimeoutError as error:
        raise BodyTooSlow from error


async def _read(receive: Receive, limit: int) -> bytes | bytearray:
    message = await _next(receive)
    body: bytes | bytearray = message.get("body", b"")
    if message.get("more_body"):
        body = bytearray(body)
        while message.get("more_body") and len(body) <= limit:
            message = await _next(receive)
            body += message.get("body", b"")
    if len(body) > limit:
        await _discard(receive, message, DISCARDED * limit)
        raise BodyTooLarge(bytes(body[:BEGINNING]))
    return body


async def _discard(receive: Receive, message: Message, most: int) -> None:
    while message.get("more_body") and most > 0:
        message = await _next(receive)
        most -= len(message.get("body", b""))


async def _next(receive: Receive) -> Message:
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    return message
