"""Redis URL to client: with or without TLS, a single server or one behind sentinels.

TLS always verifies the certificate and its name. This module sends no command.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from redis import exceptions as redis_errors
from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import MasterNotFoundError, Sentinel
from redis.backoff import NoBackoff

CONNECT_SECONDS = 1.0
ANSWER_SECONDS = 2.0
SENTINEL_PORT = 26379


def create_client(url: str) -> Redis:
    """Return a client for `redis://`, `rediss://`, `redis+sentinel://` or `rediss+sentinel://`.

    A sentinel URL is `redis+sentinel://[USER:PASSWORD@]HOST:PORT,HOST:PORT/MASTER/DB`. User and
    password are for the servers behind the sentinels. TLS applies to both. The query names the TLS
    files (`ssl_ca_certs`, `ssl_certfile`, `ssl_keyfile`).
    """
    if urlsplit(url).scheme.endswith("+sentinel"):
        return _sentinel_client(url)
    # Options in a URL override these arguments. The settings allow only TLS files in the URL.
    return Redis.from_url(url, **connection_options())


def host_names(url: str) -> str:
    """Return the hosts of a URL, without user and password."""
    return urlsplit(url).netloc.rpartition("@")[2]


class Sentinels(Sentinel):
    """The sentinels of a URL."""

    async def discover_master(self, service_name: str) -> tuple[str, int]:
        """Return host and port of the primary, of the first sentinel that names one.

        Raises MasterNotFoundError, whose cause is the last error of a sentinel. That of the library
        has all options of each connection in its text, and only the types of the errors.
        """
        failure: Exception | None = None
        for place, sentinel in enumerate(self.sentinels):
            try:
                masters: Any = await sentinel.sentinel_masters()
            except (redis_errors.ConnectionError, redis_errors.TimeoutError) as error:
                failure = error
                continue
            state = masters.get(service_name)
            if state and self.check_master_state(state, service_name):
                self.sentinels[0], self.sentinels[place] = sentinel, self.sentinels[0]
                return state["ip"], state["port"]
        raise MasterNotFoundError(f"no sentinel names a primary {service_name!r}") from failure


def connection_options() -> dict[str, Any]:
    """Return options of every connection: short time-outs, and no retries by the library."""
    return {
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": ANSWER_SECONDS,
        # Explicit, because by default the library sends a command up to ten times.
        "retry": Retry(NoBackoff(), 0),
    }


def _sentinel_client(url: str) -> Redis:
    parts = urlsplit(url)
    login, _, addresses = parts.netloc.rpartition("@")
    user, _, password = login.partition(":")
    master, _, database = parts.path.strip("/").partition("/")
    told = connection_options()
    if parts.scheme.startswith("rediss"):
        told |= {"ssl": True, **dict(parse_qsl(parts.query))}
    build: Callable[..., Sentinels] = Sentinels  # the library has no type annotations
    sentinel = build([_address(host) for host in addresses.split(",")], sentinel_kwargs=told)
    found: Redis = sentinel.master_for(
        unquote(master) or "mymaster",
        db=int(database or 0),
        username=unquote(user) or None,
        password=unquote(password) or None,
        **told,
    )
    return found


def _address(written: str) -> tuple[str, int]:
    parts = urlsplit(f"//{written}")
    return parts.hostname or "localhost", parts.port or SENTINEL_PORT
