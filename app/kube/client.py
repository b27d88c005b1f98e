"""Small HTTP client of the API server: bytes in, bytes out, errors of Fairgate's tree.

It does without the generated models of `kubernetes.aio`, which cost milliseconds per object. It
never repeats a request: only the caller knows whether that is safe.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from app.core.errors import ClusterRefused, ClusterUnavailable
from app.core.kubeconfig import KubeconfigOptions, impersonation_headers, with_impersonation
from app.k8s_types import objects
from app.kube import credentials
from app.kube import kubeconfig as kubeconfig_files
from app.kube.credentials import ApiServer

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""Accept header of requests that need only the metadata of an object, which is cheaper."""
MERGE_PATCH = "application/merge-patch+json"
STRATEGIC_PATCH = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
"""Server-side apply. JSON is valid YAML."""

CONNECT_SECONDS = 3.0

BUFFER_BYTES = 2 * 1024 * 1024
"""Pages of lists are megabytes; aiohttp's default buffer of 64 KiB would pause their reading."""

TOO_LARGE = "etcdserver: request is too large"
"""Sent with status 500, but the result is certain: such a large object is never stored."""

Query = Iterable[tuple[str, str]]


class Client:
    """The API server, with one identity. `connect` creates it, `close` closes it."""

    def __init__(self, session: aiohttp.ClientSession, server: ApiServer) -> None:
        self._session = session
        self._host = server.url.rstrip("/")
        self._token = server.token
        self._request_options: dict[str, Any] = {"allow_redirects": False}
        if server.tls_server_name:
            self._request_options["server_hostname"] = server.tls_server_name
        if server.proxy:
            self._request_options["proxy"] = server.proxy

    @classmethod
    async def connect(cls, kubeconfig: str | Path | None = None, *, pool_size: int = 32) -> Client:
        """Return a client for a kubeconfig, or for the service account of this pod.

        `kubeconfig` may list files as KUBECONFIG does. `pool_size` limits concurrent requests,
        including watches. Does not connect yet. Raises InvalidSettings.
        """
        return await cls.connect_with(KubeconfigOptions(str(kubeconfig or "")), pool_size)

    @classmethod
    async def connect_with(cls, options: KubeconfigOptions, pool_size: int = 32) -> Client:
        """Return a client for the kubeconfig and user of a command. See `connect`."""
        if options.kubeconfig:
            server = await kubeconfig_files.load_api_server(options)
        else:
            headers = impersonation_headers(with_impersonation({}, options))
            server = replace(credentials.api_server_in_pod(os.environ), headers=tuple(headers))
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=pool_size, ssl=server.tls),
            cookie_jar=aiohttp.DummyCookieJar(),
            # Bandwidth of the local network is cheaper than decompression.
            headers=(
                ("User-Agent", "fairgate"),
                ("Accept", JSON),
                ("Accept-Encoding", "identity"),
                *server.headers,
            ),
            read_bufsize=BUFFER_BYTES,
        )
        return cls(session, server)

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
        """Send one request and return the body of the response.

        The caller percent-encodes `path`. `timeout` is in seconds, for the whole request. Raises
        ClusterRefused for a 3xx or 4xx: the request certainly had no effect. Raises
        ClusterUnavailable for a 5xx or no response: it may have had one. Objects that are too large
        for etcd raise ClusterRefused.
        """
        data = _encode(body, content_type)
        limits = aiohttp.ClientTimeout(total=timeout, sock_connect=min(CONNECT_SECONDS, timeout))
        try:
            async with self._send(
                method, path, query, data, content_type, limits, accept
            ) as response:
                answer: bytes = await response.read()
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            raise self._no_answer_error(method, path, error) from error
        if response.status >= 300:
            raise _refusal_error(method, path, response, answer)
        return answer

    @asynccontextmanager
    async def stream(
        self, path: str, query: Query = (), *, read_timeout: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Open a watch and yield its lines of any length. Enters after the server has returned 200.

        The lines end when the server ends the watch. Raises the errors of `request`, also while
        reading lines: ClusterUnavailable if no data arrived for `read_timeout` seconds.
        """
        limits = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_SECONDS, sock_read=read_timeout
        )
        try:
            async with self._send("GET", path, query, None, JSON, limits) as response:
                if response.status != 200:
                    raise _refusal_error("GET", path, response, await response.read())
                try:
                    yield _lines(response.content)
                finally:
                    _abort_stream(response)
        except (aiohttp.ClientError, OSError) as error:
            raise self._no_answer_error("GET", path, error) from error

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
            **self._request_options,
        )

    def _no_answer_error(self, method: str, path: str, error: Exception) -> ClusterUnavailable:
        why = str(error) or type(error).__name__
        return ClusterUnavailable(f"{method} {path}: no answer from {self._host} ({why}).")


def _abort_stream(response: aiohttp.ClientResponse) -> None:
    """Abort an open stream. A normal close would wait for the server's TLS close message."""
    connection = response.connection
    if connection is not None and connection.transport is not None:
        connection.transport.abort()


def _encode(body: bytes | dict[str, Any] | list[Any] | None, content_type: str) -> bytes | None:
    if body is None or isinstance(body, bytes):
        return body
    if content_type == JSON_PATCH and not isinstance(body, list):
        raise TypeError("a JSON patch is a list of operations")
    return msgspec.json.encode(body)


def _refusal_error(
    method: str, path: str, response: aiohttp.ClientResponse, answer: bytes
) -> ClusterRefused | ClusterUnavailable:
    try:
        said = msgspec.json.decode(answer, type=objects.StatusObject).message
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
    """Split a stream into lines. A line may span any number of chunks."""
    begun: list[bytes] = []
    async for chunk in content.iter_any():
        first, *others = chunk.split(b"\n")
        begun.append(first)
        for other in others:
            line = b"".join(begun)
            begun = [other]
            if line:
                yield line
