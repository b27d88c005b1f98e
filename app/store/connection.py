"""Connection to one Redis server: short time-outs, no hidden retries, errors of Fairgate's tree.

If an answer is lost, the command is sent again. So every command must be harmless if it arrives
twice or late.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.sentinel import MasterNotFoundError, SentinelConnectionPool

from app.core.errors import StoreError, StoreForeign, StoreFull, StoreUnavailable
from app.store import redis_url

_CONNECTION_ERRORS = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)


class Server:
    """One Redis server. `connect` creates it, `close` closes it. Safe to share between tasks.

    A call without an answer fails within twice the sum of the time-outs.
    """

    def __init__(self, client: Redis, name: str) -> None:
        self._client = client
        self._send: Callable[..., Awaitable[Any]] = client.execute_command
        self._name = name

    @classmethod
    def connect(cls, url: str) -> Server:
        """Return the server of a URL, or the primary behind sentinels. Does not connect yet."""
        return cls(redis_url.create_client(url), redis_url.host_names(url))

    async def call(self, *command: str | bytes | int) -> Any:
        """Send one command and return its answer. Strings in the answer are bytes.

        Raises StoreUnavailable if there is no usable answer after a second attempt, and
        StoreForeign if a key has a foreign type. Does not translate NoScriptError.
        """
        try:
            try:
                return await self._send(*command)
            except _CONNECTION_ERRORS:
                return await self._send(*command)
        except redis_errors.NoScriptError:
            raise
        except (redis_errors.RedisError, OSError) as error:
            if _is_read_only(error):
                # A demoted primary. The host name may lead to another server by now.
                await self._client.connection_pool.disconnect(inuse_connections=False)
            raise self._translate_error(error) from error

    async def check(self) -> None:
        """Return if the server retains all keys. Raises StoreForeign if it may evict them.

        Fairgate's keys have no expiry, so only the eviction policies `allkeys-*` would remove them.
        CONFIG would be more exact, but managed servers forbid it.
        """
        memory = await self.call("INFO", "memory")
        policy = str(memory.get("maxmemory_policy", ""))
        if policy.startswith("allkeys-") and int(memory.get("maxmemory", 0)):
            raise StoreForeign(
                f"Redis at {self._name} throws keys away when memory runs short "
                f"(maxmemory-policy {policy}): set it to noeviction."
            )

    async def memory_limit(self) -> int:
        """Return the memory limit of the server in bytes, 0 if there is no known limit."""
        return int((await self.call("INFO", "memory")).get("maxmemory", 0))

    async def close(self) -> None:
        """Close all connections."""
        pool = self._client.connection_pool
        await self._client.aclose()
        if isinstance(pool, SentinelConnectionPool):
            await pool.sentinel_manager.aclose()

    def _translate_error(self, error: Exception) -> StoreError:
        told = f"Redis at {self._name}"
        match error:
            case redis_errors.NoPermissionError():
                return _permission_error(told, error)
            case redis_errors.AuthenticationError() | redis_errors.AuthorizationError():
                why = str(error).rstrip(".")
                return StoreUnavailable(f"{told} does not let us in: {why}; check the redis URL.")
            case redis_errors.BusyLoadingError():
                return StoreUnavailable(f"{told} is still loading its data: wait for it.")
            case redis_errors.TimeoutError():
                return StoreUnavailable(f"{told} did not answer in {redis_url.ANSWER_SECONDS:g} s.")
            case redis_errors.ResponseError():
                return _response_error(told, error)
            case _ if "CERTIFICATE_VERIFY_FAILED" in (said := f"{error} {error.__cause__}"):
                why = said.rpartition("verify failed: ")[2].partition(" (_ssl")[0]
                return StoreUnavailable(
                    f"{told} shows a certificate that is not trusted ({why}): name its CA in the "
                    "redis URL (?ssl_ca_certs=FILE)."
                )
            case MasterNotFoundError():
                why = f" ({str(error.__cause__).rstrip('.')})" if error.__cause__ else ""
                return StoreUnavailable(
                    f"{told}: {error}{why}; check that the sentinels run, and the "
                    "name in the redis URL."
                )
            case _:
                return StoreUnavailable(f"{told} cannot be reached: {str(error).rstrip('.')}.")


def _is_read_only(error: Exception) -> bool:
    return isinstance(error, redis_errors.ReadOnlyError) or "READONLY" in str(error)


def _permission_error(told: str, error: Exception) -> StoreError:
    return StoreUnavailable(
        f"{told} denies its user a command: {error}; give it the rights that the manual lists."
    )


def _response_error(told: str, error: redis_errors.ResponseError) -> StoreError:
    # Match the text and not the type: errors inside a script are part of a longer message.
    said = f"{type(error).__name__} {error}"
    if "OutOfMemory" in said or "OOM " in said:
        return StoreFull(f"{told} is out of memory: raise its maxmemory.")
    if _is_read_only(error):
        return StoreUnavailable(f"{told} is a read-only replica: name the primary instead.")
    if "can't run this command" in said or "ACL failure in script" in said:
        return _permission_error(told, error)
    if "WRONGTYPE" in said:
        return StoreForeign(f"{told} holds something that is not Fairgate's: {error}.")
    return StoreUnavailable(f"{told} refuses the command: {error}.")
