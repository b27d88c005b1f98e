"""The last result of the enforcement probes, and the last sign of life of a webhook replica.

The webhook replicas write them, and every API replica shows them. The newest result replaces the
others, because all replicas probe the same cluster. The sign of life has a key of its own, so that
a replica cannot replace the result of another one by it. Any client of Redis can write here, so
both are only used for answers to people.
"""

from __future__ import annotations

import msgspec

from app.core.model import Millis
from app.ports.api import EnforcementResult
from app.store import schema
from app.store.connection import Server

MOST_BYTES = 16 * 1024
"""Maximum size of a result in bytes."""

MOST_DIGITS = 15
"""Maximum number of digits of a time in milliseconds."""


class _Result(msgspec.Struct, frozen=True):
    at: int
    seconds: float
    holes: dict[str, str]


_decode = msgspec.json.Decoder(_Result).decode


class RedisEnforcementResults:
    """`ports.api.EnforcementResults` on Redis."""

    def __init__(self, server: Server, cluster: str) -> None:
        self._server = server
        self._key = f"{schema.key_prefix(cluster)}enforcement"
        self._alive_key = f"{schema.key_prefix(cluster)}enforcement-renewed"

    async def store_result(self, result: EnforcementResult) -> None:
        """Replace the last result, but not its `renewed`."""
        written = _Result(result.at, result.seconds, dict(result.holes))
        await self._server.call("SET", self._key, msgspec.json.encode(written))

    async def record_heartbeat(self, at: Millis) -> None:
        """Replace `renewed` alone: a webhook replica works at this time."""
        await self._server.call("SET", self._alive_key, at)

    async def read_result(self) -> EnforcementResult | None:
        """Return the last result, or None if it is missing or invalid."""
        text = await self._server.call("GET", self._key)
        if text is None or len(text) > MOST_BYTES:
            return None
        try:
            written = _decode(text)
        except (msgspec.DecodeError, ValueError, RecursionError):
            return None
        renewed = _time(await self._server.call("GET", self._alive_key))
        return EnforcementResult(Millis(written.at), written.seconds, written.holes, renewed)


def _time(text: bytes | None) -> Millis:
    """Return the stored time, 0 if it is missing or invalid."""
    is_time = text is not None and len(text) <= MOST_DIGITS and text.isdigit()
    return Millis(int(text) if text is not None and is_time else 0)
