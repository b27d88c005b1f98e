"""Follows what the API server publishes of its front proxy: its CA, its names, its headers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

import msgspec

from app import wire
from app.api_ports import Front
from app.core.errors import ClusterError, ClusterRefused
from app.kube.client import Client
from app.kube.follow import follow

MAPS = "/api/v1/namespaces/kube-system/configmaps"
NAME = "extension-apiserver-authentication"
RETRY_SECONDS = 2.0

log = logging.getLogger("fairgate.kube")


class FrontProxy:
    """Tells `trust` of the front proxy, now and whenever it changes. `known`: it was told once."""

    def __init__(self, client: Client, trust: Callable[[Front], None]) -> None:
        self.known = False
        self._client = client
        self._trust = trust
        self._stirred = asyncio.Event()

    async def run(self) -> None:
        """Follow until cancelled."""
        complaint = ""
        async with asyncio.TaskGroup() as group:
            group.create_task(follow(self._client, MAPS, self._hear, only=NAME))
            while True:
                await self._stirred.wait()
                self._stirred.clear()
                try:
                    self._trust(await self._read())
                    self.known, complaint = True, ""
                except ClusterError as error:
                    if str(error) != complaint:
                        log.warning("the front proxy is not known", extra={"why": str(error)})
                    complaint = str(error)
                    await asyncio.sleep(RETRY_SECONDS)
                    self._stirred.set()

    def _hear(self, name: str | None) -> None:
        self._stirred.set()

    async def _read(self) -> Front:
        """Return what is published; nobody is to be believed if nothing is. Raises ClusterError."""
        try:
            answer = await self._client.request("GET", f"{MAPS}/{NAME}")
        except ClusterRefused as error:
            if error.status == 404:
                return Front()
            raise
        return read_front(answer)


def read_front(answer: bytes) -> Front:
    """Return what a ConfigMap says. Raises ClusterError for one that cannot be understood."""
    try:
        data = msgspec.json.decode(answer, type=wire.ConfigMap).data or {}

        def listed(key: str) -> tuple[str, ...]:
            found = data.get(f"requestheader-{key}", "[]")
            return tuple(msgspec.json.decode(found, type=list[str]))

        return Front(
            ca=data.get("requestheader-client-ca-file", "").encode(),
            names=listed("allowed-names"),
            users=listed("username-headers"),
            uids=listed("uid-headers"),
            groups=listed("group-headers"),
            extras=listed("extra-headers-prefix"),
        )
    except msgspec.DecodeError as error:
        raise ClusterError(f"ConfigMap kube-system/{NAME} cannot be read: {error}") from error
