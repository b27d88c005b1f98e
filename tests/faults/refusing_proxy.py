"""A reverse proxy before the API server that answers some requests itself with 429 or 409.

It forwards requests unchanged, with the caller's token. Refused requests never reach the API
server. It runs in its own thread and chooses the refused requests from a seed.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
import threading
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from aiohttp import web

from app.devcluster.certificates import Certificates
from app.tls.certificate_authority import CertificateAuthority

END_SECONDS = 10.0
HOP_BY_HOP = {"connection", "transfer-encoding", "content-length", "content-encoding"}


class Storm:
    """Use with `with`; route a proxy to `port`. `refused` counts by status.

    It refuses writes only after `blow`.
    """

    def __init__(self, server: str, pem: Certificates, folder: Path, seed: int) -> None:
        self.port = 0
        self.refused: Counter[int] = Counter()
        self.passed = 0
        self._server = server
        self._random = random.Random(seed)
        self._chances: dict[int, float] = {}
        self._transports: set[asyncio.BaseTransport] = set()
        self._serving = _serving(pem, folder)
        self._calling = ssl.create_default_context(cafile=str(pem.certificate("cluster-ca")))
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="storm", daemon=True)

    def __enter__(self) -> Storm:
        self._thread.start()
        asyncio.run_coroutine_threadsafe(self._open(), self._loop).result(END_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        asyncio.run_coroutine_threadsafe(self._shut(), self._loop).result(2 * END_SECONDS)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(END_SECONDS)
        self._loop.close()

    def blow(self, chances: dict[int, float]) -> None:
        """Answer writes with these statuses, each with its probability from 0 to 1; {} stops it."""
        self._loop.call_soon_threadsafe(lambda: setattr(self, "_chances", chances))

    async def _open(self) -> None:
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(ssl=self._calling, limit=0), auto_decompress=False
        )
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._serve)
        self._runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self._serving)
        await site.start()
        self.port = int(self._runner.addresses[0][1])

    async def _shut(self) -> None:
        for transport in self._transports:
            transport.abort()  # type: ignore[attr-defined]
        await self._runner.cleanup()
        await self._session.close()
        rest = asyncio.all_tasks() - {asyncio.current_task()}
        for task in rest:
            task.cancel()
        await asyncio.gather(*rest, return_exceptions=True)
        for _ in range(5):
            await asyncio.sleep(0)  # sockets are closed in later iterations of the loop

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.transport is not None:
            self._transports.add(request.transport)
        if request.method != "GET" and (status := self._drawn()):
            self.refused[status] += 1
            return _refusal(status, self._random.randint(0, 1))
        self.passed += 1
        return await self._forward(request)

    def _drawn(self) -> int:
        drawn = self._random.random()
        for status, chance in self._chances.items():
            if drawn < chance:
                return status
            drawn -= chance
        return 0

    async def _forward(self, request: web.Request) -> web.StreamResponse:
        body = await request.read() or None
        headers = {k: v for k, v in request.headers.items() if k.lower() not in HOP_BY_HOP}
        headers.pop("Host", None)
        forever = aiohttp.ClientTimeout(total=None)
        async with self._session.request(
            request.method,
            self._server + request.raw_path,
            data=body,
            headers=headers,
            timeout=forever,
            allow_redirects=False,
        ) as answer:
            kept = {k: v for k, v in answer.headers.items() if k.lower() not in HOP_BY_HOP}
            response = web.StreamResponse(status=answer.status, headers=kept)
            await response.prepare(request)
            async for piece in answer.content.iter_any():
                await response.write(piece)
            await response.write_eof()
            return response


def _serving(pem: Certificates, folder: Path) -> ssl.SSLContext:
    authority = CertificateAuthority.load(
        pem.certificate("cluster-ca").read_bytes(), pem.key("cluster-ca").read_bytes()
    )
    issued = authority.issue(
        "storm", names=["127.0.0.1"], server=True, client=False, now=datetime.now(UTC), days=2
    )
    file = folder / "storm.pem"
    file.write_bytes(issued.certificate_pem + issued.key_pem)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(file)
    return context


def _refusal(status: int, retry_after: int) -> web.Response:
    told = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "message": "the server has received too many requests, try again later"
        if status == 429
        else "the object has been modified; please apply your changes to the latest version",
        "reason": "TooManyRequests" if status == 429 else "Conflict",
        "code": status,
    }
    headers = {"Retry-After": str(retry_after)} if status == 429 else {}
    return web.Response(
        status=status, text=json.dumps(told), headers=headers, content_type="application/json"
    )
