"""Leases in memory, as the API server stores them, and a Leadership without an API server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

from app.core.errors import ClusterRefused, ClusterUnavailable


class Leases:
    """The `request` of a client, for Lease objects only. It can be made to misbehave."""

    def __init__(self) -> None:
        self.stored: dict[str, dict[str, Any]] = {}
        self.silent = False
        """No request gets through."""
        self.deaf = False
        """Requests take effect, but no reply comes back."""
        self._version = 0

    async def request(
        self,
        method: str,
        path: str,
        *,
        body: dict[str, Any] | None = None,
        content_type: str = "",
        timeout: float = 0,
    ) -> bytes:
        await asyncio.sleep(0)
        if self.silent:
            raise ClusterUnavailable("no answer")
        answer = json.dumps(self._handle(method, path, body or {})).encode()
        if self.deaf:
            raise ClusterUnavailable("no answer")
        return answer

    def edit(self, path: str, **spec: Any) -> None:
        """Change a stored lease as a user with kubectl could."""
        self._handle("PATCH", path, {"metadata": {}, "spec": spec})

    def _handle(self, method: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
        if method == "POST":
            path = f"{path}/{body['metadata']['name']}"
            if path in self.stored:
                raise ClusterRefused("exists", 409)
            self.stored[path] = {"metadata": {}, "spec": {}}
        stored = self.stored.get(path)
        if stored is None:
            raise ClusterRefused("not found", 404)
        if method == "GET":
            return stored
        named = body["metadata"].get("resourceVersion")
        if named not in (None, stored["metadata"].get("resourceVersion")):
            raise ClusterRefused("conflict", 409)
        self._version += 1
        stored["spec"] |= body["spec"]
        stored["metadata"] = {"resourceVersion": str(self._version)}
        return stored


class Election:
    """State that the candidates of one election share."""

    def __init__(self) -> None:
        self.holder: FakeLeadership | None = None
        self.transitions = -1
        self.free = asyncio.Condition()

    async def lapse(self) -> None:
        """Take leadership from the current holder."""
        if self.holder is not None:
            self.holder.ended.set()
        self.holder = None
        async with self.free:
            self.free.notify_all()


class FakeLeadership:
    """`ports.leadership.Leadership` in memory. A term ends only when the test ends it."""

    def __init__(self, election: Election) -> None:
        self.ended = asyncio.Event()
        self.ended.set()
        self._election = election

    async def acquire(self, fit: Callable[[], Awaitable[bool]] | None = None) -> int:
        while fit is not None and not await fit():
            await asyncio.sleep(0.01)
        if self._election.holder is self:
            await self._election.lapse()
        async with self._election.free:
            await self._election.free.wait_for(lambda: self._election.holder is None)
            self._election.holder = self
            self._election.transitions += 1
        self.ended.clear()
        return self._election.transitions

    def seconds_left(self) -> float:
        return 0.0 if self.ended.is_set() else 60.0

    async def wait_until_lost(self) -> None:
        await self.ended.wait()

    async def release_lease(self) -> None:
        if self._election.holder is self:
            await self._election.lapse()
