"""Calls an ASGI app directly, as a server would."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from starlette.types import ASGIApp, Message


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of the app."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return msgspec.json.decode(self.body)


async def call(
    app: ASGIApp,
    method: str,
    path: str,
    body: bytes | Sequence[bytes] = b"",
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """Send one request and return the answer. A body given as a list arrives in that many parts."""
    parts = [body] if isinstance(body, bytes) else list(body)
    sending = bool(parts)
    path, _, query = path.partition("?")
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "scheme": "https",
        "server": ("127.0.0.1", 443),
        "client": ("127.0.0.1", 1),
        "headers": [(k.lower().encode(), v.encode()) for k, v in (headers or {}).items()],
        "state": {},
    }
    sent: list[Message] = []

    async def receive() -> Message:
        if not parts and sending:
            await asyncio.Event().wait()  # the client stays until it is answered
        if not parts:
            return {"type": "http.disconnect"}
        part = parts.pop(0)
        return {"type": "http.request", "body": part, "more_body": bool(parts)}

    async def send(message: Message) -> None:
        sent.append(message)

    await app(scope, receive, send)
    start, *rest = sent
    return Reply(
        start["status"],
        {k.decode(): v.decode() for k, v in start["headers"]},
        b"".join(message.get("body", b"") for message in rest),
    )
