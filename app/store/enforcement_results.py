"""The last result of the enforcement probes, in one key of Redis.

The webhook replicas write it, and every API replica shows it. The newest result replaces the
others, because all replicas probe the same cluster. Any client of Redis can write here, so the
result is only used for answers to people.
"""

from __future__ import annotations

import msgspec

from app.core.model import Millis
from app.ports.api import EnforcementResult
from app.store import schema
from app.store.connection import Server

LONGEST = 16 * 1024
"""Maximum size of a result in bytes."""


class _Result(msgspec.Struct, frozen=True):
    at: int
    seconds: float
    holes: dict[str, str]


_decode = msgspec.json.Decoder(_Result).decode


class RedisEnforcementResults:
    """`ports.api.EnforcementResults` on Redis."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._server = server
        self._key = f"{schema.domain(cluster)}enforcement"

    async def post(self, result: EnforcementResult) -> None:
        """Replace the last result."""
        written = _Result(result.at, result.seconds, dict(result.holes))
        await self._server.call("SET", self._key, msgspec.json.encode(written))

    async def read(self) -> EnforcementResult | None:
        """Return the last result, or None if it is missing or invalid."""
        text = await self._server.call("GET", self._key)
        if text is None or len(text) > LONGEST:
            return None
        try:
            written = _decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        return EnforcementResult(Millis(written.at), written.seconds, written.holes)
