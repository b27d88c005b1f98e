"""One small HTTP client for the API server: bytes in, bytes out, errors of our own tree.

On the transport of `kubernetes.aio`, without its generated models, which cost milliseconds per
object. Never repeats a request: only the caller knows what a second time would do.
"""

from __future__ import annotations

import importlib
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from app import wire
from app.core.errors import ClusterRefused, ClusterUnavailable
from app.kube import identity

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE_PATCH = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"
"""Server-side apply; JSON is YAML."""

CONNECT_SECONDS = 3.0

TOO_LARGE = "etcdserver: request is too large"
"""Comes as a 500, yet is certain: nothing so large is ever stored."""

Query = Iterable[tuple[str, str]]


class Client:
    """The API server, as one identity. `connect` makes one, `close` ends it."""

    def __init__(self, session: aiohttp.ClientSession, host: str, token: identity.Token) -> None:
        self._session = session
        self._host = host.rstrip("/")
        self._token = token
        self._fixed: dict[str, Any] = {"allow_redirects": False}

    @classmethod
    async def connect(cls, kubeconfig: str | Path | None = None, *, pool_size: int = 32) -> Client:
        """Return a client for a kubeconfig, or for the pod this process runs in.

        `pool_size` bounds the requests under way at once, watches included. Talks to nobody yet.
        Raises InvalidSettings.
        """
        configuration, token = await identity.load(kubeconfig)
        configuration.connection_pool_maxsize = pool_size
        configuration.client_session_kwargs = {
            "trust_env": False,
            "cookie_jar": aiohttp.DummyCookieJar(),
            # Bytes of the local network are cheaper than the work of unpacking them.
            "headers": {"User-Agent": "fairgate", "Accept": JSON, "Accept-Encoding": "identity"},
        }
        try:
            rest = importlib.import_module("kubernetes.aio.client.rest")
            session = rest.RESTClientObject(configuration)._create_pool_manager()
        except OSError as error:  # certificates that cannot be read
            raise identity.unusable(kubeconfig, error) from error
        client = cls(session, configuration.host, token)
        if configuration.tls_server_name:
            client._fixed["server_hostname"] = configuration.tls_server_name
        if configuration.proxy:
            client._fixed["proxy"] = configuration.proxy
        return client

    async def close(self) -> None:
        """Close all connections."""
        await self._session.close()

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Query = (),
        body: bytes | dict[str, Any] | list[Any] | None = None,
        content_type: str = JSON,
        accept: str = "",
        timeout: float = 10.0,
    ) -> bytes:
        """Send one request and return the body of its answer.

        `path` is percent-encoded by the caller; `timeout` in seconds, for the whole of it.
        Raises ClusterRefused for an answer of 3xx or 4xx: it certainly did not take effect.
        Raises ClusterUnavailable for a 5xx or no answer: it may have. What is too large is refused.
        """
        data = _encode(body, content_type)
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
        try:
            async with self._send(
                method, path, query, data, content_type, limits, accept
            ) as response:
                answer: bytes = await response.read()
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise self._silent(method, path, error) from error
        if response.status >= 300:
            raise _refusal(method, path, response, answer)
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query = (), *, read_timeout: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and give its lines, however long; entered once the server has answered 200.

        The lines end when the server ends the watch. Raises as `request` does, also from the
        lines: ClusterUnavailable when nothing at all arrived for `read_timeout` seconds.
        """
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=read_timeout
        )
        try:
            async with self._send("GET", path, query, None, JSON, limits) as response:
                if response.status != 200:
                    raise _refusal("GET", path, response, await response.read())
                try:
                    yield _lines(response.content)
                finally:
                    _hang_up(response)
        except (aiohttp.ClientError, OSError) as error:
            raise self._silent("GET", path, error) from error

    def _send(
        self,
        method: str,
        path: str,
        query: Query,
        data: bytes | None,
        content_type: str,
        limits: aiohttp.ClientTimeout,
        accept: str = "",
    ) -> Any:
        headers = {"Content-Type": content_type} if data is not None else {}
        if accept:
            headers["Accept"] = accept
        token = self._token.value()
        if token:
            headers["Authorization"] = token
        return self._session.request(
            method,
            self._host + path,
            params=list(query),
            data=data,
            headers=headers,
            timeout=limits,
            **self._fixed,
        )

    def _silent(self, method: str, path: str, error: Exception) -> ClusterUnavailable:
        why = str(error) or type(error).__name__
        return ClusterUnavailable(f"{method} {path}: no answer from {self._host} ({why}).")


def _hang_up(response: aiohttp.ClientResponse) -> None:
    """Drop a stream that has not ended. TLS would wait for the server's own goodbye."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


def _encode(body: bytes | dict[str, Any] | list[Any] | None, content_type: str) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    if content_type == JSON_PATCH and not isinstance(body, list):
        raise TypeError("a JSON patch is a list of operations")
    return msgspec.json.encode(body)


def _refusal(
    method: str, path: str, response: aiohttp.ClientResponse, answer: bytes
) -> ClusterRefused | ClusterUnavailable:
    try:
        said = msgspec.json.decode(answer, type=wire.Status).message
    except msgspec.DecodeError:
        said = answer[:200].decode("utf-8", "replace")
    message = f"{method} {path}: {response.status} {said or response.reason}"
    if TOO_LARGE in message:
        return ClusterRefused(message, 413)
    if response.status >= 500:
        return ClusterUnavailable(message)
    return ClusterRefused(message, response.status, _seconds(response.headers.get("Retry-After")))


def _seconds(header: str | None) -> float | None:
    return float(header) if header and header.isdecimal() and len(header) < 7 else None


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    """Split a stream at newlines. A line may span any number of chunks."""
    begun: list[bytes] = []
    async for chunk in content.iter_any():
        first, *others = chunk.split(b"\n")
        begun.append(first)
        for other in others:
            line = b"".join(begun)
            begun = [other]
            if line:
                yield line
