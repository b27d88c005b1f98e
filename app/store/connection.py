"""One Redis server, reached by URL: short time-outs, no hidden retries, errors of our own tree.

Every command sent through here must be harmless when it arrives twice, or late: an answer that
got lost is asked for once more. Nothing of queues or usage is known here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import unquote, urlsplit

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelConnectionPool
from redis.backoff import NoBackoff

from app.core.errors import StoreError, StoreForeign, StoreUnavailable

CONNECT_SECONDS = 1.0
ANSWER_SECONDS = 2.0
SENTINEL_PORT = 26379

_LOST = (redis_errors.ConnectionError, redis_errors.TimeoutError, OSError)


class Server:
    """One Redis server. `connect` makes it, `close` ends it; safe to share between tasks.

    A call that fails for want of an answer does so within twice the sum of the time-outs.
    """

    def __init__(self, client: Redis, name: str) -> None:
        self._client = client
        self._send: Callable[..., Awaitable[Any]] = client.execute_command
        self._name = name

    @classmethod
    def connect(cls, url: str) -> Server:
        """Return a server for `redis://`, `rediss://` or `redis+sentinel://`. Talks to nobody yet.

        The last is `redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/MASTER/DB`; name and
        password are those of the servers behind the sentinels.
        """
        parts = urlsplit(url)
        name = parts.netloc.rpartition("@")[2]
        if parts.scheme == "redis+sentinel":
            return cls(_behind_sentinels(url), name)
        return cls(Redis.from_url(url, **_options()), name)

    async def call(self, *command: str | bytes | int) -> Any:
        """Send one command and return its answer; strings in it are bytes.

        Raises StoreUnavailable when no usable answer came, also at the second try, and
        StoreForeign when the keys hold something else. NoScriptError passes as it is.
        """
        try:
            try:
                return await self._send(*command)
            except _LOST:
                return await self._send(*command)
        except redis_errors.NoScriptError:
            raise
        except (redis_errors.RedisError, OSError) as error:
            raise self._translated(error) from error

    async def ping(self) -> None:
        """Return if the server answers. Raises StoreUnavailable."""
        await self.call("PING")

    async def check(self) -> None:
        """Return if the server keeps what is written to it. Raises StoreForeign.

        Our keys carry no expiry, so of the evicting policies only `allkeys-*` would take them.
        CONFIG would say more, but managed servers forbid it.
        """
        memory = await self.call("INFO", "memory")
        policy = str(memory.get("maxmemory_policy", ""))
        if policy.startswith("allkeys-") and int(memory.get("maxmemory", 0)):
            raise StoreForeign(
                f"Redis at {self._name} throws keys away when memory runs short "
                f"(maxmemory-policy {policy}): set it to noeviction."
            )

    async def close(self) -> None:
        """Close all connections."""
        pool = self._client.connection_pool
        await self._client.aclose()
        if isinstance(pool, SentinelConnectionPool):
            await pool.sentinel_manager.aclose()

    def _translated(self, error: Exception) -> StoreError:
        told = f"Redis at {self._name}"
        match error:
            case redis_errors.AuthenticationError() | redis_errors.AuthorizationError():
                return StoreUnavailable(f"{told} does not let us in: {error}; check the redis URL.")
            case redis_errors.BusyLoadingError():
                return StoreUnavailable(f"{told} is still loading its data: wait for it.")
            case redis_errors.TimeoutError():
                return StoreUnavailable(f"{told} did not answer in {ANSWER_SECONDS:g} s.")
            case redis_errors.ResponseError():
                return _refusal(told, error)
            case _:
                return StoreUnavailable(f"{told} cannot be reached: {error}.")


def _refusal(told: str, error: redis_errors.ResponseError) -> StoreError:
    # By the words, not the type: what a script ran into is told inside a longer message.
    said = f"{type(error).__name__} {error}"
    if "OutOfMemory" in said or "OOM " in said:
        return StoreUnavailable(f"{told} is out of memory: raise its maxmemory.")
    if "ReadOnly" in said or "READONLY" in said:
        return StoreUnavailable(f"{told} is a read-only replica: name the primary instead.")
    if "WRONGTYPE" in said:
        return StoreForeign(f"{told} holds something that is not Fairgate's: {error}.")
    return StoreUnavailable(f"{told} refuses the command: {error}.")


def _options() -> dict[str, Any]:
    return {
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": ANSWER_SECONDS,
        # Said aloud: left to itself the library sends a command up to ten times.
        "retry": Retry(NoBackoff(), 0),
    }


def _behind_sentinels(url: str) -> Redis:
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    master, _, database = parts.path.strip("/").partition("/")
    build: Callable[..., Sentinel] = Sentinel  # the library does not say its types
    sentinel = build([_address(host) for host in hosts.split(",")], sentinel_kwargs=_options())
    client: Redis = sentinel.master_for(
        unquote(master) or "mymaster",
        db=int(database or 0),
        username=unquote(user) or None,
        password=unquote(password) or None,
        **_options(),
    )
    return client


def _address(written: str) -> tuple[str, int]:
    parts = urlsplit(f"//{written}")
    return parts.hostname or "localhost", parts.port or SENTINEL_PORT
